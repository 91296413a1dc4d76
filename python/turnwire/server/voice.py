"""A response's way out: its events in order, and a sign of life when it is silent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from turnwire.server.exchange import ClientGoneError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from turnwire.protocol.events import Event
    from turnwire.protocol.output import DeltaLike, ResponseStream
    from turnwire.server.exchange import Exchange


class Voice:
    """Makes and sends a response's events, one batch at a time.

    Events are made and written under one lock, because a keep-alive is numbered like any other
    event. ``interval`` is in seconds.
    """

    def __init__(self, stream: ResponseStream, exchange: Exchange, *, interval: float) -> None:
        self._stream = stream
        self._exchange = exchange
        self._interval = interval
        self._order = asyncio.Lock()
        self._spoke_at = 0.0

    async def open(self) -> None:
        """Send ``response.created`` and ``response.in_progress``."""
        await self._say(lambda: [*self._stream.created(), *self._stream.in_progress()])

    async def push(self, deltas: Iterable[DeltaLike]) -> None:
        """Send what some deltas amount to."""
        await self._say(lambda: self._stream.push(deltas))

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Repeat ``response.in_progress`` after each ``interval`` of silence within the block.

        Pings do not reset the idle timers of Codex and opencode, and any other event type breaks
        strict clients (docs/protocol.md). The last repetition is written out whole before
        the block ends.
        """
        task = asyncio.create_task(self._keep_alive(), name="keep-alive")
        try:
            yield
        finally:
            async with self._order:
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            silent_for = clock() - self._spoke_at
            if silent_for < self._interval:
                await asyncio.sleep(self._interval - silent_for)
                continue
            try:
                await self._say(self._stream.in_progress)
            except ClientGoneError:
                return  # the turn's next event, or its transport, finds that out as well

    async def _say(self, make: Callable[[], Sequence[Event]]) -> None:
        async with self._order:
            events = make()
            if events:
                await self._exchange.send(events)
                self._spoke_at = asyncio.get_running_loop().time()
