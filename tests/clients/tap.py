"""A tap on the wire: a TCP relay between a client and the server that keeps what went by.

It changes nothing and knows no protocol; the bytes are read afterwards, with the ``websockets``
library's own parser.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from websockets.frames import Opcode
from websockets.protocol import Protocol, Side


@dataclass
class Wire:
    """One connection's bytes, each way."""

    from_client: bytearray = field(default_factory=bytearray)
    from_server: bytearray = field(default_factory=bytearray)

    @property
    def request_line(self) -> str:
        return self.from_client.split(b"\r\n", 1)[0].decode()

    @property
    def status(self) -> int:
        return int(self.from_server.split(b" ", 2)[1])

    @property
    def upgraded(self) -> bool:
        return self.from_server.startswith(b"HTTP/1.1 101 ")

    @property
    def client_frames(self) -> list[dict[str, Any]]:
        """The JSON messages that the client sent over WebSocket."""
        return _messages(Side.SERVER, self.from_client)

    @property
    def server_events(self) -> list[dict[str, Any]]:
        """The JSON messages that the server sent over WebSocket."""
        return _messages(Side.CLIENT, self.from_server)


def _messages(side: Side, raw: bytes | bytearray) -> list[dict[str, Any]]:
    _, _, frames = bytes(raw).partition(b"\r\n\r\n")  # the handshake was theirs; here it is over
    reader = Protocol(side, max_size=None)
    reader.receive_data(frames)
    return [
        json.loads(frame.data) for frame in reader.events_received() if frame.opcode is Opcode.TEXT
    ]


class Tap:
    """Relays ``port`` to ``target`` until closed. ``wires`` are its connections, oldest first."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.wires: list[Wire] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._sockets]:
            with suppress(OSError):  # already gone
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            wire = Wire()
            self.wires.append(wire)
            for source, sink, kept in (
                (client, server, wire.from_client),
                (server, client, wire.from_server),
            ):
                threading.Thread(target=_relay, args=(source, sink, kept), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):  # the other side has gone: so be it
        while piece := source.recv(65536):
            kept += piece
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
