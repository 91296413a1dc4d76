"""Filling the engine's prefix cache after ``generate: false``, beside everything else.

The warm-up's reply never waits for this, and the connection's next turn cuts it short: what the
engine has prefilled by then, it keeps.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from turnwire.errors import TurnwireError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnwire.engine.base import Engine, EngineOutput, EngineRequest

log = logging.getLogger(__name__)


class WarmUps:
    """The prefills that run now, at most one per affinity (connection)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """How many prefills run now."""
        return len(self._tasks)

    def start(self, request: EngineRequest) -> None:
        """Prefill ``request.prompt`` in the background; ``max_tokens`` is 0."""
        self.stop(request.affinity)
        task = asyncio.create_task(self._prefill(request), name=f"warm-up {request.request_id}")
        self._tasks[request.affinity] = task
        task.add_done_callback(lambda done: self._forget(request.affinity, done))

    def stop(self, affinity: str) -> None:
        """Stop that connection's prefill, if one runs."""
        task = self._tasks.pop(affinity, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop them all and wait until they have stopped."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prefill(self, request: EngineRequest) -> None:
        outputs = cast("AsyncGenerator[EngineOutput, None]", self._engine.generate(request))
        async with aclosing(outputs):
            async for _ in outputs:
                pass

    def _forget(self, affinity: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(affinity) is task:
            del self._tasks[affinity]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, TurnwireError):
            log.warning("a warm-up failed: %s", error)
        elif error is not None:
            log.error("a warm-up failed", exc_info=error)
