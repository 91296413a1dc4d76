"""What passes between a session and the server: tickets in hand, actions to perform."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from turnwire.errors import InvariantError
from turnwire.protocol.lifecycle import TicketPhase

if TYPE_CHECKING:
    from turnwire.protocol.events import Event
    from turnwire.protocol.frames import CreateRequest

StateT = TypeVar("StateT")


class Outcome(enum.Enum):
    """How a turn ended: COMPLETED and INCOMPLETE can be continued, FAILED evicts its parent."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Ticket(Generic[StateT]):
    """One accepted ``response.create``. The session alone writes its fields.

    ``lane`` is its ``stream_id``, None for the default lane; ``size`` is its frame's length in
    bytes; ``order`` counts accepted creates. ``parent`` is what it continues, from its start to
    its end, and ``response_id`` its own, once it has begun.
    """

    __slots__ = ("lane", "order", "parent", "phase", "request", "response_id", "size")

    def __init__(self, request: CreateRequest, lane: str | None, size: int, order: int) -> None:
        self.request = request
        self.lane = lane
        self.size = size
        self.order = order
        self.phase = TicketPhase.WAITING
        self.response_id: str | None = None
        self.parent: StateT | None = None

    @property
    def ended(self) -> bool:
        """Whether its last event is out: nothing may be sent for it any more."""
        return self.phase is TicketPhase.ENDED

    def check(self) -> None:
        """Raise InvariantError unless the turn runs: call it before any event of it is written."""
        if self.phase not in {TicketPhase.ACTIVE, TicketPhase.STOPPING}:
            raise InvariantError(f"a turn that is {self.phase.value} has nothing to say")


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
    """Stop this active turn; said at most once per ticket.

    The turn still ends once, by ``Session.ended``: as CANCELLED, or however it was ending already.
    It may not have begun yet.
    """

    ticket: Ticket[StateT]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket once everything before this was written."""

    code: int
    reason: str


Action: TypeAlias = Send | Start[StateT] | Cancel[StateT] | Close
