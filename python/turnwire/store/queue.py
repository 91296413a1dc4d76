"""Writes to a store, beside the turns that they come from.

What waits to be written is found like what has been. While the store is down, writes wait up to a
bound; beyond it, a request that is to be stored is refused before it costs anything.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from turnwire.errors import OverloadedError, StoreUnavailableError
from turnwire.store.base import SWEEP_ROWS, Lineage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from turnwire.store.base import Store, StoredResponse

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
"""Interval of the search for expired responses."""

RETRY_SECONDS = (0.05, 0.2, 1.0, 5.0)
"""Waits between attempts while the store is down; the last one goes on."""

DELETE_SECONDS = 10.0
"""How long a deletion waits for the response's own write."""


class WriteQueue:
    """A store whose :meth:`put` does not wait. One per server; ``start`` before use."""

    def __init__(self, store: Store, *, max_responses: int, max_bytes: int) -> None:
        """Let at most so many responses and bytes wait to be written."""
        self._store = store
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._waiting: dict[str, StoredResponse] = {}
        self._bytes = 0
        self._promised = 0
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """The store's kind."""
        return self._store.name

    def __len__(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        """Start the store, and writing to it. Raises StartupError."""
        await self._store.start()
        self._tasks = [
            asyncio.create_task(self._write_all(), name="store-writes"),
            asyncio.create_task(self._sweep(), name="store-sweep"),
        ]

    async def close(self, seconds: float) -> None:
        """Write what waits, for at most so long, and close the store. Safe to call twice."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: not self._waiting)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._waiting:
            log.error(
                "%d responses were not written to the store (%s)", len(self._waiting), self.name
            )
        await self._store.close()

    @contextmanager
    def room(self) -> Iterator[None]:
        """Promise that a response may be put within the block. Raises OverloadedError."""
        if self._full:
            raise OverloadedError(
                f"The store of responses ({self.name}) does not take writes at the moment, and "
                "too many wait for it. Please retry later, or send 'store': false."
            )
        self._promised += 1
        try:
            yield
        finally:
            self._promised -= 1

    async def put(self, response: StoredResponse) -> None:
        """Keep ``response``: from now on it is found."""
        previous = self._waiting.pop(response.response_id, None)
        self._bytes += response.size - (0 if previous is None else previous.size)
        self._waiting[response.response_id] = response
        async with self._changed:
            self._changed.notify_all()

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """As the store's."""
        waiting = self._waiting.get(response_id)
        if waiting is not None:
            return waiting if waiting.visible(principal) else None
        return await self._store.get(response_id, principal)

    async def holds(self, response_id: str, principal: str) -> bool:
        """As the store's."""
        waiting = self._waiting.get(response_id)
        if waiting is not None:
            return waiting.visible(principal)
        return await self._store.holds(response_id, principal)

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """As the store's."""
        newest_first: list[tuple[str, bytes]] = []
        following: str | None = response_id
        while following is not None and (waiting := self._waiting.get(following)) is not None:
            if not waiting.visible(principal):
                return None
            if following in known:
                return Lineage(following, newest_first[::-1])
            if waiting.delta is None:
                return None
            newest_first.append((following, waiting.delta))
            following = waiting.parent_id
        if following is None:
            return Lineage(None, newest_first[::-1])
        before = await self._store.lineage(following, principal, known)
        if before is None:
            return None
        return Lineage(before.base, [*before.deltas, *reversed(newest_first)])

    async def delete(self, response_id: str, principal: str) -> bool:
        """As the store's, once what waits for it is written: a child may have to inherit."""
        waiting = self._waiting.get(response_id)
        if waiting is not None and not waiting.visible(principal):
            return False
        try:
            async with asyncio.timeout(DELETE_SECONDS), self._changed:
                await self._changed.wait_for(lambda: response_id not in self._waiting)
        except TimeoutError:
            raise StoreUnavailableError(self.name) from None
        return await self._store.delete(response_id, principal)

    @property
    def _full(self) -> bool:
        taken = len(self._waiting) + self._promised
        return taken >= self._max_responses or self._bytes >= self._max_bytes

    async def _write_all(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting)
            response_id = next(iter(self._waiting))
            response = self._waiting[response_id]
            await self._write(response)
            if self._waiting.get(response_id) is response:
                del self._waiting[response_id]
                self._bytes -= response.size
            async with self._changed:
                self._changed.notify_all()

    async def _write(self, response: StoredResponse) -> None:
        attempt = 0
        while True:
            try:
                await self._store.put(response)
            except StoreUnavailableError as error:
                if attempt in {0, len(RETRY_SECONDS)}:
                    log.warning(
                        "the store (%s) is down, and %d responses wait for it: %s",
                        self.name,
                        len(self._waiting),
                        error.__cause__,
                    )
            except Exception:
                # Nothing that a retry could change; and others must not wait behind it.
                log.exception("%s could not be stored", response.response_id)
                return
            else:
                if attempt > 0:
                    log.warning("the store (%s) is up again", self.name)
                return
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1

    async def _sweep(self) -> None:
        while True:
            try:
                while await self._store.sweep() == SWEEP_ROWS:
                    pass
            except StoreUnavailableError:
                pass  # the writes say so
            except Exception:
                log.exception("expired responses could not be deleted")
            await asyncio.sleep(SWEEP_SECONDS)
