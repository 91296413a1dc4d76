"""``turnwire sim`` over HTTP. Shapes are vLLM 0.32's and the OpenAI SDK's, times the script's."""

from __future__ import annotations

import asyncio
import json
import re
import time

import aiohttp
import openai
import pytest

from child import Child
from engine.running_sim import RunningSim
from oracle import vocabulary
from running import wait_for
from turnwire.engine.sim.fault import WireFault
from turnwire.engine.sim.places import Places
from turnwire.errors import ConfigError

WEATHER = {
    "when": {"contains": "weather"},
    "answer": {"text": "Let me see.", "calls": [{"name": "look", "arguments": {"city": "Rome"}}]},
}


@pytest.fixture
def sim(profile):
    running: list[RunningSim] = []

    def start(script=None, **options) -> RunningSim:
        running.append(RunningSim(profile, script, **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


async def post(url: str, path: str, body: dict, headers: dict | None = None):
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json=body, headers=headers) as reply,
    ):
        return reply.status, await reply.json()


async def events(url: str, path: str, body: dict, headers: dict | None = None) -> list[dict | str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json={**body, "stream": True}, headers=headers) as reply,
    ):
        assert reply.status == 200, await reply.text()
        text = (await reply.read()).decode()
    found = re.findall(r"^data: (.*)$", text, re.MULTILINE)
    return [one if one == "[DONE]" else json.loads(one) for one in found]


def generate(ids: list[int], **params) -> dict:
    return {"token_ids": ids, "sampling_params": {"max_tokens": 50, **params}}


def ids_of(chunks: list) -> list[int]:
    return [
        token
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        for token in choice["token_ids"]
    ]


async def test_generate_streams_ids_and_counts_what_was_cached(sim, profile):
    running = sim({"default": {"answer": {"text": "Grüße 😀"}}})
    body = {**generate(list(range(100, 140))), "stream_options": {"include_usage": True}}
    first, second = [await events(running.url, "/inference/v1/generate", body) for _ in range(2)]
    assert ids_of(first) == profile.encode_output('{"text": "Grüße 😀"}'.encode())
    assert first[-1] == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in first[:-2]][-1] == "stop"
    usages = [chunks[-2]["usage"] for chunks in (first, second)]
    assert [usage["prompt_tokens"] for usage in usages] == [40, 40]
    # Blocks of 16, and never the prompt's last token: 32 of 40.
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 32]
    other = await events(running.url, "/inference/v1/generate", {**body, "cache_salt": "x"})
    assert other[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_completions_say_text_and_ids(sim, profile):
    running = sim({"default": {"answer": {"text": "Grüße 😀"}}})
    body = {"prompt": [1, 2, 3], "max_tokens": 50, "return_token_ids": True}
    chunks = await events(running.url, "/v1/completions", body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "Grüße 😀"
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    status, whole = await post(running.url, "/v1/completions", body)
    assert (status, whole["choices"][0]["text"]) == (200, "Grüße 😀")
    assert whole["choices"][0]["token_ids"] == ids_of(chunks)


async def test_stop_ids_and_limits_end_an_answer(sim, profile):
    running = sim({"default": {"answer": {"text": "one two three"}}})
    ids = profile.encode("one two three").tolist()
    stopped = await post(
        running.url, "/inference/v1/generate", generate([1], stop_token_ids=[ids[1]])
    )
    choice = stopped[1]["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"]) == (ids[:2], "stop")
    assert choice["stop_reason"] == ids[1]
    cut = await post(running.url, "/inference/v1/generate", generate([1], max_tokens=2))
    assert cut[1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/inference/v1/generate", {"token_ids": [], "sampling_params": {}}, "token_ids"),
        ("/inference/v1/generate", generate([-1]), "unsigned|negative"),
        ("/inference/v1/generate", generate([1], max_tokens=0), "max_tokens"),
        ("/inference/v1/generate", {**generate([1]), "priority": 3}, "priority"),
        ("/inference/v1/generate", {**generate([1]), "model": "other"}, "does not exist"),
        ("/inference/v1/generate", generate([1] * 99), "maximum context length"),
        ("/v1/completions", {"prompt": 7}, "prompt"),
        ("/tokenize", {"messages": []}, "renders no conversations"),
    ],
)
async def test_what_it_refuses(sim, path, body, words):
    status, reply = await post(sim({"context_length": 99}).url, path, body)
    assert status == 400
    assert re.search(words, reply["error"]["message"])
    assert reply["error"]["code"] == 400


async def test_generate_can_be_switched_off_as_in_vllm(sim):
    status, reply = await post(sim(scale_out=False).url, "/inference/v1/generate", generate([1]))
    assert (status, reply["error"]["type"]) == (403, "PermissionDeniedError")


