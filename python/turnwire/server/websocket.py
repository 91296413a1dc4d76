"""One WebSocket connection: a reader that never waits, turns as tasks, and one writer per event.

::

    receive() ──> reader ──> Session ──> actions ──> turn tasks ──> send()
                     │                                    │
                     └── error replies ──> replies task ──┘

The reader only decodes and decides. Were it to wait, uvicorn would stop reading the socket, the
client's pongs would stay unread, and a busy connection would be closed as dead. So its own replies
go through a bounded queue.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING, TypeAlias

from turnwire.errors import OverloadedError, RateLimitError
from turnwire.protocol.events import error_event
from turnwire.protocol.session import (
    Cancel,
    Close,
    Limits,
    Outcome,
    Send,
    Session,
    Start,
)
from turnwire.server.admission import DRAINING
from turnwire.server.exchange import ClientGoneError
from turnwire.server.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from starlette.types import Message, Receive
    from starlette.types import Send as ASGISend

    from turnwire._core import Node
    from turnwire.config import Config
    from turnwire.errors import TurnwireError
    from turnwire.policy.auth import Principal
    from turnwire.protocol.events import Event
    from turnwire.protocol.session import Action, Ticket
    from turnwire.server.exchange import Ending
    from turnwire.server.turns import Turns

log = logging.getLogger(__name__)

ABORT_EXTENSION = "turnwire.abort"
"""Name of the ASGI extension by which :mod:`turnwire.server.socket` lends its transport's abort."""

GOING_AWAY = 1012
"""Drain and age-out: SDKs end silently on 1000 and 1001, and reconnect on 1012."""
INTERNAL_ERROR = 1011
POLICY_VIOLATION = 1008


class WebSocketExchange:
    """One ``response.create`` on its way through a turn; see :class:`Exchange`."""

    def __init__(self, connection: Connection, ticket: Ticket[Node]) -> None:
        self.request = ticket.request
        self.stream_id = ticket.lane
        self.principal = connection.principal
        self.connection: str | None = connection.id
        self.affinity = connection.id
        self.interruption = Interruption()
        self._connection = connection
        self._ticket = ticket

    def begin(self, response_id: str) -> Node | None:
        """Take the parent from the session."""
        return self._connection.session.begin(self._ticket, response_id)

    async def send(self, events: Sequence[Event]) -> None:
        """Write events, one text frame each."""
        await self._connection.write(events)

    async def refuse(self, error: TurnwireError) -> None:
        """Send one ``error`` event.

        Only the request's own fault costs it its parent: a client that was told to come back later
        must find what it would continue.
        """
        event = error_event(error, stream_id=self.stream_id)
        come_back = isinstance(error, OverloadedError | RateLimitError)
        actions = self._connection.session.ended(
            self._ticket,
            response_id=None,
            state=None,
            outcome=Outcome.CANCELLED if come_back else Outcome.FAILED,
            now=time.monotonic(),
            terminal=[event],
        )
        await self._connection.perform(actions)

    async def end(self, ending: Ending) -> None:
        """Publish, write the last events, start what waited."""
        actions = self._connection.session.ended(
            self._ticket,
            response_id=ending.response_id,
            state=ending.state,
            outcome=ending.outcome,
            now=time.monotonic(),
            terminal=ending.terminal,
        )
        await self._connection.perform(actions)


_Reply: TypeAlias = "Event | Close"


