"""The llama.cpp engine with the real model. Ids and counts are asserted, prose is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
import pytest_asyncio

from engine.engine_support import STOP_ID, Heard, listen, request
from oracle import vocabulary
from turnwire.engine.base import JsonConstraint, Sampling, ToolCallConstraint
from turnwire.engine.llamacpp import LlamaCppEngine
from turnwire.errors import (
    ContextLengthError,
    EngineError,
    OverloadedError,
    StartupError,
    UnsupportedParameterError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = Sampling(temperature=0)
OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine() -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(vocabulary.smollm2_path())
    await engine.start()
    yield engine
    await engine.close()


async def chat(engine: LlamaCppEngine, user: str, system: str = "") -> list[int]:
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    text += f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    return await engine.tokenize(text, special=True)


async def follow_up(engine: LlamaCppEngine, user: str) -> list[int]:
    return await engine.tokenize(
        f"\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", special=True
    )


async def text_of(engine: LlamaCppEngine, ids: list[int]) -> str:
    reply = await engine._post("detokenize", {"tokens": ids})
    return msgspec.json.decode(reply)["content"]


async def ask(engine: LlamaCppEngine, prompt: list[int], **fields) -> Heard:
    fields.setdefault("max_tokens", 16)
    fields.setdefault("sampling", GREEDY)
    return await listen(engine, request(prompt, **fields))


async def busy_slots(engine: LlamaCppEngine) -> int:
    async with engine._child.client() as client, client.get("http://engine/slots") as response:
        return sum(slot["is_processing"] for slot in await response.json())


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> float:
    """Poll, and say how long it took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def until_busy(engine: LlamaCppEngine) -> None:
    async def busy() -> bool:
        return await busy_slots(engine) > 0

    await until(busy)


async def seconds_until_idle(engine: LlamaCppEngine) -> float:
    async def idle() -> bool:
        return await busy_slots(engine) == 0

    return await until(idle)


def forced(*tools: tuple[str, dict], many: bool = False) -> ToolCallConstraint:
    encoded = [(name, json.dumps(schema).encode()) for name, schema in tools]
    return ToolCallConstraint(open=OPEN, close=CLOSE, tools=encoded, many=many)


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "unit"],
    "$defs": {"unit": {"enum": ["celsius", "kelvin"]}},
}
TIME = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}


async def test_answers_in_ids_and_keeps_the_stop_id(engine):
    prompt = await chat(engine, "What is the capital of France?")
    heard = await ask(engine, prompt, max_tokens=32)
    assert heard.finish_reason == "stop"
    assert heard.ids[-1] == STOP_ID
    assert STOP_ID not in heard.ids[:-1]
    assert "Paris" in await text_of(engine, heard.ids)
    # Every id was streamed: the slot holds the prompt and all but the last of them.
    held = await engine._sequence(0)
    assert held == [*prompt, *heard.ids[:-1]]
    assert (await ask(engine, prompt, max_tokens=32)).ids == heard.ids
    assert engine.context_length == 8192


async def test_max_tokens(engine):
    prompt = await chat(engine, "Count to twenty.")
    heard = await ask(engine, prompt, max_tokens=5)
    assert len(heard.ids) == 5
    assert heard.finish_reason == "length"


async def test_max_tokens_zero_only_warms_the_cache(engine):
    prompt = await chat(engine, "Warm this up, please: it is a prompt of its own.")
    heard = await ask(engine, prompt, max_tokens=0, affinity="warm")
    assert (heard.ids, heard.finish_reason) == ([], "length")
    heard = await ask(engine, prompt, max_tokens=2, affinity="warm")
    assert heard.cached_tokens == len(prompt) - 1


async def test_its_own_sampling_is_known(engine):
    # The defaults that llama.cpp's server documents.
    assert engine.default_sampling == Sampling(temperature=0.8, top_p=0.95)


async def test_sampling_is_seeded(engine):
    prompt = await chat(engine, "Tell me a story.")
    hot = [Sampling(temperature=1.5, top_p=0.9, seed=seed) for seed in (1, 1, -2)]
    one, same, other = [(await ask(engine, prompt, sampling=sampling)).ids for sampling in hot]
    assert one == same != other


