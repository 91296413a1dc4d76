"""Ending one await of a turn from outside, without ending its task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from turnwire.errors import TurnwireError


class Interrupted(Exception):  # noqa: N818 -- an event, not a fault
    """Raised in the turn, at the await inside the ``with`` block."""


class Interruption:
    """Marks the awaits that may be cut short: ``with interruption: output = await …``.

    A whole task cannot be cancelled instead: that could land between two events of one push and
    lose sequence numbers. Works like :class:`asyncio.Timeout`, so a cancellation from elsewhere
    (a disconnect) keeps its meaning.
    """

    def __init__(self) -> None:
        self.requested = False
        self.error: TurnwireError | None = None
        """Why, when it is the server's doing; None when the client asked."""
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False

    def request(self, error: TurnwireError | None = None) -> None:
        """Interrupt the turn, now or at its next such block. Later requests change nothing."""
        if self.requested:
            return
        self.requested = True
        self.error = error
        if self._task is not None:
            self._cancelled = self._task.cancel()

    def __enter__(self) -> None:
        if self.requested:
            raise Interrupted
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return
        self._cancelled = False
        only_ours = task.uncancel() <= self._cancelling
        if only_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise Interrupted from error
