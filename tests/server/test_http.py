"""HTTP: JSON and SSE on the same path, the small endpoints, errors, disconnects."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from running import MODEL, RunningServer, connect, text_of, wait_for

TOOL = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}
SLOW = {"default": {"answer": {"text": "word " * 400}}, "tokens_per_second": 100}
SCRIPT = {
    "rules": [
        {
            "when": {"contains": "tool"},
            "answer": {
                "reasoning": "Let me think.",
                "text": "I look.",
                "calls": [{"name": "ls", "arguments": {"path": "é"}}],
            },
        }
    ],
    "default": {"answer": {"text": "Plain answer."}},
}


@asynccontextmanager
async def client(server: RunningServer, **options: Any):
    async with aiohttp.ClientSession(server.url, **options) as session:
        yield session


def body(given: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, **fields}


def parse_sse(stream: str) -> list[tuple[str, str]]:
    """(event, data) of each block; the event of a block without one is empty."""
    found = []
    for block in stream.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("event", ""), lines["data"]))
    return found


async def test_json(serve):
    async with (
        client(serve(SCRIPT)) as session,
        session.post("/v1/responses", json=body()) as answer,
    ):
        assert answer.status == 200
        assert answer.content_type == "application/json"
        response = await answer.json()
    assert response["object"] == "response"
    assert response["status"] == "completed"
    assert text_of(response) == "Plain answer."


async def test_sse(serve):
    async with (
        client(serve(SCRIPT)) as session,
        session.post("/v1/responses", json=body(stream=True)) as answer,
    ):
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        blocks = parse_sse(await answer.text())
    assert blocks[-1] == ("", "[DONE]")
    events = [json.loads(data) for _, data in blocks[:-1]]
    assert [event["type"] for event in events] == [name for name, _ in blocks[:-1]]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def without_ids(value: Any) -> Any:
    """The same, with ids and times replaced: what may differ between two equal turns."""
    if isinstance(value, dict):
        varying = {"id", "item_id", "call_id", "created_at", "completed_at"}
        return {
            k: "*" if k in varying and v is not None else without_ids(v) for k, v in value.items()
        }
    return [without_ids(item) for item in value] if isinstance(value, list) else value


async def test_both_transports_say_the_same(serve):
    server: RunningServer = serve(SCRIPT)
    request = {"tools": [TOOL], "instructions": "x", "metadata": {"a": "b"}, "temperature": 0.5}
    async with connect(server) as socket:
        over_websocket = await socket.turn("Use the tool", **request)
    async with client(server) as session:
        asked = body("Use the tool", stream=True, **request)
        async with session.post("/v1/responses", json=asked) as answer:
            over_sse = [json.loads(data) for _, data in parse_sse(await answer.text())[:-1]]
        async with session.post("/v1/responses", json=body("Use the tool", **request)) as answer:
            as_json = await answer.json()
    # The sim's prefix cache is per connection, its counts are not the transport's.
    for events in (over_websocket, over_sse):
        del events[-1]["response"]["usage"]
    del as_json["usage"]
    assert without_ids(over_sse) == without_ids(over_websocket)
    assert without_ids(as_json) == without_ids(over_websocket[-1]["response"])


async def test_a_stored_response_continues_over_both_transports(serve):
    server: RunningServer = serve(SCRIPT)
    async with client(server) as session:
        async with session.post("/v1/responses", json=body("FIRST")) as answer:
            first = await answer.json()
        async with connect(server) as socket:
            second = await socket.response("SECOND", previous_response_id=first["id"])
        third = body("THIRD", previous_response_id=second["id"])
        async with session.post("/v1/responses", json=third) as answer:
            assert answer.status == 200
    prompt = server.decode(server.engine.prompts[-1])
    assert all(word in prompt for word in ("FIRST", "SECOND", "THIRD"))


async def test_an_unstored_response_cannot_be_continued(serve):
    async with client(serve()) as session:
        async with session.post("/v1/responses", json=body(store=False)) as answer:
            first = await answer.json()
        asked = body(previous_response_id=first["id"])
        async with session.post("/v1/responses", json=asked) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "nope"}, 404, "model_not_found"),
        ({"model": None}, 400, "missing_required_parameter"),
        ({"background": True}, 400, "unsupported_parameter"),
        ({"generate": False}, 400, "unsupported_parameter"),
        ({"temperature": 3}, 400, "invalid_value"),
        ({"previous_response_id": "resp_x"}, 400, "previous_response_not_found"),
    ],
)
async def test_an_error_before_the_response_is_a_status(serve, stream, change, status, code):
    async with client(serve()) as session:
        asked = {**body(), "stream": stream, **change}
        async with session.post("/v1/responses", json=asked) as answer:
            assert answer.status == status
            error = (await answer.json())["error"]
    assert error["code"] == code
    assert set(error) == {"type", "code", "message", "param"}


async def test_stream_id_means_nothing_over_http(serve):
    async with (
        client(serve()) as session,
        session.post("/v1/responses", json=body(stream_id="not a name!")) as answer,
    ):
        assert answer.status == 200


async def test_malformed_json_is_400(serve):
    async with client(serve()) as session:
        for text in ("", "{", "[]", "null", '{"model": 1}'):
            async with session.post("/v1/responses", data=text) as answer:
                assert answer.status == 400
                assert "error" in await answer.json()


async def test_a_failure_in_the_stream_is_response_failed(serve):
    async with client(serve({"default": {"fault": {"kind": "fail"}}})) as session:
        async with session.post("/v1/responses", json=body(stream=True)) as answer:
            assert answer.status == 200
            blocks = parse_sse(await answer.text())
        assert blocks[-2][0] == "response.failed"
        assert blocks[-1] == ("", "[DONE]")
        async with session.post("/v1/responses", json=body()) as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "server_error"


async def test_a_body_over_the_limit_is_413(serve):
    async def chunks():
        for _ in range(10):
            yield b"x" * 1000

    async with client(serve(limits={"body_bytes": 2048})) as session:
        for sent in ({"json": body("x" * 4000)}, {"data": chunks()}):
            async with session.post("/v1/responses", **sent) as answer:
                assert answer.status == 413
                assert (await answer.json())["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_stops_the_engine(serve, stream):
    server: RunningServer = serve(SLOW)
    async with client(server) as session:

        async def ask() -> None:
            async with session.post("/v1/responses", json=body(stream=stream)) as answer:
                await answer.read()

        asking = asyncio.create_task(ask())
        await wait_for(lambda: server.engine.active == 1)
        asking.cancel()
        await asyncio.wait([asking])
    await wait_for(lambda: server.engine.active == 0, seconds=0.5)
    assert server.engine.aborted == 1


async def test_a_silent_stream_repeats_in_progress(serve):
    script = {"default": {"answer": {"text": "late"}, "delay": {"first_token_ms": 500}}}
    async with (
        client(serve(script, server={"keep_alive_seconds": 0.1})) as session,
        session.post("/v1/responses", json=body(stream=True)) as answer,
    ):
        kinds = [kind for kind, _ in parse_sse(await answer.text())]
    assert kinds.count("response.in_progress") >= 4


async def test_a_get_without_an_upgrade_is_426(serve):
    async with client(serve()) as session, session.get("/v1/responses") as answer:
        assert answer.status == 426
        assert answer.headers["upgrade"] == "websocket"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_another_method_is_405(serve, method):
    async with client(serve()) as session:
        for path in ("/v1/responses", "/v1/models", "/health"):
            async with session.request(method, path) as answer:
                assert answer.status == 405
                assert (await answer.json())["error"]["code"] == "method_not_allowed"


async def test_another_path_is_404(serve):
    async with client(serve()) as session:
        for path in ("/", "/v1", "/v1/chat/completions", "/debug/turns"):
            async with session.get(path) as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["code"] == "not_found"


async def test_models(serve):
    async with client(serve(model={"aliases": ["other/name"]})) as session:
        async with session.get("/v1/models") as answer:
            models = await answer.json()
        assert [model["id"] for model in models["data"]] == [MODEL]
        assert models["object"] == "list"
        for name in (MODEL, "other/name"):
            async with session.get(f"/v1/models/{name}") as answer:
                assert (await answer.json())["id"] == name
        async with session.get("/v1/models/nope") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "model_not_found"


async def test_health_and_readiness(serve):
    server: RunningServer = serve()
    async with client(server) as session:
        for path in ("/health", "/ready"):
            async with session.get(path) as answer:
                assert answer.status == 200
        async with session.head("/health") as answer:
            assert answer.status == 200
        server.engine._started = False
        async with session.get("/ready") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "server_is_overloaded"
        async with session.get("/health") as answer:
            assert answer.status == 200
        server.engine._started = True


async def test_keys_and_origins_guard_http_as_well(serve):
    server = serve(auth={"keys": {"a": "sk-0123456789abcdef"}}, log={"debug": True})
    good = {"Authorization": "Bearer sk-0123456789abcdef"}
    async with client(server) as session:
        for method, path in (
            ("POST", "/v1/responses"),
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", "/debug/turns"),
        ):
            sent = {"json": body()} if method == "POST" else {}
            async with session.request(method, path, **sent) as answer:
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
            evil = {**good, "Origin": "https://evil.example"}
            async with session.request(method, path, headers=evil, **sent) as answer:
                assert answer.status == 403
            async with session.request(method, path, headers=good, **sent) as answer:
                assert answer.status == 200
        for path in ("/health", "/ready"):
            async with session.get(path) as answer:
                assert answer.status == 200


async def test_a_listed_origin_gets_cors_headers(serve):
    page = {"Origin": "https://app.example"}
    async with client(serve(server={"origins": ["https://app.example"]})) as session:
        asks = {**page, "Access-Control-Request-Method": "POST"}
        async with session.options("/v1/responses", headers=asks) as answer:
            assert answer.status == 200
        async with session.post("/v1/responses", json=body(), headers=page) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_debug_turns_are_served_with_debug_only(serve):
    server: RunningServer = serve(log={"debug": True, "debug_turns": 2})
    async with client(server) as session:
        for _ in range(3):
            async with session.post("/v1/responses", json=body()) as answer:
                last = await answer.json()
        async with session.get("/debug/turns") as answer:
            records = (await answer.json())["data"]
    assert len(records) == 2
    assert records[-1]["response_id"] == last["id"]
    assert records[-1]["outcome"] == "completed"
    assert records[-1]["prompt_tokens"] == last["usage"]["input_tokens"]


async def test_a_turns_tokens_are_shown_to_its_owner_only(serve):
    keys = {"ann": "sk-ann-0123456789abcdef", "bob": "sk-bob-0123456789abcdef"}
    server: RunningServer = serve(log={"debug": True}, auth={"keys": keys})
    headers = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
    async with client(server) as session:
        async with session.post("/v1/responses", json=body(), headers=headers["ann"]) as answer:
            response = await answer.json()
        path = f"/debug/turns/{response['id']}"
        async with session.get(path, headers=headers["ann"]) as answer:
            dump = await answer.json()
        for others, status in ((headers["bob"], 404), ({}, 401)):
            async with session.get(path, headers=others) as answer:
                assert answer.status == status
    sampled = [span for span in dump["spans"] if span["origin"] == "sampled"]
    assert len(sampled) == 1
    assert len(sampled[0]["token_ids"]) == response["usage"]["output_tokens"]
    assert sum(len(span["token_ids"]) for span in dump["spans"]) == dump["tokens"]
    assert server.decode(sampled[0]["token_ids"]) == sampled[0]["text"]


async def test_tools_are_refused_where_calls_would_come_back_as_text(serve, profile):
    template = (
        "{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}<|im_start|>"
        "{{ m.content }}{% for c in m.tool_calls %}CALL {{ c.function.name }}{% endfor %}"
        "<|im_end|>{% endfor %}"
    )
    server: RunningServer = serve(of=profile.with_template(template))
    tool = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
    async with client(server) as session:
        async with session.post("/v1/responses", json=body(tools=[tool])) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == "tools"
        asked = body(tools=[tool], tool_choice="none")
        async with session.post("/v1/responses", json=asked) as answer:
            assert answer.status == 200
            assert text_of(await answer.json())


async def test_a_slow_sse_reader_is_cut_off(serve):
    script = {"default": {"answer": {"text": "word " * 20_000}}, "tokens_per_second": 1_000_000}
    server: RunningServer = serve(
        script, server={"write_deadline_seconds": 0.3, "send_buffer_bytes": 4096}
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    text = json.dumps(body(stream=True)).encode()
    writer.write(
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        % (len(text), text)
    )
    await wait_for(lambda: server.engine.requests == 1)
    await wait_for(lambda: server.engine.active == 0)
    assert server.engine.aborted == 1
    writer.transport.abort()
    del reader
