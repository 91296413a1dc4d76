"""Texts at which tokenizers have gone wrong: put together at random, the same on every run."""

from __future__ import annotations

from random import Random


def _pieces(*lines: str) -> list[str]:
    return "·".join(lines).split("·")


PIECES = _pieces(
    # White space of every kind, and what follows it.
    " ·  ·    ·\n·\n\n·\n\n\n·\r\n·\r\n\r\n·\t·\t\t",
    "\u00a0·\u3000·\u2003·\u200b·\x85·\u2028·\x1c·\x0b",
    # Letters, case and contractions.
    "a·the· The·it's·I'LL·'re·'S·\u2019s·'\u017f·'·x·ß·ǅ·ª·camelCaseHTTPServer·HTTPServer's·naïve",
    # Combining marks, some of which compose.
    "é·e\u0301·\u0301·\u0338·\u0327·a\u030a\u0323·\u1100\u1161\u11a8·각·Å·\ufe0f",
    # Digits and other numbers.
    "1·12·123·1234567· 1·1 ·½·²·१·Ⅷ·3.14",
    # Han and its neighbours; other scripts.
    "你好·世界·漢字·々·〆·\u3007·\u3007\u3007·\u2f00·\U00020000·\ufa0e·\u3105·こんにちは·カタカナ·안녕·Привет",
    "汉字abc漢·é字·שלום·नमस्ते·ไทย·مرحبا·🙂·👩\u200d👧·🇫🇷·\U0001d518",
    # Code and punctuation.
    'fn f(){}·==·->·/·//·a/b·"·{·</·<·>·|·_·#·...·!·—·https://a.b/c?d=e\n/',
    # What vocabularies write bytes and control tokens as.
    "▁·▁▁·Ġ·<0x0A>·<s>·</s>·[INST]·[BOS]·<|im_end|>·<|im_end|·<|endoftext|>·[TOOL_CALLS]",
    # Controls, noncharacters, characters that few know.
    "\x00·\x01·\x7f·\ufffd·\ufffe·\U0010ffff·\U00040000·\u0378·\u1c89·\U0001e5d0·\U00010d40",
)


def texts(count: int = 800, *, seed: int = 0x2417) -> list[str]:
    """Every piece by itself, long runs, and texts of several pieces."""
    numbers = Random(seed)
    made = ["", *PIECES, " " * 300, "\n" * 300, "字" * 300, "a" * 3000, " \n" * 200]
    while len(made) < count:
        made.append("".join(numbers.choice(PIECES) for _ in range(numbers.randrange(2, 14))))
    return made