async def test_a_chain_keeps_all_of_its_parents_tokens_in_the_cache(engine):
    """Five turns, one of them under a grammar."""
    prompt = await chat(engine, "Hello! What can you do?", system="Call get_weather when asked.")
    known = 0
    for turn in range(5):
        constraint = forced(("get_weather", WEATHER)) if turn == 2 else None
        heard = await ask(
            engine,
            prompt,
            affinity="chain",
            constraint=constraint,
            max_tokens=48 if turn == 2 else 8,
        )
        assert heard.cached_tokens is not None
        assert heard.cached_tokens >= known - 1
        if turn:
            assert heard.cached_tokens < len(prompt)
        known = len(prompt) + len(heard.ids)
        prompt += [*heard.ids, *await follow_up(engine, f"And what about {turn}?")]


async def test_a_forced_call_has_non_canonical_ids_and_they_stay_cached(engine):
    """Sampled under a grammar, ids may be such that no tokenizer would write for their text."""
    prompt = await chat(engine, "Weather in Paris?", system="Call get_weather.")
    heard = await ask(
        engine, prompt, affinity="nc", constraint=forced(("get_weather", WEATHER)), max_tokens=48
    )
    again = await engine.tokenize(await text_of(engine, heard.ids), special=True)
    assert heard.ids != again, "this prompt no longer shows what it is here for"
    nxt = [*prompt, *heard.ids, *await follow_up(engine, "Thanks.")]
    after = await ask(engine, nxt, affinity="nc", max_tokens=2)
    assert after.cached_tokens == len(prompt) + len(heard.ids) - 1


async def test_interleaved_chains_with_a_long_common_beginning_keep_their_caches(engine):
    system = "You are a terse assistant. " + "You answer in few words. " * 12
    prompts = {name: await chat(engine, f"I am {name}.", system=system) for name in ("Ann", "Ben")}
    known = dict.fromkeys(prompts, 0)
    for turn in range(3):
        heard = await asyncio.gather(
            *(ask(engine, prompts[name], affinity=name, max_tokens=6) for name in prompts)
        )
        more = await follow_up(engine, f"More, {turn}.")
        for name, said in zip(prompts, heard, strict=True):
            assert said.cached_tokens >= known[name] - 1
            known[name] = len(prompts[name]) + len(said.ids)
            prompts[name] = [*prompts[name], *said.ids, *more]


async def test_scopes_do_not_see_each_others_tokens(engine):
    prompt = await chat(engine, "This is my secret question about a private matter of mine.")
    first = await ask(engine, prompt, cache_scope="alice", max_tokens=2)
    other = await ask(engine, prompt, cache_scope="bob", max_tokens=2)
    assert other.cached_tokens == 0
    own = await ask(engine, [*prompt, *first.ids], cache_scope="alice", max_tokens=2)
    assert own.cached_tokens == len(prompt) + 1


@pytest.mark.parametrize("stop", [frozenset({STOP_ID}), frozenset({0, STOP_ID})])
async def test_a_forced_call_is_exactly_one_call(engine, stop):
    prompt = await chat(engine, "What is the weather in Rome?", system="Call get_weather.")
    constraint = forced(("get_weather", WEATHER))
    heard = await ask(engine, prompt, constraint=constraint, max_tokens=48, stop_token_ids=stop)
    assert heard.finish_reason == "stop"
    assert heard.ids[-1] in stop
    text = await text_of(engine, heard.ids[:-1])
    assert text.startswith('<tool_call>\n{"name": "get_weather", "arguments": {"city": "')
    assert text.endswith("}}\n</tool_call>")
    call = json.loads(text.removeprefix(OPEN).removesuffix(CLOSE))
    assert text == OPEN + json.dumps(call, ensure_ascii=False) + CLOSE
    assert call["arguments"]["unit"] in ("celsius", "kelvin")
    assert set(call["arguments"]) == {"city", "unit"}


async def test_a_forced_call_chooses_among_the_tools_and_may_repeat(engine):
    prompt = await chat(engine, "What time is it?", system="Call get_time or get_weather.")
    constraint = forced(("get_weather", WEATHER), ("get_time", TIME), many=True)
    heard = await ask(engine, prompt, constraint=constraint, max_tokens=70)
    text = await text_of(engine, heard.ids)
    first = text.split(CLOSE)[0].removeprefix(OPEN)
    assert json.loads(first)["name"] in ("get_weather", "get_time")
    for part in text.split(CLOSE)[1:-1]:
        assert part.startswith("\n" + OPEN)


