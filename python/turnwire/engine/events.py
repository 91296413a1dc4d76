"""Reading a stream of server-sent events from an engine: every wait and every size is bounded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turnwire.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Largest event. SGLang repeats all ids of an answer in each one unless told otherwise."""


class EventReader:
    """Splits a response's body into the payloads of its events, however the bytes arrive."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        *,
        engine: str,
        first: float | None,
        silence: float | None,
    ) -> None:
        """Read ``parts``.

        The first event may take ``first`` seconds, each later one ``silence`` (None: as long as
        the transport lets it). ``engine`` is the name to use in errors.
        """
        self._parts = parts
        self._engine = engine
        self._patience = first
        self._silence = silence
        self._pending: list[bytes] = []
        self._unfinished: list[bytes] = []
        self._size = 0

    async def next(self) -> bytes:
        """Wait for one event's ``data``. Raises EngineError at the end of the stream."""
        while not self._pending:
            self._pending = list(self._split(await self._read()))
            self._pending.reverse()
        self._patience = self._silence
        return self._pending.pop()

    async def _read(self) -> bytes:
        try:
            if self._patience is None:
                return await anext(self._parts)
            async with asyncio.timeout(self._patience):
                return await anext(self._parts)
        except TimeoutError:
            message = f"{self._engine} sent nothing for {self._patience:g} s."
            raise EngineError(message) from None
        except StopAsyncIteration:
            raise EngineError(f"{self._engine} ended a stream before its last event.") from None

    def _split(self, part: bytes) -> Iterator[bytes]:
        self._size += len(part)
        self._unfinished.append(part)
        if self._size > MAX_EVENT_BYTES:
            raise EngineError(f"{self._engine} sent an event of over {MAX_EVENT_BYTES} bytes.")
        if b"\n" not in part:
            return
        *events, rest = b"".join(self._unfinished).replace(b"\r\n", b"\n").split(b"\n\n")
        self._unfinished, self._size = [rest], len(rest)
        for event in events:
            # Lines that begin with a colon are pings; other fields do not matter here.
            lines = (line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            payload = b"\n".join(lines)
            if payload:
                yield payload
