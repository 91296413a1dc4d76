"""llama.cpp's own server with the demo model, on a TCP port, as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import aiohttp

from oracle import vocabulary

SERVE = """
import sys, xllamacpp
model, port, leash = sys.argv[1], int(sys.argv[2]), sys.stdin.buffer
params = xllamacpp.CommonParams()
params.model.path = model
params.hostnames, params.port = ["127.0.0.1"], port
params.n_ctx, params.n_parallel, params.kv_unified = 8192, 4, True
params.n_batch = params.n_ubatch = 64
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_slots, params.ui, params.fit_params = True, False, False
server = xllamacpp.Server(params)
leash.read()
"""


class LlamaCppServer:
    """Serves until ``stop``; it ends with this process, however that goes."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-c", SERVE, str(vocabulary.smollm2_path()), str(self.port)]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not self._healthy():
            assert self._child.poll() is None, "llama.cpp ended"
            assert time.monotonic() < deadline, "llama.cpp did not start"
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    async def busy(self, _: Any) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + "/slots") as reply,
        ):
            return sum(slot["is_processing"] for slot in await reply.json())

    def stop(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(2)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
