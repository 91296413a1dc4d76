"""A real server in a thread of its own, and a bare WebSocket client that speaks the protocol."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvloop
import websockets

from turnwire import app as turnwire_app
from turnwire.config import Config
from turnwire.engine.sim import Script, SimEngine
from turnwire.server.lifespan import DrainingServer, bind, uvicorn_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from turnwire._core import Profile

TERMINAL = {"response.completed", "response.failed", "response.incomplete", "error"}

MODEL = "sim-qwen3"

QUICK = {"tokens_per_second": 5000, "prefill_tokens_per_second": 1_000_000}
"""The clock of scripts that set no other."""

Event = dict[str, Any]


class RunningServer:
    """uvicorn, uvloop, our app and an engine (the sim, unless given), on a free port."""

    def __init__(
        self,
        profile: Profile,
        script: dict[str, Any],
        *,
        instead_of_sim: Any = None,
        **sections: Any,
    ) -> None:
        quick = {"drain_seconds": 0, "drain_jitter_seconds": 0}
        sections["server"] = {"port": 0, **quick, **sections.get("server", {})}
        self.config = Config(**sections)
        text = json.dumps({**QUICK, **script})
        self.engine: Any = instead_of_sim or SimEngine(
            Script.parse(text), profile, model=MODEL, record=True
        )
        self.profile = profile
        self.app = turnwire_app(self.config, profile=profile, engine=self.engine)
        self._listener = bind(self.config)
        self.port: int = self._listener.getsockname()[1]
        self._server = DrainingServer(uvicorn_config(self.app), self.app)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    def start(self) -> RunningServer:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive(), self._failed
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)
        return self

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._server.serve(sockets=[self._listener]))
        except BaseException as error:
            self._failed = error
            raise

    def call(self, make: Callable[[], Any]) -> Any:
        """Run a coroutine function in the server's loop."""

        async def run() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def signal(self) -> None:
        """What SIGTERM does."""
        self._server.handle_exit(15, None)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"

    def stop(self) -> None:
        self.signal()
        self.join()
        assert self._failed is None, self._failed

    def decode(self, ids: list[int]) -> str:
        return self.profile.decode(ids)


class Socket:
    """One connection. Frames are dicts; a read that takes longer than 10 s fails."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection

    async def send(self, frame: dict[str, Any] | str | bytes) -> None:
        await self.connection.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    async def create(self, given: Any = None, /, **fields: Any) -> None:
        if given is not None:
            fields["input"] = given
        await self.send({"type": "response.create", "model": MODEL, **fields})

    async def recv(self, seconds: float = 10) -> Event:
        async with asyncio.timeout(seconds):
            message = await self.connection.recv()
        assert isinstance(message, str), "a binary frame"
        event: Event = json.loads(message)
        return event

    async def events(self, seconds: float = 10) -> list[Event]:
        """Everything up to the next terminal event."""
        found = [await self.recv(seconds)]
        while found[-1]["type"] not in TERMINAL:
            found.append(await self.recv(seconds))
        return found

    async def turn(self, given: Any = None, /, **fields: Any) -> list[Event]:
        await self.create(given, **fields)
        return await self.events()

    async def response(self, given: Any = None, /, **fields: Any) -> dict[str, Any]:
        """The final Response of one turn, which must not be an error."""
        last = (await self.turn(given, **fields))[-1]
        assert last["type"] != "error", last
        response: dict[str, Any] = last["response"]
        return response

    async def error(self, given: Any = None, /, **fields: Any) -> dict[str, Any]:
        """The one ``error`` event of a refused create."""
        events = await self.turn(given, **fields)
        assert [event["type"] for event in events] == ["error"]
        return events[0]

    async def silent(self, seconds: float = 0.15) -> bool:
        """Whether nothing arrives for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self.connection.recv()
        except TimeoutError:
            return True
        return False

    async def until(self, kind: str) -> list[Event]:
        found = [await self.recv()]
        while found[-1]["type"] != kind:
            found.append(await self.recv())
        return found


@asynccontextmanager
async def connect(server: RunningServer | str, **options: Any) -> AsyncIterator[Socket]:
    url = server if isinstance(server, str) else server.ws_url
    async with websockets.connect(url, max_size=None, proxy=None, **options) as connection:
        yield Socket(connection)


async def wait_for(condition: Callable[[], object], seconds: float = 5) -> None:
    """Poll until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def answer_to(call: dict[str, Any], output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}
