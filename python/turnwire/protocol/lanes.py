"""The lanes of a connection: who waits, who runs, who starts next, and each one's latest response.

First in, first out within a lane; concurrent across lanes up to a cap, the oldest head first
(docs/protocol.md, Lanes and Continuing). A lane has no memory but its latest response, which is all
that a connection keeps: whoever continues it holds it from its start on, so replacing it hurts no
running turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple

from turnwire.protocol.actions import Cancel, Start, StateT, Ticket
from turnwire.protocol.lifecycle import LANE, TICKET, LanePhase, TicketPhase, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnwire.errors import TurnwireError
    from turnwire.protocol.frames import CreateRequest


class Refusal(NamedTuple):
    """An answer for a create, waiting for its place on a lane; ``parent`` is evicted with it."""

    error: TurnwireError
    parent: str | None


class Lane(Generic[StateT]):
    """One lane; ``name`` is its ``stream_id``, None for the default lane."""

    __slots__ = ("latest", "name", "phase", "ticket", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.phase = LanePhase.IDLE
        self.ticket: Ticket[StateT] | None = None
        self.waiting: deque[Ticket[StateT] | Refusal] = deque()
        self.latest: tuple[str, StateT] | None = None

    @property
    def free(self) -> bool:
        """Whether an answer may go out at once."""
        return self.phase is LanePhase.IDLE and not self.waiting

    def evict(self, response_id: str | None) -> None:
        """Forget the latest response if it is this one: only the referenced id goes."""
        if self.latest is not None and self.latest[0] == response_id:
            self.latest = None

    def stop(self) -> list[Cancel[StateT]]:
        """Tell the running turn to stop, unless there is none or it was told before."""
        ticket = self.ticket
        if ticket is None or ticket.phase is not TicketPhase.ACTIVE:
            return []
        ticket.phase = step(TICKET, ticket.phase, "cancel")
        return [Cancel(ticket)]


class Lanes(Generic[StateT]):
    """Every lane of one connection, with what they may hold together."""

    def __init__(self, *, max_active: int, max_queued: int, max_queued_bytes: int) -> None:
        self.active = 0
        self.queued = 0
        self._queued_bytes = 0
        self._max_active = max_active
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._accepted = 0
        self._lanes: dict[str | None, Lane[StateT]] = {None: Lane(None)}

    def __iter__(self) -> Iterator[Lane[StateT]]:
        return iter(self._lanes.values())

    @property
    def named(self) -> int:
        """How many ``stream_id`` s were ever used; the default lane is not one."""
        return len(self._lanes) - 1

    def get(self, name: str | None) -> Lane[StateT] | None:
        """Find the lane of this ``stream_id``, if any create of it was accepted."""
        return self._lanes.get(name)

    def running(self, response_id: object) -> Lane[StateT] | None:
        """Find the lane on which this response runs."""
        for lane in self:
            if lane.ticket is not None and lane.ticket.response_id == response_id:
                return lane
        return None

    def find(self, response_id: str | None) -> StateT | None:
        """Look for a response that can be continued, on any lane."""
        for lane in self:
            if lane.latest is not None and lane.latest[0] == response_id:
                return lane.latest[1]
        return None

    def accept(self, request: CreateRequest, size: int) -> bool:
        """Put a create on its lane, unless it would have to wait and the queue is full."""
        lane = self._lanes.get(request.stream_id)
        starts_now = self.active < self._max_active and (lane is None or lane.free)
        if not starts_now and self._is_full(size):
            return False
        if lane is None:
            lane = self._lanes[request.stream_id] = Lane(request.stream_id)
        self._accepted += 1
        self.queued += 1
        self._queued_bytes += size
        lane.waiting.append(Ticket(request, lane.name, size, self._accepted))
        return True

    def put_behind(self, lane: Lane[StateT], refusal: Refusal) -> bool:
        """Let a refusal wait for its place on a lane, unless the queue is full."""
        if self._is_full(0):
            return False
        lane.waiting.append(refusal)
        self.queued += 1
        return True

    def next_answer(
        self, closing: TurnwireError | None
    ) -> tuple[Lane[StateT], TurnwireError] | None:
        """Take the next refusal whose place has come: of its own fault, or for ``closing``."""
        for lane in self:
            if lane.phase is LanePhase.BUSY or not lane.waiting:
                continue
            head = lane.waiting[0]
            if isinstance(head, Refusal):
                lane.evict(head.parent)
                error = head.error
            elif closing is not None:
                head.phase = step(TICKET, head.phase, "refuse")
                self._queued_bytes -= head.size
                error = closing
            else:
                continue
            lane.waiting.popleft()
            self.queued -= 1
            return lane, error
        return None

    def start_next(self) -> list[Start[StateT]]:
        """Start the oldest heads of idle lanes, as many as the cap leaves room for."""
        heads: list[tuple[Ticket[StateT], Lane[StateT]]] = []
        for lane in self:
            if lane.phase is LanePhase.IDLE and lane.waiting:
                head = lane.waiting[0]
                if isinstance(head, Ticket):
                    heads.append((head, lane))
        heads.sort(key=lambda head: head[0].order)
        started = heads[: self._max_active - self.active]
        for ticket, lane in started:
            lane.waiting.popleft()
            self.queued -= 1
            self._queued_bytes -= ticket.size
            ticket.phase = step(TICKET, ticket.phase, "start")
            ticket.parent = self.find(ticket.request.previous_response_id)
            lane.phase = step(LANE, lane.phase, "start")
            lane.ticket = ticket
            self.active += 1
        return [Start(ticket) for ticket, _ in started]

    def end(self, ticket: Ticket[StateT]) -> Lane[StateT]:
        """Free the lane of a turn that is over. Raises InvariantError when it does not run."""
        ticket.phase = step(TICKET, ticket.phase, "end")
        ticket.parent = None
        lane = self._lanes[ticket.lane]
        lane.phase = step(LANE, lane.phase, "end")
        lane.ticket = None
        self.active -= 1
        return lane

    def forget(self) -> None:
        """Drop what waits and what could be continued: the socket is gone."""
        for lane in self:
            lane.waiting.clear()
            lane.latest = None
        self.queued = self._queued_bytes = 0

    def _is_full(self, size: int) -> bool:
        return self.queued >= self._max_queued or self._queued_bytes + size > self._max_queued_bytes
