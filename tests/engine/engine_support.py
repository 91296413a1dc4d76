"""What the engine tests share: a byte vocabulary, requests, and a listener."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from turnwire.engine.base import EngineOutput, EngineRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_ID = 2


class ByteEncoder:
    """A whole vocabulary of bytes: id = byte + 100, and a stop id. Calls as hermes writes them."""

    def encode_output(self, output: bytes) -> Sequence[int]:
        answer = json.loads(output)
        text = ""
        if "reasoning" in answer:
            text += f"<think>{answer['reasoning']}</think>"
        text += answer.get("text", "")
        for call in answer.get("calls", ()):
            body = f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}'
            text += f"<tool_call>{body}</tool_call>"
        return [*encode(text), STOP_ID]


def encode(text: str) -> list[int]:
    return [byte + 100 for byte in text.encode()]


def decode(ids: Sequence[int]) -> str:
    return bytes(i - 100 for i in ids if i != STOP_ID).decode()


def ids_view(ids: Sequence[int]) -> memoryview:
    return memoryview(array("I", ids))


def request(prompt: Sequence[int] = (1, 2, 3), **fields) -> EngineRequest:
    fields.setdefault("request_id", "resp_1")
    fields.setdefault("max_tokens", 1000)
    fields.setdefault("stop_token_ids", frozenset({STOP_ID}))
    return EngineRequest(prompt=ids_view(prompt), **fields)


class Heard:
    """Everything that one request gave."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []
        self.times: list[float] = []

    @property
    def ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return decode(self.ids)

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason if self.outputs else None

    @property
    def cached_tokens(self) -> int | None:
        counts = [o.cached_tokens for o in self.outputs if o.cached_tokens is not None]
        return counts[-1] if counts else None


async def listen(engine, asked: EngineRequest, *, heard: Heard | None = None, clock=None) -> Heard:
    heard = heard or Heard()
    async for output in engine.generate(asked):
        heard.outputs.append(output)
        if clock is not None:
            heard.times.append(clock.now())
        assert all(earlier.finish_reason is None for earlier in heard.outputs[:-1])
    return heard
