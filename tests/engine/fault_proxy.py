"""A TCP proxy that spoils what comes back from an engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes of an answer, ``after`` so many of one connection."""

    kind: Literal["none", "delay", "throttle", "one_byte", "reset", "half_close", "black_hole"]
    after: int = 0
    seconds: float = 0.1


class FaultProxy:
    """Listens on a free port and forwards to ``port``; ``fault`` holds for new connections."""

    def __init__(self, port: int) -> None:
        self.fault = Fault("none")
        self.open = 0
        self.accepted = 0
        self._upstream = port
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections from now on, until ``start``."""
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self.fault
        self.open += 1
        self.accepted += 1
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._upstream)
            up = asyncio.create_task(self._copy(reader, forth, Fault("none")))
            down = asyncio.create_task(self._copy(back, writer, fault))
            # Whoever goes first takes the other along: a client that leaves must be noticed.
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task
            forth.close()
        finally:
            writer.close()
            self.open -= 1

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, fault: Fault
    ) -> None:
        passed = 0
        while part := await source.read(65536):
            if fault.kind in {"reset", "half_close", "black_hole"}:
                part = part[: max(fault.after - passed, 0)]
                passed += len(part)
                target.write(part)
                await target.drain()
                if passed >= fault.after:
                    await self._strike(fault, target)
                    return
                continue
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            step = {"one_byte": 1, "throttle": 256}.get(fault.kind, len(part))
            for start in range(0, len(part), step):
                target.write(part[start : start + step])
                await target.drain()
                if fault.kind == "throttle":
                    await asyncio.sleep(0.005)
                elif fault.kind == "one_byte":
                    await asyncio.sleep(0)
        if target.can_write_eof():
            target.write_eof()

    async def _strike(self, fault: Fault, target: asyncio.StreamWriter) -> None:
        if fault.kind == "black_hole":
            await asyncio.Event().wait()
        elif fault.kind == "half_close":
            target.write_eof()
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(0.02)  # what was passed on is there before the reset
            plug = target.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            target.transport.abort()