class Connection:
    """One accepted socket. ``serve`` runs it to its end."""

    def __init__(
        self,
        *,
        receive: Receive,
        send: ASGISend,
        principal: Principal,
        turns: Turns,
        config: Config,
        abort: Callable[[], None] | None = None,
    ) -> None:
        """Set up; ``abort`` drops the socket without a closing handshake."""
        limits = config.limits
        self.id = secrets.token_hex(16)
        self.principal = principal
        self.session: Session[Node] = Session(
            Limits(
                max_active=limits.active_per_connection,
                max_named_lanes=limits.lanes_per_connection,
                max_queued=limits.queued_per_connection,
                max_queued_bytes=limits.queued_bytes_per_connection,
                lifetime=limits.connection_seconds,
            ),
            now=time.monotonic(),
        )
        self.close_code: int | None = None
        """How it ended, for the access log: our code, or the client's."""
        self._receive = receive
        self._send = send
        self._turns = turns
        self._deadline = config.server.write_deadline_seconds
        self._max_replies = limits.unread_replies
        self._replies: asyncio.Queue[_Reply] = asyncio.Queue()
        self._writing = asyncio.Lock()
        self._exchanges: dict[Ticket[Node], WebSocketExchange] = {}
        self._tasks: asyncio.TaskGroup
        self._abort = abort
        self._gone = False

    @property
    def idle(self) -> bool:
        """Whether no turn runs or waits."""
        return not self.session.active and not self.session.queued

    async def serve(self) -> None:
        """Run until either side closes. Every turn has stopped when this returns."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._write_replies(), name="replies")
                self._tasks.create_task(self._watch_age(), name="age")
                await self._read()
                self._gone = True
                raise ClientGoneError  # noqa: TRY301 -- leaving the group so cancels every turn
        except* ClientGoneError:
            pass
        except* Exception as group:
            log.exception("a connection failed", exc_info=group)
            self.close_code = INTERNAL_ERROR
            await self._close(Close(INTERNAL_ERROR, "internal error"))
        finally:
            # The group keeps its exceptions, they this frame, and it the connection: a cycle.
            del self._tasks
            self._turns.warm_ups.stop(self.id)
            self.session.disconnect()

    def drain(self) -> None:
        """Refuse what is new, close when nothing runs any more."""
        self._decide(self.session.drain(OverloadedError(DRAINING)))

    async def write(self, events: Iterable[Event]) -> None:
        """Write events in order, and nobody else's between them.

        First come, first served: a terminal event stays ahead of what the lane's next turn says,
        however slowly the client reads.

        Raises ClientGoneError when the client is gone, or has not read for the write deadline.
        """
        try:
            async with self._writing, asyncio.timeout(self._deadline):
                for event in events:
                    await self._send({"type": "websocket.send", "text": event.body.decode()})
        except TimeoutError:
            log.warning("a client did not read for %g s and is cut off", self._deadline)
            self.close_code = INTERNAL_ERROR
            self._gone = True
            if self._abort is not None:
                self._abort()
            raise ClientGoneError from None
        except OSError as error:  # after a disconnect (ASGI's WebSocket spec, 2.4)
            self._gone = True
            raise ClientGoneError from error

    async def perform(self, actions: Iterable[Action[Node]]) -> None:
        """Do what the session decided, in order, from a turn's task: it may wait for the socket."""
        events: list[Event] = []
        for action in actions:
            if isinstance(action, Send):
                events.append(action.event)
                continue
            if events:
                await self.write(events)
                events = []
            self._decide([action])
        if events:
            await self.write(events)

    def _decide(self, actions: Iterable[Action[Node]]) -> None:
        """Do what the session decided, in order, without waiting: for the reader and the clocks."""
        for action in actions:
            match action:
                case Send(event):
                    self._replies.put_nowait(event)
                case Start(ticket):
                    self._start(ticket)
                case Cancel(ticket):
                    if ticket in self._exchanges:
                        self._exchanges[ticket].interruption.request()
                case Close():
                    self._replies.put_nowait(action)

    def _start(self, ticket: Ticket[Node]) -> None:
        if self._gone:
            return  # a task group that is being cancelled takes no new task
        exchange = self._exchanges[ticket] = WebSocketExchange(self, ticket)
        self._tasks.create_task(self._run(ticket, exchange), name="turn")

    async def _run(self, ticket: Ticket[Node], exchange: WebSocketExchange) -> None:
        try:
            await self._turns.run(exchange)
        except BaseException:
            self._gone = True
            raise
        finally:
            del self._exchanges[ticket]

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                if self.close_code is None:
                    self.close_code = message.get("code", 1006)
                return
            data = message.get("text")
            if data is None:
                data = bytes(message.get("bytes") or b"")
            self._decide(self.session.receive(data, time.monotonic()))
            if not self._replies.empty():
                # receive() does not yield while messages are there: let the replies out.
                await asyncio.sleep(0)
                if self._replies.qsize() > self._max_replies:
                    log.warning("a client sends without reading and is cut off")
                    self.close_code = POLICY_VIOLATION
                    raise ClientGoneError

    async def _write_replies(self) -> None:
        while True:
            reply = await self._replies.get()
            if isinstance(reply, Close):
                await self._close(reply)
                return
            await self.write([reply])

    async def _watch_age(self) -> None:
        deadline = self.session.deadline
        if deadline is None:
            return
        while (left := deadline - time.monotonic()) > 0:  # noqa: ASYNC110 -- sleep wakes early
            await asyncio.sleep(left)
        self._decide(self.session.expire(time.monotonic()))

    async def _close(self, close: Close) -> None:
        self.close_code = close.code
        message: Message = {"type": "websocket.close", "code": close.code, "reason": close.reason}
        try:
            async with asyncio.timeout(self._deadline):
                await self._send(message)
        except (OSError, RuntimeError, TimeoutError):
            pass  # the socket is closed already, or its peer does not read