ANSWERS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "warm": {"type": "boolean"},
            "days": {"type": "array", "items": {"enum": ["mo", "tu", "w\u00e9"]}, "maxItems": 3},
        },
        "required": ["city", "warm", "days"],
    },
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}}},
    {"anyOf": [{"const": "yes"}, {"type": "null"}]},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
]


@pytest.mark.parametrize("schema", ANSWERS, ids=["object", "number", "either", "pattern"])
async def test_an_answer_in_json_is_valid_however_hot_it_is_sampled(engine, schema):
    """Without the constraint, this model answers in prose."""
    prompt = await chat(engine, "Tell me about the weather.")
    for seed in range(8):
        heard = await ask(
            engine,
            prompt,
            constraint=JsonConstraint(json.dumps(schema).encode()),
            sampling=Sampling(temperature=1.0, seed=seed),
            max_tokens=160,
        )
        assert heard.finish_reason == "stop"
        jsonschema.validate(json.loads(await text_of(engine, heard.ids[:-1])), schema)


async def test_a_schema_that_cannot_be_enforced_is_refused_for_an_answer(engine):
    prompt = await chat(engine, "x")
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
    with pytest.raises(UnsupportedParameterError) as caught:
        await ask(engine, prompt, constraint=JsonConstraint(json.dumps(schema).encode()))
    assert caught.value.param == "text.format.schema"


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "(?=a)a"}]
)
async def test_what_cannot_be_enforced_is_refused(engine, schema):
    """llama.cpp would answer such a request without any constraint, and without an error."""
    prompt = await chat(engine, "Hi")
    constraint = forced(("fine", TIME), ("odd", {"type": "object", "properties": {"a": schema}}))
    with pytest.raises(UnsupportedParameterError, match="'odd'"):
        await ask(engine, prompt, constraint=constraint)


async def test_ids_of_half_characters_are_not_lost(engine, monkeypatch):
    """llama.cpp streams no event for a token that leaves half a character."""
    prompt = await chat(engine, "Say something colourful.")
    text = "a😀🎉 日本語 €"
    constraint = ToolCallConstraint(open=text, close="", tools=[("f", b"{}")], many=False)
    heard = await ask(engine, prompt, constraint=constraint, max_tokens=20, affinity="emoji")
    assert (await text_of(engine, heard.ids)).startswith(text)
    nxt = [*prompt, *heard.ids, *await follow_up(engine, "More.")]
    after = await ask(engine, nxt, affinity="emoji", max_tokens=1)
    assert after.cached_tokens >= len(prompt) + len(heard.ids) - 1

    async def other_tokenizer(text: str) -> list[int]:
        return []

    monkeypatch.setattr(engine, "_encode", other_tokenizer)
    held_back = await ask(engine, prompt, constraint=constraint, max_tokens=20)
    assert held_back.ids == heard.ids


async def test_a_stop_id_that_the_vocabulary_does_not_end_with(engine):
    prompt = await chat(engine, "Count to twenty.")
    free = await ask(engine, prompt, max_tokens=8)
    stop = free.ids[3]
    heard = await ask(engine, prompt, max_tokens=500, stop_token_ids=frozenset({stop}))
    assert heard.ids == free.ids[: free.ids.index(stop) + 1]
    assert heard.finish_reason == "stop"
    assert await seconds_until_idle(engine) < 0.5


