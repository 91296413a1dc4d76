"""The socket itself: malformed frames, limits, silence, slow and vanished clients.

Case numbers are of docs/faults.md.
"""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from contextlib import suppress
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed

from running import RunningServer, connect, wait_for
from turnwire.config import Config
from turnwire.policy.auth import ANONYMOUS
from turnwire.protocol.events import Event
from turnwire.server.websocket import Connection

SLOW = {"default": {"answer": {"text": "word " * 400}}, "tokens_per_second": 100}
ENDLESS = {"default": {"fault": {"kind": "stall", "after_tokens": 1}}}


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "not json",
        "[]",
        "null",
        "3",
        '"text"',
        "{}",
        '{"type": 7}',
        '{"type": null}',
        '{"type": "response.append"}',
        '{"type": "session.update"}',
        '{"type": "response.create", "model": 3}',
        '{"type": "response.create", "input": "x", "model": "sim-qwen3", "stream_id": ""}',
        '{"type": "response.create", "input": "x", "model": "sim-qwen3", "stream_id": "a b"}',
        '{"type": "response.create", "input": "x", "model": "sim-qwen3", "background": true}',
        '{"type": "response.create", "input": {}, "model": "sim-qwen3"}',
        '{"type": "response.create", "input": "x"}',
        '{"type": "response.create", "input": [{"type": "made_up"}], "model": "sim-qwen3"}',
        '{"type": "response.create", "model": "sim-qwen3", "input": ' + "[" * 10_000,
        b"\xff\xfe",
        b"{",
    ],
)
async def test_a_malformed_frame_gets_one_error_and_the_socket_stays(serve, frame):
    async with connect(serve()) as socket:
        await socket.send(frame)
        error = await socket.recv()
        assert error["type"] == "error"
        assert 400 <= error["status"] < 500
        assert set(error["error"]) == {"type", "code", "message", "param"}
        assert isinstance(error["sequence_number"], int)
        assert (await socket.response("hello"))["status"] == "completed"


async def test_a_binary_frame_is_read_as_json(serve):
    async with connect(serve()) as socket:
        frame = {"type": "response.create", "model": "sim-qwen3", "input": "x"}
        await socket.send(json.dumps(frame).encode())
        assert (await socket.events())[-1]["type"] == "response.completed"


async def test_response_processed_is_swallowed(serve):
    async with connect(serve()) as socket:
        response = await socket.response("x")
        await socket.send({"type": "response.processed", "response_id": response["id"]})
        assert await socket.silent()


async def test_nothing_is_said_before_the_first_frame(serve):
    async with connect(serve()) as socket:
        assert await socket.silent()


async def test_a_frame_over_the_limit_is_explained_and_closed_with_1009(serve):
    server = serve(limits={"frame_bytes": 64 * 1024})
    async with connect(server) as socket:
        await socket.create("x" * 60_000, max_output_tokens=1)
        assert (await socket.events())[-1]["type"] == "response.incomplete"
        await socket.create("x" * 100_000)
        error = await socket.recv()
        assert (error["status"], error["error"]["code"]) == (413, "request_too_large")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_a_message_in_many_fragments(serve):
    async with connect(serve()) as socket:
        frame = json.dumps({"type": "response.create", "model": "sim-qwen3", "input": "é" * 500})
        await socket.connection.send(iter(frame))
        assert (await socket.events())[-1]["type"] == "response.completed"


async def test_a_full_queue_is_answered_429_and_dropped(serve):
    server: RunningServer = serve(SLOW, limits={"queued_per_connection": 2})
    async with connect(server) as socket:
        for _ in range(5):
            await socket.create("x", max_output_tokens=30)
        seen = []
        while len(seen) < 5:
            event = await socket.recv()
            if event["type"] in {"error", "response.incomplete"}:
                seen.append(event)
    errors = [event for event in seen if event["type"] == "error"]
    assert [error["status"] for error in errors] == [429, 429]
    assert "try again in" in errors[0]["error"]["message"]
    assert server.engine.requests == 3


