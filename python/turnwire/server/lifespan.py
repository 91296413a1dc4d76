"""Serving the app with uvicorn: the socket, the signals, and a drain that loses no response.

Left alone, ASGI servers kill the WebSocket responses in flight on SIGTERM: uvicorn closes them at
once, Granian drops the socket (emmett-framework/granian#796). Here the first signal drains and the
second one ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn

from turnwire.errors import ConfigError
from turnwire.server.socket import SocketProtocol, http_protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from turnwire.config import Config
    from turnwire.server.app import TurnwireApp

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel accepts ahead of us: all agents reconnect at once after a restart."""

MAX_HEADER_BYTES = 64 * 1024
"""Request line and headers: Codex sends a kilobyte of JSON in one of its own."""

HTTP_KEEP_ALIVE_SECONDS = 65
"""Longer than proxies and clients keep an idle connection, lest they send into a closing one."""

POLL_SECONDS = 0.05

CLOSING_SECONDS = 2
"""After the drain, how long uvicorn waits for sockets to close."""


def bind(config: Config) -> socket.socket:
    """Return the listening socket. Raises ConfigError when the address cannot be had.

    Its send buffer is inherited by every accepted socket: by default the kernel would hold
    4 MB for a reader that does not read, before anyone notices.
    """
    host, port = config.server.host, config.server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, config.server.send_buffer_bytes
            )
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {reason}. Is another server running there? "
            "Choose another one with --port.",
            param="server.port",
        ) from error
    listener.set_inheritable(True)
    return listener


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains the app before it closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: TurnwireApp,
        *,
        on_started: Callable[[], None] | None = None,
    ) -> None:
        """Serve ``app``; ``on_started`` is called once connections are accepted."""
        super().__init__(config)
        self._app = app
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, then say so."""
        await super().startup(sockets)
        if self.started and self._on_started is not None:
            self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, end now on the second, whichever they are.

        uvicorn would also raise the signal again when all is done: a drained server exits with 0.
        """
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, still answering ``/ready`` with 503; then let uvicorn close what is left."""
        log.info("draining: no new responses; a second signal ends at once")
        drain = asyncio.create_task(self._app.drain(), name="drain")
        while not drain.done():
            await asyncio.wait([drain], timeout=POLL_SECONDS)
            if self.force_exit and not drain.done():
                drain.cancel()
                with suppress(asyncio.CancelledError):
                    await drain
                await self._app.drain(seconds=0)
                break
        forced, self.force_exit = (
            self.force_exit,
            False,
        )  # the lifespan still has to stop the engine
        await super().shutdown(sockets)
        self.force_exit = forced


def uvicorn_config(app: TurnwireApp) -> uvicorn.Config:
    """Return how uvicorn is to serve the app."""
    config = app.config
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http_protocol(config.server.request_seconds),
        ws=SocketProtocol,
        ws_max_size=config.limits.frame_bytes,
        ws_ping_interval=config.websocket.ping_seconds,
        ws_ping_timeout=config.websocket.ping_timeout_seconds,
        ws_per_message_deflate=config.websocket.compression,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=config.server.root_path,
        backlog=BACKLOG,
        timeout_keep_alive=HTTP_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )


async def serve(
    app: TurnwireApp, listener: socket.socket, *, on_started: Callable[[], None] | None = None
) -> None:
    """Serve until a signal, and drain. Raises StartupError when the engine cannot start."""
    await app.startup()
    # What is loaded now stays: the collector need not walk it again. A full collection would hold
    # the loop for tens of milliseconds, and wait until a quarter as much garbage has come together
    # (CPython 3.11's TaskGroup leaves some kilobytes of cycles for each connection that ends).
    gc.collect()
    gc.freeze()
    gc.collect()
    server = DrainingServer(uvicorn_config(app), app, on_started=on_started)
    await server.serve(sockets=[listener])
