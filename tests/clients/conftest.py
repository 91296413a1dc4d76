"""A running server with the sim engine, for clients that are not ours."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from oracle import vocabulary
from turnwire import _core
from turnwire.config import Config
from turnwire.engine.sim import Script, SimEngine
from turnwire.server.app import TurnwireApp
from turnwire.server.lifespan import DrainingServer, bind, uvicorn_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import uvicorn


@dataclass(frozen=True)
class Running:
    """Where the server is, and what its engine saw."""

    host: str
    port: int
    model: str
    engine: SimEngine

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"


@pytest.fixture(scope="session")
def qwen3_profile() -> _core.Profile:
    """Loaded once: three seconds."""
    return _core.Profile.from_hf(str(vocabulary.qwen3_path()))


@pytest.fixture
def sim_server(qwen3_profile: _core.Profile) -> Iterator[Callable[..., Running]]:
    """Call it with a script, and settings by section: it serves until the test is over."""
    stops: list[Callable[[], None]] = []

    def start(script: dict[str, Any], **settings: dict[str, Any]) -> Running:
        sections = {"server": {"port": 0, "drain_seconds": 0, "drain_jitter_seconds": 0}} | settings
        config = Config(**sections)
        engine = SimEngine(
            Script.parse(json.dumps(script)), qwen3_profile, model="sim-qwen3", record=True
        )
        app = TurnwireApp(config, profile=qwen3_profile, engine=engine)
        listener = bind(config)
        host, port = listener.getsockname()[:2]
        server = DrainingServer(uvicorn_config(app), app)
        thread = threading.Thread(target=_serve, args=(server, app, listener), daemon=True)
        thread.start()

        def stop() -> None:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive(), "the server did not stop"

        stops.append(stop)
        return Running(host, port, engine.model, engine)

    yield start
    for stop in stops:
        stop()


def _serve(server: uvicorn.Server, app: TurnwireApp, listener: Any) -> None:
    async def run() -> None:
        await app.startup()
        await server.serve(sockets=[listener])

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())
