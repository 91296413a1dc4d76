"""SmolLM2's ids against llama.cpp itself, which serves the very file that we read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from oracle import vocabulary
from turnwire._core import Profile
from turnwire.engine.llamacpp import LlamaCppEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = 2400


def _pieces(*lines: str) -> list[str]:
    return "·".join(lines).split("·")


DIGITS = _pieces(" ·  ·1·23·4 · 5·\n·\t·a· b·½ ·x9·²·٣· ٣ ·Ⅷ·.")
"""Spaces next to digits: where conversions of this vocabulary have gone wrong."""

PIECES = _pieces(
    " ·  ·    ·\n·\n\n·\r\n·\t·\u00a0·\u3000·\u2003·\u200b·\x85·\u2028·a·the· The·it's·I'LL·'re",
    "'\u017f·'·x·é·e\u0301·\u0301·ß·ǅ·1·12·1234567· 1·1 ·½·²·१·你好·世界·こんにちは·안녕·Привет",
    'שלום·नमस्ते·ไทย·🙂·👩\u200d👧·🇫🇷·\ufe0f·fn f(){}·==·->·/·"·{·</·<·|·_·#·...·!·—·<|·|>',
    "<|im_start|>·<|im_end|>·<|im_end|·<|endoftext|>·<s>·▁·Ġ·<0x0A>·\x01·\x7f·\ufffd·\U0001d518",
    # Of bytes that the vocabulary has no token for.
    "\x04·\x06·\x13·\x14·\x16·\x1d·\U00040000·\U00090000",
)


def texts() -> list[str]:
    """Texts of every kind, the same on every run."""
    numbers = random.Random(0x5301)
    made = ["12 345 a1", " 1 2  3   4 ", "a  1\n 2", "==\x04==", "!\U00050000!"]
    while len(made) < TEXTS:
        pieces = DIGITS if len(made) % 3 == 0 else PIECES
        made.append("".join(numbers.choice(pieces) for _ in range(numbers.randrange(1, 13))))
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(vocabulary.smollm2_path())
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("control", [True, False])
async def test_ids_equal_llama_cpps(engine: LlamaCppEngine, control: bool) -> None:
    profile = Profile.load(str(vocabulary.smollm2_path()))
    assert profile.encoder == "fastokens"
    for text in texts():
        expected = await engine.tokenize(text, special=control)
        assert profile.encode(text, control=control).tolist() == expected, repr(text)
        assert profile.encode_reference(text, control=control).tolist() == expected, repr(text)
