"""One connection's protocol: lanes, order, limits, and which past responses can be continued.

Sans-I/O: frames go in, actions come out, to be performed in order. Who calls what, and when::

    reader       actions = session.receive(frame, now)
    timer        actions = session.expire(now)                        at session.deadline
    turn         parent = session.begin(ticket, response_id)          first thing of a started turn
    turn         actions = session.ended(ticket, …, terminal=events)  last thing of it
    drain        actions = session.drain(error)
    socket gone  actions = session.disconnect()

What OpenAI's guide leaves open, and what is done here (docs/protocol.md gives the reasons):

- A create that is refused is answered in its lane's order, like a turn that failed: an ``error``
  amid a running turn would be taken for that turn's end. Answered at once is only what belongs to
  no lane (malformed JSON, an unknown type, a bad ``stream_id``) and what a full queue cannot hold.
- A ``stream_id`` counts towards the 32 once a create that names it is accepted.
- Past its lifetime a connection admits and starts nothing more. Creates that wait are refused
  before any output, so that they can be sent again elsewhere; active ones finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple

from turnwire.errors import (
    ConnectionLimitError,
    InvalidStreamIdError,
    InvalidValueError,
    InvariantError,
    RateLimitError,
    RequestError,
    StreamLimitError,
    TurnwireError,
)
from turnwire.protocol.actions import (
    Action,
    Cancel,
    Close,
    Outcome,
    Send,
    Start,
    StateT,
    Ticket,
)
from turnwire.protocol.events import error_event, steer_failed
from turnwire.protocol.frames import (
    SERVED_FRAMES,
    CancelFrame,
    CreateRequest,
    SteerFrame,
    UnsupportedFrame,
    parse_frame,
    stream_id_of,
    utf8,
)
from turnwire.protocol.lanes import Lanes, Refusal
from turnwire.protocol.lifecycle import SESSION, SessionPhase, step
from turnwire.protocol.validate import check_stream_id, shown, validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire.protocol.events import Event

__all__ = [
    "Action",
    "Cancel",
    "Close",
    "Limits",
    "Outcome",
    "Send",
    "Session",
    "Start",
    "Ticket",
]

SERVICE_RESTART: Final = 1012
"""The close code that clients retry and never take for a normal end (docs/protocol.md)."""

_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """A connection's bounds. ``lifetime`` is in seconds, None for no end.

    16, 32 and 60 minutes are OpenAI's, by its guide to WebSocket mode; the queue's are ours.
    """

    max_active: int = 16
    max_named_lanes: int = 32
    max_queued: int = 64
    max_queued_bytes: int = 64 * 1024 * 1024
    lifetime: float | None = 3600.0


class _Closing(NamedTuple):
    """Why a session closes; ``announce``: whether a client that asks nothing is told as well."""

    error: TurnwireError
    announce: bool


class Session(Generic[StateT]):
    """One connection. ``StateT`` is what a turn leaves for its continuations (a ``_core.Node``).

    ``now`` is in seconds on any steady clock, the same one everywhere.
    """

    def __init__(self, limits: Limits, *, now: float) -> None:
        self._limits = limits
        self._deadline = None if limits.lifetime is None else now + limits.lifetime
        self._lanes: Lanes[StateT] = Lanes(
            max_active=limits.max_active,
            max_queued=limits.max_queued,
            max_queued_bytes=limits.max_queued_bytes,
        )
        self._phase = SessionPhase.OPEN
        self._closing: _Closing | None = None
        self._told = False

    @property
    def deadline(self) -> float | None:
        """When to call ``expire``; None when the connection may live for ever."""
        return self._deadline

    @property
    def active(self) -> int:
        """Turns started and not ended."""
        return self._lanes.active

    @property
    def queued(self) -> int:
        """Creates that wait, refused ones that wait for their place included."""
        return self._lanes.queued

    @property
    def closed(self) -> bool:
        """Whether nothing will be said any more."""
        return self._phase is SessionPhase.CLOSED

    def receive(self, data: str | bytes, now: float) -> list[Action[StateT]]:
        """Take one frame from the client. Never raises for what a client sent."""
        if self.closed:
            return []
        actions = self._age(now)
        try:
            body = utf8(data, "frame")
        except RequestError as error:
            return [*actions, Send(error_event(error)), *self._close_if_idle()]
        try:
            frame = parse_frame(body)
        except RequestError as error:
            actions += self._undecoded(body, error)
        else:
            if isinstance(frame, CreateRequest):
                actions += self._create(frame, len(body))
            elif isinstance(frame, CancelFrame):
                actions += self._cancel(frame)
            elif isinstance(frame, SteerFrame):
                actions.append(self._steer(frame))
            elif isinstance(frame, UnsupportedFrame):
                actions.append(_unsupported(frame))
        return actions + self._close_if_idle()

    def begin(self, ticket: Ticket[StateT], response_id: str) -> StateT | None:
        """Give a started turn its response id; learn its parent.

        None when the request names no parent, or names one that this connection does not hold:
        look in the store then, and fail with PreviousResponseNotFoundError. The parent was pinned
        when the turn was started, so evictions since then do not matter.

        Raises InvariantError for a ticket that does not run, or has begun.
        """
        ticket.check()
        if ticket.response_id is not None:
            raise InvariantError("a turn begins once")
        ticket.response_id = response_id
        return ticket.parent

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
        """End a turn. Call it once, before its last event is sent.

        ``terminal`` are the turn's last events (or its ``error`` event): they come back as the
        first actions, ahead of any turn that starts next on the lane. Left out, they must be
        written before the actions are performed. ``state`` is what can be continued, None when the
        turn committed nothing; the next create finds it as soon as this returns.

        Raises InvariantError for a ticket that does not run, thus for a second end, and for a
        ``state`` without the turn's id or of a turn that does not commit (docs/design.md, D4).
        """
        if state is not None:
            if response_id is None or response_id != ticket.response_id:
                raise InvariantError("a state needs the id that its turn began with")
            if outcome not in {Outcome.COMPLETED, Outcome.INCOMPLETE}:
                raise InvariantError(f"a {outcome.value} turn leaves no state")
        lane = self._lanes.end(ticket)
        if self.closed:
            return []
        if outcome is Outcome.FAILED:
            lane.evict(ticket.request.previous_response_id)
        elif state is not None and response_id is not None:
            lane.latest = (response_id, state)
        actions: list[Action[StateT]] = [Send(event) for event in terminal]
        return actions + self._age(now) + self._advance() + self._close_if_idle()

    def expire(self, now: float) -> list[Action[StateT]]:
        """Admit nothing more if the lifetime is over, and close when nothing runs.

        Too early, and after the first time, it does nothing.
        """
        return [] if self.closed else self._age(now) + self._close_if_idle()

    def drain(self, error: TurnwireError) -> list[Action[StateT]]:
        """Refuse new and waiting creates with ``error``: the server stops. Close when idle."""
        if self._phase is not SessionPhase.OPEN:
            return []
        closing = _Closing(error, announce=False)
        return self._stop_admitting("drain", closing) + self._close_if_idle()

    def disconnect(self) -> list[Action[StateT]]:
        """Take note that the socket is gone: a Cancel per active turn, then nothing any more."""
        if self.closed:
            return []
        self._phase = step(SESSION, self._phase, "disconnect")
        self._lanes.forget()
        return [cancel for lane in self._lanes for cancel in lane.stop()]

    # Frames

    def _create(self, request: CreateRequest, size: int) -> list[Action[StateT]]:
        name = request.stream_id
        try:
            check_stream_id(name)
        except InvalidStreamIdError as error:
            return [Send(error_event(error))]  # the one refusal that echoes no stream
        limit = self._limits.max_named_lanes
        if self._lanes.get(name) is None and self._lanes.named >= limit:
            return [Send(error_event(StreamLimitError(limit), stream_id=name))]
        if self._closing is not None:
            return self._refuse(name, Refusal(self._closing.error, None))
        try:
            validate(request, "websocket")
        except RequestError as error:
            return self._refuse(name, Refusal(error, request.previous_response_id))
        if not self._lanes.accept(request, size):
            return [Send(error_event(_queue_full(), stream_id=name))]
        return self._advance()

    def _undecoded(self, body: bytes, error: RequestError) -> list[Action[StateT]]:
        if error.param is None or error.param in {"type", "stream_id"}:
            return [Send(error_event(error))]  # not a create, or one of no lane
        try:
            name = stream_id_of(body)
            check_stream_id(name)
        except InvalidStreamIdError as invalid:
            return [Send(error_event(invalid))]
        return self._refuse(name, Refusal(error, None))

    def _refuse(self, name: str | None, refusal: Refusal) -> list[Action[StateT]]:
        lane = self._lanes.get(name)
        if lane is None or lane.free:
            if lane is not None:
                lane.evict(refusal.parent)
            return [self._say(refusal.error, name)]
        if self._lanes.put_behind(lane, refusal):
            return []
        return [Send(error_event(_queue_full(), stream_id=name))]

    def _cancel(self, frame: CancelFrame) -> list[Action[StateT]]:
        if frame.response_id is not None:
            lane = self._lanes.running(frame.response_id)
        elif frame.stream_id is None or isinstance(frame.stream_id, str):
            lane = self._lanes.get(frame.stream_id)
        else:
            lane = None
        return [] if lane is None else [*lane.stop()]

    def _steer(self, frame: SteerFrame) -> Action[StateT]:
        target = frame.previous_response_id
        if not isinstance(target, str):
            param = "previous_response_id"
            wrong = InvalidValueError(
                f"Invalid type for '{param}': expected a string.", param=param
            )
            return Send(error_event(wrong))
        lane = self._lanes.running(target)
        if lane is None:
            code, message = "response_not_found", "No such response is active on this connection."
        else:
            code, message = "steering_not_supported", "Steering is not supported by this server."
        event = steer_failed(
            code=code,
            message=message,
            previous_response_id=target,
            steer_input=bytes(frame.input) or b"[]",
            stream_id=None if lane is None else lane.name,
        )
        return Send(event)

    # Order, and the end

    def _advance(self) -> list[Action[StateT]]:
        """Give the answers whose place has come; start what may start."""
        actions: list[Action[StateT]] = []
        closing = None if self._closing is None else self._closing.error
        while (answer := self._lanes.next_answer(closing)) is not None:
            lane, error = answer
            actions.append(self._say(error, lane.name))
        return [*actions, *self._lanes.start_next()]

    def _say(self, error: TurnwireError, name: str | None) -> Send:
        self._told = self._told or isinstance(error, ConnectionLimitError)
        return Send(error_event(error, stream_id=name))

    def _age(self, now: float) -> list[Action[StateT]]:
        if self._deadline is None or now < self._deadline or self._phase is not SessionPhase.OPEN:
            return []
        minutes = max(1, round((self._limits.lifetime or 0) / 60))
        closing = _Closing(ConnectionLimitError(minutes), announce=True)
        return self._stop_admitting("expire", closing)

    def _stop_admitting(self, verb: str, closing: _Closing) -> list[Action[StateT]]:
        self._phase = step(SESSION, self._phase, verb)
        self._closing = closing
        return self._advance()

    def _close_if_idle(self) -> list[Action[StateT]]:
        if self._closing is None or self._lanes.active:
            return []
        self._phase = step(SESSION, self._phase, "idle")
        actions: list[Action[StateT]] = []
        if self._closing.announce and not self._told:
            actions.append(self._say(self._closing.error, None))
        actions.append(Close(SERVICE_RESTART, "service restart"))
        return actions


def _unsupported(frame: UnsupportedFrame) -> Send:
    served = ", ".join(f"'{name}'" for name in SERVED_FRAMES)
    error = InvalidValueError(
        f"Invalid value: '{shown(frame.type)}'. Supported values are: {served}.", param="type"
    )
    return Send(error_event(error))


def _queue_full() -> RateLimitError:
    return RateLimitError(
        "Too many requests are queued on this WebSocket connection. "
        f"Please try again in {_RETRY_SECONDS:g}s.",
        retry_after=_RETRY_SECONDS,
    )
