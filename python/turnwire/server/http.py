"""``POST /v1/responses``: the same turns over plain HTTP, as one JSON body or as an SSE stream."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from turnwire.errors import (
    AuthenticationError,
    InvariantError,
    TooLargeError,
    TurnwireError,
    UnsupportedParameterError,
)
from turnwire.protocol.events import error_body, error_headers
from turnwire.protocol.frames import decode_create
from turnwire.protocol.validate import validate
from turnwire.server.exchange import ClientGoneError
from turnwire.server.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from turnwire._core import Node
    from turnwire.config import Config
    from turnwire.policy.auth import Principal
    from turnwire.protocol.events import Event
    from turnwire.protocol.frames import CreateRequest
    from turnwire.server.exchange import Ending
    from turnwire.server.turns import Turns

log = logging.getLogger(__name__)

SSE_END = b"data: [DONE]\n\n"
"""Open Responses requires it at the end; OpenAI's SDKs accept it."""

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def error_response(error: TurnwireError) -> Response:
    """Return ``{"error": {…}}`` with the error's status and headers."""
    headers = error_headers(error)
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(error), error.status, headers, media_type="application/json")


def json_response(value: object) -> Response:
    """Return ``value`` as JSON, with status 200."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def sse(events: Iterable[Event]) -> bytes:
    """Frame events for an SSE stream: ``event:`` repeats the type, ``data:`` is the object."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.body) for event in events
    )


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body. Raises TooLargeError beyond ``limit`` bytes, before reading them all."""
    error = TooLargeError(f"The request body is larger than the limit of {limit} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise error
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise error
    return bytes(body)


class HttpExchange:
    """A request over HTTP; see :class:`Exchange`. A continuation comes from the store only."""

    def __init__(self, request: CreateRequest, principal: Principal) -> None:
        self.request = request
        self.principal = principal
        self.stream_id: str | None = None
        self.connection: str | None = None
        self.affinity = f"{principal.name}/{request.prompt_cache_key or ''}"
        self.interruption = Interruption()

    def begin(self, response_id: str) -> Node | None:
        """No connection holds anything."""
        del response_id
        return None


class JsonExchange(HttpExchange):
    """``stream: false``: nothing is written until the end."""

    def __init__(self, request: CreateRequest, principal: Principal) -> None:
        super().__init__(request, principal)
        self.response = error_response(InvariantError("the turn left no response"))
        """What to answer, once the turn is over."""

    async def send(self, events: Sequence[Event]) -> None:
        """Nothing: the final Response has it all."""

    async def refuse(self, error: TurnwireError) -> None:
        """Answer with the error's own status."""
        self.response = error_response(error)

    async def end(self, ending: Ending) -> None:
        """Answer with the Response, or with the failure's own status, which SDKs may retry."""
        if ending.error is not None:
            self.response = error_response(ending.error)
        else:
            self.response = Response(ending.response, media_type="application/json")


class SseExchange(HttpExchange):
    """``stream: true``: the response starts with the first event."""

    def __init__(
        self,
        request: CreateRequest,
        principal: Principal,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
        write_deadline: float,
    ) -> None:
        super().__init__(request, principal)
        self._asgi = scope, receive, send
        self._write_deadline = write_deadline
        self._started = False

    async def send(self, events: Sequence[Event]) -> None:
        """Write events as one chunk."""
        await self._write(sse(events), more=True)

    async def refuse(self, error: TurnwireError) -> None:
        """Answer with the error's own status: nothing was streamed yet."""
        await error_response(error)(*self._asgi)

    async def end(self, ending: Ending) -> None:
        """Write the last events and the end marker."""
        await self._write(sse(ending.terminal) + SSE_END, more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        send = self._asgi[2]
        try:
            async with asyncio.timeout(self._write_deadline):
                if not self._started:
                    self._started = True
                    await send(
                        {"type": "http.response.start", "status": 200, "headers": SSE_HEADERS}
                    )
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            log.warning("a client did not read for %g s and is cut off", self._write_deadline)
            raise ClientGoneError from None
        except OSError as error:
            raise ClientGoneError from error


async def create(
    request: Request, send: Send, *, principal: Principal, turns: Turns, config: Config
) -> None:
    """Serve one create. Raises TurnwireError while nothing has been written.

    A client that disconnects ends its turn: the engine stops within one token.
    """
    scope, receive = request.scope, request.receive
    wanted = decode_create(await read_body(request, config.limits.body_bytes))
    validate(wanted, "http")
    if wanted.generate is False:
        raise UnsupportedParameterError(
            "Unsupported parameter: 'generate' is for WebSocket only.", param="generate"
        )
    exchange: JsonExchange | SseExchange
    if wanted.stream:
        exchange = SseExchange(
            wanted,
            principal,
            scope=scope,
            receive=receive,
            send=send,
            write_deadline=config.server.write_deadline_seconds,
        )
    else:
        exchange = JsonExchange(wanted, principal)
    gone = False
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_until_gone(receive), name="disconnect")
            await turns.run(exchange)
            watch.cancel()
    except* ClientGoneError:
        gone = True
    if isinstance(exchange, JsonExchange) and not gone:
        await exchange.response(scope, receive, send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError


async def refuse_upgrade(scope: Scope, send: Send, error: TurnwireError) -> None:
    """Answer an upgrade with a status and a JSON body; without the extension, with 403."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    response = error_response(error)
    response.headers["connection"] = "close"
    await send(
        {
            "type": "websocket.http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
    await send({"type": "websocket.http.response.body", "body": response.body})