async def test_turns_of_one_key_are_limited(serve):
    server: RunningServer = serve(SLOW, limits={"turns_per_principal": 1})
    async with connect(server) as a, connect(server) as b:
        await a.create("x")
        await a.until("response.output_text.delta")
        error = await b.error("y")
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
        await a.send({"type": "response.cancel"})
        await a.events()
        assert (await b.response("y", max_output_tokens=1))["status"] == "incomplete"


async def test_being_told_to_come_back_later_costs_no_parent(serve):
    script = {"rules": [{"when": {"contains": "quick"}, "answer": {"text": "done"}}], **SLOW}
    server: RunningServer = serve(script, limits={"turns_per_principal": 1})
    async with connect(server) as a, connect(server) as b:
        parent = (await b.response("quick", store=False))["id"]
        await a.create("x")
        await a.until("response.output_text.delta")
        error = await b.error("quick", previous_response_id=parent, store=False)
        assert error["status"] == 429
        await a.send({"type": "response.cancel"})
        await a.events()
        again = await b.response("quick", previous_response_id=parent, store=False)
    assert again["status"] == "completed"


async def test_one_batch_of_events_is_written_before_the_next():
    """A terminal event that waits for a slow reader stays ahead of what the lane's next turn says:
    the session has freed the lane by then."""
    written: list[str] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        written.append(message["text"])

    async def receive() -> Any:
        return {"type": "websocket.disconnect"}

    connection = Connection(
        receive=receive, send=send, principal=ANONYMOUS, turns=cast("Any", None), config=Config()
    )
    batches = [[Event("e", f"{batch}.{n}".encode()) for n in range(3)] for batch in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for batch in batches:
            tasks.create_task(connection.write(batch))
    assert written == [event.body.decode() for batch in batches for event in batch]


async def test_a_silent_response_repeats_in_progress(serve):
    script = {"default": {"answer": {"text": "late"}, "delay": {"first_token_ms": 700}}}
    async with connect(serve(script, server={"keep_alive_seconds": 0.2})) as socket:
        events = await socket.turn("x", stream_id="a")
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[1:4] == ["response.in_progress"] * 3
    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(event["stream_id"] == "a" for event in events)


async def test_no_sign_of_life_outside_a_response(serve):
    async with connect(serve(server={"keep_alive_seconds": 0.05})) as socket:
        assert await socket.silent(0.2)
        await socket.response("x")
        assert await socket.silent(0.2)


async def test_case_36_a_disconnect_stops_the_engine(serve):
    server: RunningServer = serve(SLOW)
    async with connect(server) as socket:
        for lane in "abc":
            await socket.create("x", stream_id=lane)
        await socket.until("response.output_text.delta")
        await wait_for(lambda: server.engine.active == 3)
    await wait_for(lambda: server.engine.active == 0, seconds=0.5)
    assert server.engine.aborted == 3


async def test_case_36_a_vanished_client_stops_the_engine(serve):
    server: RunningServer = serve(ENDLESS)
    async with connect(server) as socket:
        await socket.create("x")
        await socket.until("response.in_progress")
        await wait_for(lambda: server.engine.active == 1)
        socket.connection.transport.abort()
        await wait_for(lambda: server.engine.active == 0, seconds=0.5)


async def test_a_disconnect_stops_a_warm_up(serve):
    server: RunningServer = serve({"prefill_tokens_per_second": 100})
    async with connect(server) as socket:
        await socket.response("word " * 2000, generate=False)
        await wait_for(lambda: server.engine.active == 1)
    await wait_for(lambda: server.engine.active == 0, seconds=0.5)


async def test_a_slow_reader_is_cut_off(serve):
    script = {"default": {"answer": {"text": "word " * 20_000}}, "tokens_per_second": 1_000_000}
    server: RunningServer = serve(
        script, server={"write_deadline_seconds": 0.3, "send_buffer_bytes": 4096}
    )
    raw = sockets.create_connection(("127.0.0.1", server.port))
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    with raw:
        raw.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
            b"Sec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " in raw.recv(4096)
        raw.sendall(_masked({"type": "response.create", "model": "sim-qwen3", "input": "x"}))
        await wait_for(lambda: server.engine.active == 1)
        await wait_for(lambda: server.engine.active == 0)
        await wait_for(lambda: not server.app.connections)
    assert server.engine.aborted == 1


def _masked(frame: dict[str, object]) -> bytes:
    """One client frame of less than 64 KiB, masked with zeros."""
    body = json.dumps(frame).encode()
    return b"\x81\xfe" + len(body).to_bytes(2, "big") + bytes(4) + body


async def test_a_slow_reader_slows_nobody_else(serve):
    script = {"default": {"answer": {"text": "word " * 3000}}, "tokens_per_second": 1_000_000}
    server: RunningServer = serve(script, server={"send_buffer_bytes": 4096})
    async with connect(server, max_queue=1) as slow, connect(server) as quick:
        await slow.create("x")
        await asyncio.sleep(0.1)
        assert (await quick.response("y"))["status"] == "completed"
        assert (await slow.events())[-1]["type"] == "response.completed"


async def test_a_client_that_sends_and_never_reads_is_cut_off(serve):
    server: RunningServer = serve(
        limits={"unread_replies": 50},
        server={"send_buffer_bytes": 4096, "write_deadline_seconds": 5},
    )
    async with connect(server, max_queue=1) as socket:
        with suppress(ConnectionClosed):  # a client that does not read may notice only later
            for _ in range(100_000):
                await socket.send("{}")
        await wait_for(lambda: not server.app.connections)
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()


async def test_ten_thousand_pipelined_frames_are_all_answered(serve):
    server: RunningServer = serve()
    async with connect(server) as socket:
        for _ in range(10):
            for _ in range(1000):
                await socket.send("{}")
            for _ in range(1000):
                assert (await socket.recv())["type"] == "error"
        assert (await socket.response("x"))["status"] == "completed"


async def test_case_28_at_its_age_a_connection_finishes_and_refuses(serve):
    server: RunningServer = serve(SLOW, limits={"connection_seconds": 0.5})
    async with connect(server) as socket:
        await socket.create("x", max_output_tokens=100)
        await socket.until("response.output_text.delta")
        await asyncio.sleep(0.6)
        await socket.create("y", stream_id="late")
        seen = []
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                seen.append(await socket.recv())
    refusals = [event for event in seen if event["type"] == "error"]
    assert [error["error"]["code"] for error in refusals] == ["websocket_connection_limit_reached"]
    assert refusals[0]["status"] == 400
    assert refusals[0]["stream_id"] == "late"
    ends = [event for event in seen if event["type"] == "response.incomplete"]
    assert len(ends) == 1, "what was in flight finished"
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def test_an_idle_connection_is_told_its_age(serve):
    async with connect(serve(limits={"connection_seconds": 0.2})) as socket:
        error = await socket.recv()
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def test_a_fault_of_ours_is_one_response_failed(serve, monkeypatch):
    from turnwire.server.turns import Turns  # noqa: PLC0415

    def explode(*_args: object) -> None:
        raise ValueError("SECRET")

    server: RunningServer = serve()
    monkeypatch.setattr(Turns, "_push", explode)
    async with connect(server) as socket:
        events = await socket.turn("x")
        assert events[-1]["type"] == "response.failed"
        assert "SECRET" not in json.dumps(events)
        monkeypatch.undo()
        assert (await socket.response("y"))["status"] == "completed"


async def test_a_fault_of_ours_before_created_is_one_error(serve, monkeypatch):
    from turnwire.server.opening import Opening  # noqa: PLC0415

    async def explode(*_args: object) -> None:
        raise ValueError("SECRET")

    server: RunningServer = serve()
    monkeypatch.setattr(Opening, "open", explode)
    async with connect(server) as socket:
        error = await socket.error("x")
        assert (error["status"], error["error"]["code"]) == (500, "server_error")
        assert "SECRET" not in json.dumps(error)


async def test_a_fault_in_the_connection_closes_with_1011(serve, monkeypatch):
    from turnwire.protocol.session import Session  # noqa: PLC0415

    def explode(*_args: object) -> None:
        raise ValueError("SECRET")

    server: RunningServer = serve()
    monkeypatch.setattr(Session, "receive", explode)
    async with connect(server) as socket:
        await socket.send("{}")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "internal error")
