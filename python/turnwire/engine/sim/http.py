"""How uvicorn serves the sim, so that it can also reset a connection on purpose."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnwire.engine.sim.reply import ABORT_EXTENSION

if TYPE_CHECKING:
    from asyncio import Transport
    from collections.abc import Callable
    from types import FrameType

    from starlette.types import Receive, Scope, Send

    from turnwire.engine.sim.app import SimApp

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, zero seconds: RST instead of FIN

CLOSING_SECONDS = 1


class ResettingProtocol(H11Protocol):
    """uvicorn's HTTP, whose app may reset the connection."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Lend the app a reset of this connection."""
        super().connection_made(transport)
        served = self.app

        def reset() -> None:
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
            transport.abort()

        async def lend(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[ABORT_EXTENSION] = {"abort": reset}
            await served(scope, receive, send)

        self.app = lend


def uvicorn_config(app: SimApp) -> uvicorn.Config:
    """Return how uvicorn is to serve the app."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=ResettingProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )


class SimServer(uvicorn.Server):
    """Says when it serves, stops on the first signal, and exits with 0."""

    def __init__(self, app: SimApp, *, on_started: Callable[[], None] | None = None) -> None:
        super().__init__(uvicorn_config(app))
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, then say so."""
        await super().startup(sockets)
        if self.started and self._on_started is not None:
            self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End what is in flight; left alone, uvicorn raises the signal again at the end."""
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True
