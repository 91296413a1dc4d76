"""The ASGI app: routes, refusals and lifespan. ``turnwire.app(config)`` makes one.

It mounts into any Starlette or FastAPI service under any prefix, or is served by
:mod:`turnwire.server.lifespan`. Every failure leaves as JSON ``{"error": {…}}``, refused upgrades
included, and none as a bare exception: uvicorn turns one into a lost socket without a close frame.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request

from turnwire.errors import (
    InvariantError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    StartupError,
    TurnwireError,
    UpgradeRequiredError,
)
from turnwire.server import http
from turnwire.server.access import Access, route_path
from turnwire.server.admission import DRAINING, Admission
from turnwire.server.archive import open_recall
from turnwire.server.debug import dump
from turnwire.server.models import ModelEndpoints
from turnwire.server.opening import chains_of
from turnwire.server.parts import build
from turnwire.server.records import TurnRecords
from turnwire.server.responses import ResponseEndpoints
from turnwire.server.turns import Turns
from turnwire.server.websocket import ABORT_EXTENSION, Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from turnwire._core import Profile
    from turnwire.config import Config
    from turnwire.engine.base import Engine
    from turnwire.server.recall import Recall
    from turnwire.server.responses import Endpoint

log = logging.getLogger(__name__)

RESPONSES = frozenset({"/v1/responses", "/responses", "/v1/codex/responses"})
"""One path for both transports; base URLs lead SDKs to the first or second, and pi to the third."""

MODELS = "/v1/models"
DEBUG_TURNS = "/debug/turns"

LAST_EVENTS_SECONDS = 5.0
"""After a drain has run out of time, how long the final events and closes may take."""

STORE_SECONDS = 10.0
"""How long the writes that wait for the store may take at the end."""

POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Service:
    """What a started server consists of."""

    admission: Admission
    engine: Engine
    profile: Profile
    records: TurnRecords
    recall: Recall
    turns: Turns


class TurnwireApp:
    """An ASGI app that serves the Responses API. Start it by lifespan, ``startup`` or a request."""

    def __init__(
        self, config: Config, *, profile: Profile | None = None, engine: Engine | None = None
    ) -> None:
        """Use ``config``, and build what is not given of ``profile`` and ``engine`` from it."""
        self.config = config
        self.connections: set[Connection] = set()
        self._given = profile, engine
        self._service: Service | None = None
        self._starting = asyncio.Lock()
        self._responses = ResponseEndpoints(self._started, config)
        models = ModelEndpoints(self._started)
        self._endpoints: dict[str, Mapping[str, Endpoint]] = {
            **{path: {"POST": self._create, "GET": self._ask_to_upgrade} for path in RESPONSES},
            MODELS: {"GET": models.list_all},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
        }
        self._below: dict[str, Mapping[str, Endpoint]] = {MODELS + "/": {"GET": models.show}}
        if config.log.debug:
            self._endpoints[DEBUG_TURNS] = {"GET": self._debug_turns}
            self._below[DEBUG_TURNS + "/"] = {"GET": self._debug_turn}
        self._http_app: ASGIApp = self._http
        if config.server.origins:  # a listed browser page also needs CORS headers on HTTP
            self._http_app = CORSMiddleware(
                self._http,
                allow_origins=config.server.origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one lifespan, request or socket."""
        match scope["type"]:
            case "lifespan":
                await self._lifespan(receive, send)
            case "http":
                await self._http_app(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)

    # Life

    async def startup(self) -> Service:
        """Build the parts and start the engine, once. Raises StartupError."""
        async with self._starting:
            if self._service is None:
                self._service = await self._start()
            return self._service

    async def _start(self) -> Service:
        config = self.config
        profile, engine = self._given
        parts = await asyncio.to_thread(build, config, profile=profile, engine=engine)
        chains = chains_of(parts.profile, config)
        recall = await open_recall(chains, config)
        try:
            await parts.start()
        except BaseException:
            await recall.store.close(0)
            raise
        admission = Admission(config, model=config.model.name or parts.engine.model)
        records = TurnRecords(config.log.debug_turns if config.log.debug else 0)
        turns = Turns(
            chains=chains,
            engine=parts.engine,
            sampling=parts.sampling,
            recall=recall,
            admission=admission,
            records=records,
            config=config,
        )
        return Service(admission, parts.engine, parts.profile, records, recall, turns)

    async def shutdown(self) -> None:
        """Drain without waiting, then stop the engine. Safe to call twice."""
        if self._service is not None:
            await self.drain(seconds=0)
            await self._service.turns.warm_ups.close()
            await self._service.turns.canary.close()
            await self._service.engine.close()
            await self._service.recall.store.close(STORE_SECONDS)
            self._service = None

    async def drain(self, seconds: float | None = None) -> None:
        """Let what is in flight finish, then close every socket with 1012.

        From now on ``/ready`` is 503 and new creates get ``server_is_overloaded``. Responses that
        take longer than ``seconds`` (default: ``server.drain_seconds``) end in
        ``response.failed``. Safe to call twice: the shorter time wins.
        """
        service = self._service
        if service is None:
            return
        service.admission.draining = True
        limit = self.config.server.drain_seconds if seconds is None else seconds
        jitter = min(self.config.server.drain_jitter_seconds, limit)
        async with asyncio.TaskGroup() as closing:
            for connection in tuple(self.connections):
                closing.create_task(_drain(connection, jitter))
            if not await self._quiet_within(service, limit):
                service.turns.interrupt_all(OverloadedError(DRAINING))
                if not await self._quiet_within(service, LAST_EVENTS_SECONDS):
                    log.warning("%d connections did not close in time", len(self.connections))

    async def _quiet_within(self, service: Service, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.connections or service.turns.in_progress:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.startup()
                except StartupError as error:
                    await send({"type": "lifespan.startup.failed", "message": error.message})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _started(self) -> Service:
        """Return the service, starting it when mounted: nobody runs a mounted app's lifespan."""
        if self._service is not None:
            return self._service
        try:
            return await self.startup()
        except StartupError as error:
            log.error("cannot start: %s", error)  # noqa: TRY400 -- the message says it all
            raise OverloadedError("The server could not start.") from error

    # HTTP

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = Access(scope)

        async def noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
            await send(message)

        try:
            response = await self._endpoint(scope)(Request(scope, receive), noting_status)
            if response is not None:
                await response(scope, receive, noting_status)
        except ClientDisconnect:
            pass
        except TurnwireError as error:
            await http.error_response(error)(scope, receive, noting_status)
        except Exception as error:
            log.exception("a request failed")
            if access.status is not None:
                raise  # too late for an answer: the server cuts the stream
            await http.error_response(InvariantError(str(error)))(scope, receive, noting_status)
        finally:
            access.write()

    def _endpoint(self, scope: Scope) -> Endpoint:
        path = route_path(scope)
        methods = self._endpoints.get(path) or self._methods_below(path)
        if methods is None:
            raise NotFoundError(f"Unknown request URL: {scope['method']} {path}.")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method not in methods:
            raise MethodNotAllowedError(
                f"Not allowed to {scope['method']} on {path}. Allowed: {', '.join(methods)}."
            )
        return methods[method]

    def _methods_below(self, path: str) -> Mapping[str, Endpoint] | None:
        for prefix, methods in self._below.items():
            if path.startswith(prefix):
                return methods
        for prefix in RESPONSES:
            if path.startswith(prefix + "/"):
                return self._responses.methods(path.removeprefix(prefix + "/"))
        return None

    async def _create(self, request: Request, send: Send) -> None:
        service = await self._started()
        principal = service.admission.identify(request.scope)
        service.admission.check_open()
        await http.create(
            request, send, principal=principal, turns=service.turns, config=self.config
        )

    async def _ask_to_upgrade(self, request: Request, send: Send) -> Response:
        """Answer a GET without a (surviving) ``Upgrade`` header: Codex goes on over HTTP."""
        del request, send
        error = UpgradeRequiredError(
            "GET on this path is for WebSocket: send an upgrade, or POST over HTTP."
        )
        response = http.error_response(error)
        response.headers["upgrade"] = "websocket"
        response.headers["connection"] = "upgrade"
        return response

    async def _health(self, request: Request, send: Send) -> Response:
        del request, send
        return http.json_response({"status": "ok"})

    async def _ready(self, request: Request, send: Send) -> Response:
        del request, send
        service = self._service
        if service is None:
            raise OverloadedError("The server is starting.")
        service.admission.check_open()
        if not service.engine.ready:
            raise OverloadedError("The engine is not ready.")
        return http.json_response({"status": "ready"})

    async def _debug_turns(self, request: Request, send: Send) -> Response:
        del send
        service = await self._started()
        service.admission.identify(request.scope)
        return http.json_response({"object": "list", "data": service.records.newest_last()})

    async def _debug_turn(self, request: Request, send: Send) -> Response:
        del send
        service = await self._started()
        owner = service.admission.identify(request.scope).name
        response_id = route_path(request.scope).removeprefix(DEBUG_TURNS + "/")
        return http.json_response(dump(response_id, owner, service.records, service.profile))

    # WebSocket

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = Access(scope)
        await receive()  # websocket.connect
        with ExitStack() as held:
            held.callback(access.write)
            try:
                connection = await self._admit(scope, receive, send, held)
            except TurnwireError as error:
                access.status = error.status
                await http.refuse_upgrade(scope, send, error)
                return
            except Exception as error:
                log.exception("an upgrade failed")
                await http.refuse_upgrade(scope, send, InvariantError(str(error)))
                return
            offered = scope.get("subprotocols") or [None]
            await send({"type": "websocket.accept", "subprotocol": offered[0]})
            access.status = 101
            self.connections.add(connection)
            held.callback(self.connections.discard, connection)
            await connection.serve()
            access.close_code = connection.close_code

    async def _admit(
        self, scope: Scope, receive: Receive, send: Send, held: ExitStack
    ) -> Connection:
        if route_path(scope) not in RESPONSES:
            raise NotFoundError(f"Unknown request URL: GET {route_path(scope)}.")
        if not self.config.websocket.enabled:
            raise UpgradeRequiredError("WebSocket is switched off here. Use HTTP on this path.")
        service = await self._started()
        principal = service.admission.identify(scope)
        held.enter_context(service.admission.connection(principal))
        lent = scope.get("extensions", {}).get(ABORT_EXTENSION, {})
        return Connection(
            receive=receive,
            send=send,
            principal=principal,
            turns=service.turns,
            config=self.config,
            abort=lent.get("abort"),
        )


async def _drain(connection: Connection, jitter: float) -> None:
    if connection.idle:
        await asyncio.sleep(random.uniform(0, jitter))  # noqa: S311 -- spreads load, no secret
    connection.drain()


def app(
    config: Config, *, profile: Profile | None = None, engine: Engine | None = None
) -> TurnwireApp:
    """Make the ASGI app. ``profile`` and ``engine`` default to what ``config`` names."""
    config.check()
    return TurnwireApp(config, profile=profile, engine=engine)
