"""Inside somebody else's service: under a prefix, without a lifespan of its own."""

from __future__ import annotations

import asyncio
import json

import pytest
import uvicorn
from aiohttp import ClientSession
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

import turnwire
from running import MODEL, connect, wait_for
from turnwire.engine.sim import Script, SimEngine
from turnwire.errors import ConfigError


@pytest.fixture
def mounted(profile):
    engine = SimEngine(Script.parse(json.dumps({"tokens_per_second": 5000})), profile, model=MODEL)
    app = turnwire.app(turnwire.Config(), profile=profile, engine=engine)
    hello = Route("/hello", lambda _: PlainTextResponse("hi"))
    return app, Starlette(routes=[hello, Mount("/llm", app)])


async def test_under_a_prefix_on_plain_uvicorn(mounted):
    app, service = mounted
    config = uvicorn.Config(service, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    await wait_for(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with connect(f"ws://127.0.0.1:{port}/llm/v1/responses") as socket:
            assert (await socket.response("hello"))["status"] == "completed"
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/llm/v1/models") as answer:
                assert (await answer.json())["data"][0]["id"] == MODEL
            async with session.get("/hello") as answer:
                assert await answer.text() == "hi"
            async with session.get("/llm/hello") as answer:
                assert answer.status == 404
    finally:
        server.should_exit = True
        await running
        await app.shutdown()


def test_by_starlettes_test_client(mounted):
    app, _ = mounted
    with TestClient(app) as client:
        asked = {"model": MODEL, "input": "hello"}
        assert client.post("/v1/responses", json=asked).json()["status"] == "completed"
        with client.websocket_connect("/v1/responses") as socket:
            socket.send_json({"type": "response.create", **asked})
            assert socket.receive_json()["type"] == "response.created"


def test_a_public_bind_without_keys_is_refused():
    with pytest.raises(ConfigError, match=r"auth\.keys"):
        turnwire.app(turnwire.Config(server={"host": "0.0.0.0"}))
