"""What is particular to the vLLM adapter: the wire (0.32), salts, priorities, refusals."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from engine.engine_support import listen, request
from engine.running_sim import RunningSim
from turnwire.engine.base import Sampling, ToolCallConstraint
from turnwire.engine.remote import Waits, reason_in
from turnwire.engine.served import NEUTRAL, salted
from turnwire.engine.sim.fault import WireFault
from turnwire.engine.vllm import COMPLETIONS, GENERATE, VllmEngine
from turnwire.errors import (
    ContextLengthError,
    EngineError,
    OverloadedError,
    StartupError,
    UnsupportedParameterError,
)

HASTE = Waits(start=0.3, connect=1, first_token=1, silence=1)


class Recorded:
    """A server that notes what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.generate = web.Response(status=403)
        self.answers: list[web.Response] = []
        self.models: Any = {"data": [{"id": "m", "max_model_len": 100}, {"id": "n"}]}
        self.health = 200
        self.replies: dict[str, Any] = {}

    async def _any(self, asked: web.Request) -> web.StreamResponse:
        self.headers.append(dict(asked.headers))
        if asked.path == "/health":
            return web.Response(status=self.health)
        if asked.path == "/v1/models":
            return web.json_response(self.models)
        if asked.path in self.replies:
            return web.json_response(self.replies[asked.path])
        body = await asked.json()
        if body == {}:
            return self.generate
        self.bodies.append(body)
        return self.answers.pop(0)

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def sse(*events: object) -> web.Response:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return web.Response(text=text, content_type="text/event-stream")


FINAL = {"choices": [{"index": 0, "token_ids": [5, 2], "finish_reason": "stop"}]}
COUNTED = {
    "choices": [],
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}


@asynccontextmanager
async def attached(recorded: Recorded, **options):
    async with recorded.serving() as url:
        engine = VllmEngine(url, waits=HASTE, **options)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()


async def test_the_generate_routes_body():
    recorded = Recorded()
    recorded.generate, recorded.answers = web.Response(status=422), [sse(FINAL, COUNTED)]
    async with attached(recorded, api_key="secret-key") as engine:
        assert (engine.route, engine.default_sampling) == (GENERATE, NEUTRAL)
        sampling = Sampling(temperature=0.5, top_k=7, seed=-1)
        asked = request(sampling=sampling, max_tokens=9, affinity="conn-1", priority=2)
        heard = await listen(engine, asked)
    assert (heard.ids, heard.finish_reason, heard.cached_tokens) == ([5, 2], "stop", 2)
    assert recorded.bodies == [
        {
            "model": "m",
            "request_id": "resp_1",
            "stream": True,
            "stream_options": {"include_usage": True},
            "token_ids": [1, 2, 3],
            "sampling_params": {
                "max_tokens": 9,
                "stop_token_ids": [2],
                "temperature": 0.5,
                "top_k": 7,
                "seed": 2**63 - 1,
                "detokenize": False,
            },
        }
    ]
    assert recorded.headers[-1]["Authorization"] == "Bearer secret-key"
    assert recorded.headers[-1]["X-Session-ID"] == "conn-1"


async def test_the_completions_routes_body():
    recorded = Recorded()
    recorded.answers = [sse(FINAL, COUNTED)] * 2
    async with attached(recorded, model="m", priorities=True, salt=b"s") as engine:
        assert (engine.route, engine.default_sampling) == (COMPLETIONS, Sampling())
        await listen(engine, request(cache_scope="alice", priority=-1))
    body = recorded.bodies[0]
    assert (body["prompt"], body["return_token_ids"], body["priority"]) == ([1, 2, 3], True, 1)
    assert body["cache_salt"] == salted(b"s", "alice") != salted(b"s", "bob")
    assert not set(body["cache_salt"]) & set("@/\\\0")  # vLLM refuses these
    assert "temperature" not in body


async def test_scopes_do_not_share_a_cache(profile):
    sim = RunningSim(profile)
    engine = VllmEngine(sim.url, salt=b"secret")
    await engine.start()
    try:
        cached = [
            (await listen(engine, request(range(99), cache_scope=scope))).cached_tokens
            for scope in ("a", "a", "b")
        ]
    finally:
        await engine.close()
        sim.stop()
    assert cached == [0, 96, 0]


