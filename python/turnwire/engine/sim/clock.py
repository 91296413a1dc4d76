"""When the sim's tokens are due.

A :class:`Schedule` is absolute: token ``i`` is due at ``first + i / tokens_per_second``, whatever
happened to the tokens before it. A late wake-up therefore never slows the sequence down; the
tokens that became due meanwhile are handed out at once.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from typing import Protocol

_EARLY = 1e-6
"""Seconds by which a wake-up may precede its token: event loops round their timers."""

_JITTER_LIMIT = 0.45
"""Largest shift of one token, in intervals; below one half, so that tokens stay in order."""

_VIRTUAL_ROUNDS = 16
"""Loop iterations without news after which a virtual clock takes every task to be asleep."""


class Clock(Protocol):
    """What tells the time and waits. Injected, so that tests need not wait."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; with 0 or less, only let other tasks run."""
        ...


class WallClock:
    """The real one."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time."""
        await asyncio.sleep(max(seconds, 0.0))


class VirtualClock:
    """A clock that jumps to the next deadline once every task sleeps on it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0
        self._quiet_rounds = 0
        self._watching = False

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time: no real time passes."""
        loop = asyncio.get_running_loop()
        wake: asyncio.Future[None] = loop.create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._now + max(seconds, 0.0), self._order, wake))
        self._quiet_rounds = 0
        if not self._watching:
            self._watching = True
            loop.call_soon(self._watch, loop)
        await wake

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._quiet_rounds += 1
        if self._quiet_rounds > _VIRTUAL_ROUNDS:
            self._quiet_rounds = 0
            self._wake_next()
        if self._sleepers:
            loop.call_soon(self._watch, loop)
        else:
            self._watching = False

    def _wake_next(self) -> None:
        while self._sleepers:
            deadline, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                self._now = max(self._now, deadline)
                wake.set_result(None)
                return


class Schedule:
    """The due times of one sequence's tokens. All times are seconds of the injected clock."""

    __slots__ = ("_coalesce", "_count", "_first", "_interval", "_pause", "_pause_after", "_shifts")

    def __init__(
        self,
        first: float,
        *,
        count: int,
        tokens_per_second: float,
        coalesce: float = 0.0,
        pause_after: int = 0,
        pause: float = 0.0,
        jitter: float = 0.0,
        seed: str = "",
    ) -> None:
        """Plan ``count`` tokens.

        ``first`` is when the first token is due and ``coalesce`` the least number of seconds
        between two outputs (0: one output per token). From token ``pause_after`` on, everything is
        ``pause`` seconds later. ``jitter`` is the standard deviation of a token's own shift as a
        fraction of the interval; equal seeds give equal shifts, and shifts never add up.
        """
        self._first = first
        self._count = count
        self._interval = 1.0 / tokens_per_second
        self._coalesce = coalesce
        self._pause_after = pause_after
        self._pause = pause
        self._shifts: list[float] | None = None
        if jitter > 0:
            draw = random.Random(seed)  # noqa: S311 -- repeatable noise, not a secret
            self._shifts = [
                min(max(draw.gauss(0.0, jitter), -_JITTER_LIMIT), _JITTER_LIMIT)
                for _ in range(count)
            ]

    def due(self, index: int) -> float:
        """When token ``index`` (from 0) is due."""
        place = float(index)
        if self._shifts is not None and index > 0:
            place += self._shifts[index]
        late = self._pause if index >= self._pause_after else 0.0
        return self._first + place * self._interval + late

    def due_by(self, now: float, sent: int) -> int:
        """How many tokens are due at ``now``, given that ``sent`` have been handed out."""
        limit = now + _EARLY
        while sent < self._count and self.due(sent) <= limit:
            sent += 1
        return sent

    def wake(self, sent: int, last_output: float | None) -> float:
        """When to hand out the next output.

        Coalescing holds tokens back until ``coalesce`` seconds after the last output, but never
        the sequence's last token: an engine flushes when it finishes.
        """
        due = self.due(sent)
        if last_output is None or self._coalesce <= 0:
            return due
        return max(due, min(last_output + self._coalesce, self.due(self._count - 1)))

    @property
    def one_by_one(self) -> bool:
        """Whether every token is an output of its own."""
        return self._coalesce <= 0
