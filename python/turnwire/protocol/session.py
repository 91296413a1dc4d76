"""One connection's protocol: lanes, order, limits, and which past responses can be continued.

Sans-I/O: frames go in, actions come out. Who calls what, and when::

    reader      actions = session.receive(frame, now)
    timer       actions = session.expire(now)                        at session.deadline
    turn        parent = session.begin(ticket, response_id)          first thing of a started turn
    turn        actions = session.ended(ticket, …, terminal=events)  last thing of it
    drain       actions = session.drain(error)
    socket gone actions = session.disconnect()

Perform the actions in order. ``Start`` means: run this turn now (``begin`` it first).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from turnwire.errors import TurnwireError
from turnwire.protocol.events import Event
from turnwire.protocol.frames import CreateRequest

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Limits:
    """A connection's bounds. ``lifetime`` is in seconds, None for no end."""

    max_active: int = 16
    max_named_lanes: int = 32
    max_queued: int = 64
    max_queued_bytes: int = 64 * 1024 * 1024
    lifetime: float | None = 3600.0


class Outcome(enum.Enum):
    """How a turn ended."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Ticket(Generic[StateT]):
    """One accepted ``response.create``. ``lane`` is its ``stream_id``, None for the default lane;
    ``size`` is the frame's length in bytes."""

    request: CreateRequest
    lane: str | None
    size: int


@dataclass(frozen=True, slots=True)
class Send:
    """Write this event."""

    event: Event


@dataclass(frozen=True, slots=True)
class Start(Generic[StateT]):
    """Run this turn now."""

    ticket: Ticket[StateT]


@dataclass(frozen=True, slots=True)
class Cancel(Generic[StateT]):
    """Stop this active turn. It still ends once, by ``ended`` with CANCELLED (or however it was
    ending already). Said at most once per ticket."""

    ticket: Ticket[StateT]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket once everything before this was written."""

    code: int
    reason: str


Action: TypeAlias = Send | Start[StateT] | Cancel[StateT] | Close


class Session(Generic[StateT]):
    """One connection. ``StateT`` is what a turn leaves for its continuations (a ``_core.Node``).

    ``now`` is in seconds on any steady clock, the same one everywhere.
    """

    def __init__(self, limits: Limits, *, now: float) -> None:
        raise NotImplementedError

    @property
    def deadline(self) -> float | None:
        """When to call ``expire``; None when the connection may live for ever."""
        raise NotImplementedError

    @property
    def active(self) -> int:
        """Turns started and not ended."""
        raise NotImplementedError

    @property
    def queued(self) -> int:
        """Creates that wait."""
        raise NotImplementedError

    def receive(self, data: str | bytes, now: float) -> list[Action[StateT]]:
        """One frame from the client. Never raises for what a client sent."""
        raise NotImplementedError

    def begin(self, ticket: Ticket[StateT], response_id: str) -> StateT | None:
        """A started turn takes its response id and learns its parent.

        None when the request names no parent, or names one that this connection does not hold:
        look in the store then, and fail with PreviousResponseNotFoundError. The parent was pinned
        when the turn was started: evictions since then do not matter (protocol L10).
        """
        raise NotImplementedError

    def ended(
        self,
        ticket: Ticket[StateT],
        *,
        response_id: str | None,
        state: StateT | None,
        outcome: Outcome,
        now: float,
        terminal: Sequence[Event] = (),
    ) -> list[Action[StateT]]:
        """A turn is over. Call it once, before its last event is sent.

        ``terminal`` are the turn's last events (or its ``error`` event): they come back as the
        first actions, ahead of any turn that starts next on the lane. Left out, they must be
        written before the actions are performed. ``state`` is what can be continued, None when the
        turn committed nothing (``state`` without ``response_id`` is an InvariantError).

        Raises InvariantError for a ticket that is not active, thus for a second end.
        """
        raise NotImplementedError

    def expire(self, now: float) -> list[Action[StateT]]:
        """The connection's lifetime may be over: admit nothing more; close when nothing runs."""
        raise NotImplementedError

    def drain(self, error: TurnwireError) -> list[Action[StateT]]:
        """The server stops: refuse new and queued creates with ``error``; close when nothing runs."""
        raise NotImplementedError

    def disconnect(self) -> list[Action[StateT]]:
        """The socket is gone: a Cancel for every active turn; nothing is sent any more."""
        raise NotImplementedError
