"""Server-sent events, however their bytes arrive (the HTML standard's examples, cut at will)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.engine import events
from turnwire.engine.events import EventReader
from turnwire.errors import EngineError

STREAM = (
    b": a comment\n\n"
    b'data: {"a": 1}\n\n'
    b"event: named\r\ndata: two\r\n\r\n"
    b"data: first\ndata: second\n\n"
    b"data:\n\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = [b'{"a": 1}', b"two", b"first\nsecond", b"[DONE]"]


def reader(parts, *, first: float | None = 1.0, silence: float = 1.0) -> EventReader:
    async def stream():
        for part in parts:
            if part is None:
                await asyncio.Event().wait()
            yield part

    return EventReader(stream(), engine="it", first=first, silence=silence)


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_cut_anywhere(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[a:b] for a, b in pairwise(edges)]

    async def read() -> list[bytes]:
        events_of = reader(parts)
        return [await events_of.next() for _ in PAYLOADS]

    assert asyncio.run(read()) == PAYLOADS


async def test_an_end_before_the_last_event_is_an_error():
    reading = reader([b"data: one\n\ndata: tw"])
    assert await reading.next() == b"one"
    with pytest.raises(EngineError, match="it ended a stream before its last event"):
        await reading.next()


async def test_the_first_event_may_take_longer_than_the_others():
    with pytest.raises(EngineError, match=r"it sent nothing for 0\.05 s"):
        await reader([None], first=0.05).next()
    reading = reader([b"data: one\n\n", None], first=None, silence=0.02)
    assert await reading.next() == b"one"
    with pytest.raises(EngineError, match=r"it sent nothing for 0\.02 s"):
        await reading.next()


async def test_an_event_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
    fits = reader([b"data: " + b"x" * 90, b"\n\n"])
    assert len(await fits.next()) == 90
    with pytest.raises(EngineError, match="over 100 bytes"):
        await reader([b"data: " + b"x" * 94, b"y", b"\n\n"]).next()
