"""uvicorn's protocols, with the gaps closed that an app cannot reach.

The ``websockets`` and ``h11`` libraries still do all the parsing; this adds what happens around it:
half-open connections are dropped, fragments stay cheap, and a 1009 comes with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from turnwire.errors import TooLargeError
from turnwire.protocol.events import error_event
from turnwire.server.websocket import ABORT_EXTENSION

if TYPE_CHECKING:
    from asyncio import Transport

    import h11
    from websockets.http11 import Request

MESSAGE_TOO_BIG = 1009


def http_protocol(request_seconds: float) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol, impatient with connections that send no whole request."""

    class HttpProtocol(H11Protocol):
        """One connection before, or without, an upgrade."""

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            """Start the clock against half-open and trickling clients (slowloris)."""
            super().connection_made(transport)
            self.patience = self.loop.call_later(request_seconds, self.drop_if_silent)

        def drop_if_silent(self) -> None:
            """Drop a connection that has sent no request, unless it was upgraded."""
            if self.cycle is None and self.transport.get_protocol() is self:
                self.transport.abort()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            """Stop the clock, which would keep this connection in memory until it rings."""
            self.patience.cancel()
            super().handle_websocket_upgrade(event)

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop the clock."""
            self.patience.cancel()
            super().connection_lost(exc)

    return HttpProtocol


class SocketProtocol(WebSocketsSansIOProtocol):
    """One socket: lends its abort to the app, explains a 1009, and joins fragments in place."""

    def handle_connect(self, event: Request) -> None:
        """Offer the app a way to drop a client that does not even read its close frame."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions[ABORT_EXTENSION] = {"abort": self.transport.abort}

    def handle_cont(self, event: Frame) -> None:
        """Join fragments as they come: a list of a million one-byte ones would cost 60 MB."""
        joined: object = self.frames[0]
        if not isinstance(joined, bytearray):
            joined = bytearray(self.frames[0])
            self.frames = cast("list[bytes]", [joined])
        joined += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Say in an ``error`` event why the socket closes with 1009, before it does."""
        closing = self.conn.close_sent
        if closing is not None and closing.code == MESSAGE_TOO_BIG and not self.close_sent:
            error = TooLargeError(
                f"The message is larger than the limit of {self.config.ws_max_size} bytes."
            )
            frame = Frame(Opcode.TEXT, error_event(error).body)
            self.transport.write(frame.serialize(mask=False))
        super().handle_parser_exception()