async def test_urgent_requests_go_first(profile):
    script = {"max_sequences": 1, "tokens_per_second": 50}
    sim = RunningSim(profile, script, priorities=True)
    engine = VllmEngine(sim.url, priorities=True)
    await engine.start()
    order: list[int] = []

    async def one(priority: int) -> None:
        await listen(engine, request([priority + 5] * 9, priority=priority, max_tokens=5))
        order.append(priority)

    try:
        async with asyncio.TaskGroup() as group:
            for priority in (0, -1, 0, 1):
                group.create_task(one(priority))
                await asyncio.sleep(0.02)
    finally:
        await engine.close()
        sim.stop()
    assert order == [0, 1, 0, -1]


async def test_the_context_is_the_smaller_of_two_limits():
    for wanted, expected in ((None, 100), (50, 50), (500, 100)):
        async with attached(Recorded(), context_length=wanted) as engine:
            assert engine.context_length == expected
    async with attached(Recorded(), model="n", context_length=7) as engine:
        assert (engine.model, engine.context_length) == ("n", 7)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"health": 503}, {}, r"vLLM at http\S+ was not ready after 0\.3 s: status 503"),
        ({"models": {"data": []}}, {}, "vLLM serves nothing, not ''"),
        ({}, {"model": "x"}, r"vLLM serves m, n, not 'x' \(engine.model\)"),
        ({}, {"model": "n"}, r"Set engine\.context_length"),
        ({"models": []}, {}, "cannot be read"),
        ({"generate": web.Response(status=500)}, {}, "answered /inference/v1/generate with.* 500"),
    ],
)
async def test_why_it_does_not_start(change, options, words):
    recorded = Recorded()
    vars(recorded).update(change)
    async with recorded.serving() as url:
        engine = VllmEngine(url, waits=HASTE, **options)
        with pytest.raises(StartupError, match=words):
            await engine.start()
        assert not engine.ready
        assert engine.remote._client is None


async def test_nobody_there():
    engine = VllmEngine("http://127.0.0.1:9", waits=HASTE)
    with pytest.raises(StartupError, match="cannot be reached"):
        await engine.start()


def refusal(status: int, body: object) -> web.Response:
    return web.json_response(body, status=status)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (refusal(400, {"error": {"message": "bad n"}}), EngineError, "vLLM refused: bad n"),
        (refusal(401, {"error": "Unauthorized"}), EngineError, r"our key \(engine\.api_key\)"),
        (refusal(429, {"error": {"message": "busy"}}), OverloadedError, "no capacity"),
        (refusal(503, {"detail": "x"}), OverloadedError, "no capacity"),
        (refusal(500, {}), EngineError, "HTTP status 500"),
        (
            refusal(400, {"error": {"message": "the maximum context length is 5"}}),
            ContextLengthError,
            "context length is 5",
        ),
        (sse({"error": {"message": "it died", "code": 500}}), EngineError, "refused: it died"),
        (sse({"choices": [{"text": "hi"}]}), EngineError, "sent no token ids"),
        (sse({"choices": [{"token_ids": [-1.5]}]}), EngineError, "cannot be read"),
        (sse(COUNTED), EngineError, "without a finish reason"),
        (sse({"choices": [{"token_ids": [], "finish_reason": "error"}]}), EngineError, "'error'"),
        (
            sse(FINAL, {"choices": [], "usage": {"prompt_tokens": 4}}),
            EngineError,
            "counted 4 prompt tokens of 3",
        ),
    ],
)
async def test_what_goes_wrong_has_a_name(answer, error, words):
    recorded = Recorded()
    recorded.answers = [answer]
    async with attached(recorded) as engine:
        with pytest.raises(error, match=words):
            await listen(engine, request())
        assert engine.remote.streams == 0


async def test_a_forced_call_is_refused_rather_than_ignored():
    constraint = ToolCallConstraint("<", ">", [("f", b"{}")], many=False)
    async with attached(Recorded()) as engine:
        with pytest.raises(UnsupportedParameterError) as refused:
            await listen(engine, request(constraint=constraint))
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("no_ids", "sent no token ids"), ("wrong_count", "counted 4 prompt tokens of 3")],
)
async def test_lies_about_ids_are_noticed(profile, kind, words):
    sim = RunningSim(profile, fault=WireFault(kind=kind))
    engine = VllmEngine(sim.url)
    await engine.start()
    try:
        with pytest.raises(EngineError, match=words):
            await listen(engine, request())
    finally:
        await engine.close()
        sim.stop()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error":{"message":"a"}}', "a"),
        (b'{"error":"b"}', "b"),
        (b'{"detail":"c"}', "c"),
        (b'{"message":"d"}', "d"),
        (b"<html>", ""),
        (b"[1]", ""),
    ],
)
def test_reasons_are_found(body, reason):
    assert reason_in(body) == reason
