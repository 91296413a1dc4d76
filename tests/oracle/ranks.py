"""Vocabularies that are bytes by rank, encoded by OpenAI's ``tiktoken`` itself.

The patterns are those that the models' own code publishes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import unicodedata
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any
from unittest import mock

import tiktoken

from oracle import tekken
from oracle.vocabulary import VOCABULARIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

O200K = VOCABULARIES / "o200k" / "o200k_base.tiktoken"
TEKKEN = VOCABULARIES / "tekken" / "tekken_240911.json"

_UPPER, _LOWER = (
    rf"[{classes}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for classes in (r"\p{Lu}\p{Lt}", r"\p{Ll}")
)
_HEAD, _SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = (r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        f"{_HEAD}{_UPPER}*{_LOWER}+{_SUFFIX}?",
        f"{_HEAD}{_UPPER}+{_LOWER}*{_SUFFIX}?",
        r"\p{N}{1,3}",
        *_REST,
    ]
)
QWEN = "|".join([_SUFFIX, _HEAD + r"\p{L}+", r"\p{N}", *_REST])


def lines(count: int) -> list[str]:
    """The first lines of OpenAI's file, which is a vocabulary itself."""
    return O200K.read_text(encoding="ascii").splitlines()[:count]


def _ranks(of: Sequence[str]) -> dict[bytes, int]:
    pairs = (line.split() for line in of)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def o200k(scratch: Path) -> tiktoken.Encoding:
    """What ``tiktoken`` itself makes of the name, with the file where it looks for downloads."""
    url = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    name = hashlib.sha1(url.encode()).hexdigest()
    (scratch / name).write_bytes(O200K.read_bytes())
    with mock.patch.dict(os.environ, TIKTOKEN_CACHE_DIR=str(scratch)):
        return tiktoken.get_encoding("o200k_base")


@dataclass(frozen=True)
class Tekken:
    """As mistral-common reads a file: ranks behind the special tokens, which no text holds."""

    specials: list[str]
    encoding: tiktoken.Encoding

    @classmethod
    def of(cls, file: dict[str, Any]) -> Tekken:
        specials, config = tekken.special_tokens(file), file["config"]
        kept = file["vocab"][: config["default_vocab_size"] - len(specials)]
        ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in kept}
        return cls(
            specials,
            tiktoken.Encoding(
                "tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={}
            ),
        )

    def encode(self, text: str) -> list[int]:
        return [len(self.specials) + rank for rank in self.encoding.encode(text)]


def qwen(of: Sequence[str]) -> tiktoken.Encoding:
    """As Qwen's code numbers its control tokens; ``qwen_encode`` is its ``encode``."""
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    specials = {name: len(of) + at for at, name in enumerate(names)}
    return tiktoken.Encoding(
        "qwen", pat_str=QWEN, mergeable_ranks=_ranks(of), special_tokens=specials
    )


def qwen_encode(encoding: tiktoken.Encoding, text: str, *, control: bool) -> list[int]:
    text = unicodedata.normalize("NFC", text)
    allowed = encoding.special_tokens_set if control else set()
    return encoding.encode(text, allowed_special=allowed, disallowed_special=())


@dataclass
class Kimi:
    """Kimi K2's ``TikTokenTokenizer``, in the shortest form that gives its ids."""

    of: Sequence[str]
    named: dict[int, str]
    chat: Sequence[str]
    """The tokens at which ``transformers`` splits a text before it hands it on."""
    encoding: tiktoken.Encoding = field(init=False)

    def __post_init__(self):
        first = len(self.of)
        ids = range(first, first + 256)
        specials = {self.named.get(i, f"<|reserved_token_{i}|>"): i for i in ids}
        self.encoding = tiktoken.Encoding(
            "kimi", pat_str=KIMI, mergeable_ranks=_ranks(self.of), special_tokens=specials
        )

    def whole(self, text: str, *, control: bool) -> list[int]:
        """``tokenizer.encode(text, allow_special_tokens=control)``."""
        allowed = self.encoding.special_tokens_set if control else set()
        return [
            token_id
            for piece in cut(text)
            for token_id in self.encoding.encode(
                piece, allowed_special=allowed, disallowed_special=()
            )
        ]

    def prompt(self, text: str) -> list[int]:
        """``tokenizer(text)``, which is also what ``apply_chat_template`` calls."""
        parts = re.split(f"({'|'.join(map(re.escape, self.chat))})", text)
        return [token_id for part in parts for token_id in self.whole(part, control=True)]


def cut(text: str) -> Iterator[str]:
    """The pieces that reach ``tiktoken``: 400,000 characters, and 25,000 of one kind."""
    for start in range(0, len(text), 400_000):
        piece = ""
        for _, run in groupby(text[start : start + 400_000], key=str.isspace):
            same = "".join(run)
            piece += same[:25_000]
            for at in range(25_000, len(same), 25_000):
                yield piece
                piece = same[at : at + 25_000]
        yield piece
