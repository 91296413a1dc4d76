"""``SimApp`` on a free port, by uvicorn in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import uvloop

from turnwire.config import Config
from turnwire.engine.sim import Script, SimEngine
from turnwire.engine.sim.app import SimApp
from turnwire.engine.sim.http import SimServer
from turnwire.server.lifespan import bind

QUICK = {"tokens_per_second": 2000, "prefill_tokens_per_second": 1_000_000}


class RunningSim:
    """Serves until ``stop``. ``options`` are those of :class:`SimApp`."""

    def __init__(self, codec: Any, script: dict[str, Any] | None = None, **options: Any) -> None:
        text = json.dumps({**QUICK, **(script or {})})
        self.engine = SimEngine(Script.parse(text), codec, model="sim-model", record=True)
        self.app = SimApp(self.engine, codec, **options)
        self._listener = bind(Config(server={"port": 0}))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = SimServer(self.app)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive() and time.monotonic() < deadline, "no sim"
            time.sleep(0.005)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=[self._listener]))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the sim did not stop"
        self._listener.close()
