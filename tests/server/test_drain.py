"""Stopping: nothing in flight is lost, and everyone learns that they must go elsewhere."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from running import RunningServer, connect, wait_for

SLOW = {"default": {"answer": {"text": "word " * 400}}, "tokens_per_second": 100}
PATIENT = {"drain_seconds": 20, "drain_jitter_seconds": 0}


async def closing(socket) -> tuple[list[dict], int]:
    """What still arrives, and the code of the close frame."""
    events = []
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            events.append(await socket.recv())
    assert closed.value.rcvd is not None
    return events, closed.value.rcvd.code


async def test_a_response_in_flight_is_finished_then_1012(serve):
    server: RunningServer = serve(SLOW, server=PATIENT)
    async with connect(server) as socket:
        await socket.create("x", max_output_tokens=60)
        await socket.until("response.output_text.delta")
        server.signal()
        events, code = await closing(socket)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["usage"]["output_tokens"] == 60
    assert code == 1012
    server.join()
    assert not server.engine.ready, "the engine was stopped"


async def test_while_draining_everything_new_is_refused_with_503(serve):
    server: RunningServer = serve(SLOW, server=PATIENT)
    async with connect(server) as socket:
        await socket.create("x", stream_id="a", max_output_tokens=100)
        await socket.until("response.output_text.delta")
        server.signal()
        async with aiohttp.ClientSession(server.url) as session:
            while True:
                async with session.get("/ready") as answer:
                    if answer.status == 503:
                        break
                await asyncio.sleep(0.01)
            async with session.get("/health") as answer:
                assert answer.status == 200
            asked = {"model": "sim-qwen3", "input": "x"}
            async with session.post("/v1/responses", json=asked) as answer:
                assert answer.status == 503
        with pytest.raises(InvalidStatus) as refused:
            async with connect(server):
                pass
        assert refused.value.response.status_code == 503
        await socket.create("new", stream_id="b")
        events, code = await closing(socket)
    errors = [event for event in events if event["type"] == "error"]
    assert [error["error"]["code"] for error in errors] == ["server_is_overloaded"]
    assert errors[0]["status"] == 503
    assert events[-1]["type"] == "response.incomplete"
    assert code == 1012


async def test_an_idle_socket_is_closed_with_1012(serve):
    server: RunningServer = serve(server={"drain_seconds": 5, "drain_jitter_seconds": 0.2})
    async with connect(server) as one, connect(server) as two:
        server.signal()
        for socket in (one, two):
            events, code = await closing(socket)
            assert (events, code) == ([], 1012)


async def test_what_takes_too_long_ends_in_response_failed(serve):
    server: RunningServer = serve(SLOW, server={"drain_seconds": 0.2, "drain_jitter_seconds": 0})
    async with connect(server) as socket:
        await socket.create("x")
        await socket.until("response.output_text.delta")
        server.signal()
        events, code = await closing(socket)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] in {"server_error", "server_is_overloaded"}
    assert code == 1012
    await wait_for(lambda: server.engine.active == 0)


async def test_a_second_signal_ends_it_now(serve):
    server: RunningServer = serve(SLOW, server=PATIENT)
    async with connect(server) as socket:
        await socket.create("x")
        await socket.until("response.output_text.delta")
        server.signal()
        await asyncio.sleep(0.1)
        server.signal()
        events, code = await closing(socket)
    assert events[-1]["type"] == "response.failed"
    assert code == 1012
    server.join()


async def test_a_stream_over_http_is_finished(serve):
    server: RunningServer = serve(SLOW, server=PATIENT)
    asked = {"model": "sim-qwen3", "input": "x", "stream": True, "max_output_tokens": 60}
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.post("/v1/responses", json=asked) as answer,
    ):
        await answer.content.readline()
        server.signal()
        text = (await answer.content.read()).decode()
    assert "response.incomplete" in text
    assert text.endswith("data: [DONE]\n\n")
    server.join()


async def test_drain_can_be_called_by_whoever_mounts_the_app(serve):
    server: RunningServer = serve()
    async with connect(server) as socket:
        await asyncio.to_thread(server.call, lambda: server.app.drain(seconds=1))
        assert (await closing(socket))[1] == 1012
        assert not server.app.connections
