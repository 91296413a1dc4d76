"""What it takes to write one more turn's prompt for an engine that wants JSON (decision 0016).

* prompt text: what is new is written, the rest is compared;
* json.dumps: the whole list, as clients do by the book;
* msgspec dump: the same by the fastest encoder there is.
"""

from __future__ import annotations

import json
import random
from array import array

import msgspec
import pytest

from agent import NEW_TOKENS
from sizes import SIZES
from turnwire.engine.prompt_text import PromptTexts

VOCABULARY = 150_000


class Growing:
    """A prompt that grows from turn to turn."""

    def __init__(self, history: int) -> None:
        self._draw = random.Random(1)
        self.ids = self.drawn(history)
        self.texts = PromptTexts(budget=1 << 30)
        self.texts.write("agent", memoryview(array("I", self.ids)))
        self.pieces: list[bytes] = []

    def drawn(self, count: int) -> list[int]:
        return [self._draw.randrange(VOCABULARY) for _ in range(count)]

    def grown(self) -> tuple[tuple[memoryview], dict[str, object]]:
        self.ids += self.drawn(NEW_TOKENS)
        return (memoryview(array("I", self.ids)),), {}

    def write(self, prompt: memoryview) -> None:
        self.pieces = self.texts.write("agent", prompt)


@pytest.mark.parametrize("history", SIZES)
def test_written_anew(benchmark, measured, history):
    growing = Growing(history)
    rounds = max(10, min(300, 10_000_000 // history))
    benchmark.pedantic(growing.write, setup=growing.grown, rounds=rounds, warmup_rounds=2)
    assert json.loads(b"".join(growing.pieces)) == growing.ids
    measured(
        contender="prompt text",
        history_tokens=history,
        prompt_tokens=len(growing.ids),
        new_tokens=NEW_TOKENS,
    )


@pytest.mark.parametrize("history", SIZES)
@pytest.mark.parametrize("name", ["json.dumps", "msgspec dump"])
def test_dumped(benchmark, measured, name, history):
    growing = Growing(history)
    dump = {"json.dumps": json.dumps, "msgspec dump": msgspec.json.encode}[name]
    rounds = max(3, min(100, 1_000_000 // history))
    benchmark.pedantic(
        lambda prompt: dump(prompt.tolist()), setup=growing.grown, rounds=rounds, warmup_rounds=1
    )
    measured(
        contender=name,
        history_tokens=history,
        prompt_tokens=len(growing.ids),
        new_tokens=len(growing.ids),
    )