async def test_closing_frees_the_slot(engine):
    """Case 36 (docs/faults.md): generation must not go on after the close."""
    prompt = await chat(engine, "Write a long story about a river.")
    never = frozenset({49_000})
    asked = request(prompt, max_tokens=2000, stop_token_ids=never, sampling=GREEDY)
    async with aclosing(engine.generate(asked)) as outputs:
        async for _ in outputs:
            break
    assert await seconds_until_idle(engine) < 0.5

    task = asyncio.create_task(ask(engine, prompt, max_tokens=2000, stop_token_ids=never))
    await until_busy(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await seconds_until_idle(engine) < 0.5


async def test_closing_in_the_middle_of_a_prompt_frees_the_slot(engine):
    task = asyncio.create_task(ask(engine, list(range(100, 1100)), max_tokens=2))
    await until_busy(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # One batch of 64 tokens cannot be interrupted; 0.3 s on an idle core.
    assert await seconds_until_idle(engine) < 1.5


async def test_context_overflow(engine):
    with pytest.raises(ContextLengthError) as caught:
        await ask(engine, [28] * 8192)
    assert caught.value.param == "input"
    assert "8192" in caught.value.message


async def test_prompts_that_llama_cpp_refuses_fail_the_turn_only(engine):
    with pytest.raises(EngineError, match="invalid tokens"):
        await ask(engine, [49_152])
    with pytest.raises(EngineError, match="empty"):
        await ask(engine, [])
    prompt = await chat(engine, "Still there?")
    assert (await ask(engine, prompt, max_tokens=2)).finish_reason == "length"


async def test_four_at_once(engine):
    prompts = [
        await chat(engine, f"Say {word}.") for word in ("one", "two", "three", "four", "five")
    ]
    heard = await asyncio.gather(*(ask(engine, p, max_tokens=8) for p in prompts))
    assert all(said.ids for said in heard)


async def test_a_full_cache_makes_requests_wait_instead_of_failing_all():
    engine = LlamaCppEngine(vocabulary.smollm2_path(), context_length=256, kv_tokens=496)
    await engine.start()
    try:
        asked = [
            ask(
                engine,
                [500 + i, *range(100, 190)],
                max_tokens=60,
                stop_token_ids=frozenset({49_000}),
                affinity=str(i),
            )
            for i in range(4)  # 4 * 151 tokens
        ]
        heard = await asyncio.gather(*asked)
        assert all(said.finish_reason in ("length", "stop") for said in heard)
        assert sum(len(said.ids) for said in heard) > 180
    finally:
        await engine.close()


async def test_a_dead_child_fails_the_turn_and_the_next_one_works(engine):
    prompt = await chat(engine, "Write a long story about a mountain.")
    never = frozenset({49_000})
    heard = Heard()
    asked = request(prompt, max_tokens=2000, stop_token_ids=never, sampling=GREEDY)
    task = asyncio.create_task(listen(engine, asked, heard=heard))
    await until_busy(engine)
    before = engine.restarts
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        await task

    async def noticed() -> bool:
        return not engine.ready

    async def ready() -> bool:
        return engine.ready

    await until(noticed)
    with pytest.raises(OverloadedError):
        await ask(engine, prompt)
    await until(ready)
    assert engine.restarts == before + 1
    after = await ask(engine, prompt, max_tokens=4)
    assert len(after.ids) == 4
    assert after.cached_tokens == 0


async def test_a_child_that_hangs_is_restarted():
    engine = LlamaCppEngine(vocabulary.smollm2_path(), kv_tokens=496, silence_timeout=1)
    await engine.start()
    try:
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="hung"):
            await ask(engine, [28] * 20)

        async def restarted() -> bool:
            return engine.restarts == 1 and engine.ready

        await until(restarted)
        assert (await ask(engine, [28] * 20, max_tokens=2)).ids
    finally:
        await engine.close()


async def test_close_leaves_nothing_behind():
    engine = LlamaCppEngine(vocabulary.smollm2_path(), context_length=512, kv_tokens=512)
    await engine.close()
    await engine.start()
    pid, folder = engine.pid, engine._child.slot_directory
    assert folder.stat().st_mode & 0o777 == 0o700
    assert engine.context_length == 512
    task = asyncio.create_task(
        listen(engine, request([28] * 20, stop_token_ids=frozenset(), max_tokens=400))
    )
    await until_busy(engine)
    await engine.close()
    with pytest.raises(EngineError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()
    assert not engine.ready
    await engine.close()


async def test_the_child_does_not_outlive_its_parent(tmp_path):
    program = f"""
import asyncio, os, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "python")!r})
from turnwire.engine.llamacpp import LlamaCppEngine
async def main():
    engine = LlamaCppEngine(pathlib.Path({str(vocabulary.smollm2_path())!r}), kv_tokens=256)
    await engine.start()
    print(engine.pid, engine._child.slot_directory, flush=True)
    os._exit(9)
asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 9, done.stderr
    pid, folder = done.stdout.split()

    async def gone() -> bool:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone, seconds=5)
    assert not os.path.exists(folder)  # noqa: PTH110, ASYNC240


async def test_files_that_cannot_be_served(tmp_path):
    with pytest.raises(StartupError, match="no model file"):
        await LlamaCppEngine(tmp_path / "absent.gguf").start()
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF and then nothing of the kind")
    engine = LlamaCppEngine(wrong)
    with pytest.raises(StartupError, match=r"wrong\.gguf.*last words"):
        await engine.start()
    assert engine.pid is None
    assert not engine.ready