async def test_a_client_who_leaves_ends_the_sampling(sim):
    running = sim({"tokens_per_second": 20, "default": {"answer": {"text": "word " * 500}}})
    async with aiohttp.ClientSession() as session:
        body = {**generate([1], max_tokens=400), "stream": True}
        async with session.post(running.url + "/inference/v1/generate", json=body) as reply:
            await reply.content.readline()
            assert running.engine.active == 1
            left = time.monotonic()
    await wait_for(lambda: not running.engine.active)
    assert running.engine.aborted == 1
    assert time.monotonic() - left < 0.5


async def test_rules_read_what_a_prompt_ends_with(sim, profile):
    running = sim({"rules": [WEATHER]})
    chat = "<|im_start|>user\nThe weather?<|im_end|>\n<|im_start|>assistant\n"
    old = chat + "Fine.<|im_end|>\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n"
    for text, expected in ((chat, True), (old, False)):
        prompt = profile.encode(text, control=True).tolist()
        said = await post(running.url, "/inference/v1/generate", generate(prompt))
        answer = profile.decode(said[1]["choices"][0]["token_ids"])
        assert ("Let me see." in answer) is expected


async def test_peers_hear_text_and_calls(sim):
    running = sim({"rules": [WEATHER]})
    client = openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    async with client:
        chat = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "The weather?"}]
        )
        assert chat.system_fingerprint == "sim"
        assert chat.choices[0].message.content == "Let me see."
        assert chat.choices[0].message.tool_calls[0].function.arguments == '{"city": "Rome"}'
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "The weather?"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "Let me see."
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        response = await client.responses.create(model="m", input="The weather?")
        assert response.output_text == "Let me see."
        assert response.output[1].name == "look"
        kinds = []
        async with client.responses.stream(model="m", input="The weather?") as listening:
            async for event in listening:
                kinds.append(event.type)
            final = await listening.get_final_response()
        assert final.output_text == "Let me see."
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"


@pytest.mark.parametrize(("text_cache", "expected"), [("all", True), ("none", False)])
async def test_a_peers_history_is_cached_whole_or_not_at_all(sim, text_cache, expected):
    running = sim(text_cache=text_cache)
    messages = [{"role": "user", "content": "x" * 4000}, {"role": "user", "content": "short"}]
    _, reply = await post(running.url, "/v1/chat/completions", {"messages": messages})
    usage = reply["usage"]
    assert usage["prompt_tokens"] >= 1000  # four bytes are a token
    assert (usage["prompt_tokens_details"]["cached_tokens"] >= 1000) is expected


async def test_faults_by_header(sim):
    running = sim({"default": {"answer": {"text": "one two three four five"}}})
    path, body = "/inference/v1/generate", generate([1])
    status, reply = await post(running.url, path, body, {"X-Sim-Fault": '{"kind":"status"}'})
    assert (status, reply["error"]["type"]) == (500, "SimulatedError")
    cut = '{"kind":"cut","after_tokens":2}'
    chunks = await events(running.url, path, body, {"X-Sim-Fault": cut})
    assert len(ids_of(chunks)) == 2
    assert "[DONE]" not in chunks
    for kind in ("reset", "half_chunk"):
        fault = {"X-Sim-Fault": json.dumps({"kind": kind, "after_tokens": 2})}
        async with aiohttp.ClientSession() as session:
            asked = {**body, "stream": True}
            async with session.post(running.url + path, json=asked, headers=fault) as reply:
                try:
                    text = await reply.text()
                except aiohttp.ClientError:
                    assert kind == "reset"
                else:
                    assert kind == "half_chunk"
                    assert not text.endswith("\n\n")
    status, _ = await post(running.url, path, body, {"X-Sim-Fault": "explode"})
    assert status == 400
    assert (await post(running.url, path, body))[0] == 200


def test_a_fault_is_a_kind_or_json():
    assert WireFault.parse("stall") == WireFault(kind="stall")
    assert WireFault.parse('{"kind":"status","status":429}').status == 429
    with pytest.raises(ConfigError, match="No such fault"):
        WireFault.parse("explode")


async def test_the_urgent_go_first_and_then_the_oldest():
    places, order, go = Places(1), [], asyncio.Event()

    async def one(name: str, priority: int) -> None:
        async with places.hold(priority):
            order.append(name)
            await go.wait()

    async with asyncio.TaskGroup() as group:
        for name, priority in (("first", 0), ("late", -1), ("a", 0), ("b", 0), ("urgent", 1)):
            group.create_task(one(name, priority))
            await asyncio.sleep(0)
        go.set()
    assert order == ["first", "urgent", "a", "b", "late"]


async def test_who_stops_waiting_leaves_no_gap():
    places, held = Places(1), asyncio.Event()

    async def one() -> None:
        async with places.hold(0):
            await held.wait()

    tasks = [asyncio.create_task(one()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    held.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(1), places.hold(0):
        pass


def test_the_command_serves_and_stops():
    folder = str(vocabulary.qwen3_path())
    child = Child("sim", "--port", "0", "--tokenizer", folder)
    try:
        said = child.until("sim serves scripted answers, no model")
        assert re.search(r"http://127\.0\.0\.1:\d+", said)
    finally:
        assert child.stop() == 0
