"""The places of a batch: who is sampled now, and who comes next."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Places:
    """So many requests at once; of those that wait, the most urgent first, then the oldest."""

    def __init__(self, limit: int | None) -> None:
        """Offer ``limit`` places; None: as many as are asked for."""
        self._free = limit
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    @asynccontextmanager
    async def hold(self, priority: int) -> AsyncIterator[None]:
        """Take a place for the length of a ``with`` block. Higher priorities go first."""
        await self._take(priority)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, priority: int) -> None:
        if self._free is None:
            return
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()  # it was this one's turn, and nobody is there to take it
            raise

    def _give_back(self) -> None:
        if self._free is None:
            return
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
