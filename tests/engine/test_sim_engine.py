from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing

import pytest

from engine.engine_support import STOP_ID, Heard, encode, listen, request
from turnwire.engine.base import LastItem, ToolCallConstraint
from turnwire.engine.sim import Script, SimEngine
from turnwire.engine.sim.clock import VirtualClock
from turnwire.errors import ContextLengthError, EngineError, InvalidValueError, OverloadedError

FAST = {"tokens_per_second": 1e6, "prefill_tokens_per_second": 1e9, "prefill_overhead_ms": 0}


async def started(encoder, script: dict, **options) -> SimEngine:
    engine = SimEngine(Script.parse(json.dumps(script)), encoder, **options)
    await engine.start()
    return engine


def one_answer(answer: dict, **more) -> dict:
    return {**FAST, "default": {"answer": answer, **more}}


async def test_plays_the_answer_and_its_stop_id(encoder):
    engine = await started(encoder, one_answer({"reasoning": "hm", "text": "Grüße"}), record=True)
    heard = await listen(engine, request([7, 8]))
    assert heard.text == "<think>hm</think>Grüße"
    assert heard.ids[-1] == STOP_ID
    assert heard.finish_reason == "stop"
    assert heard.cached_tokens == 0
    assert all(len(output.token_ids) == 1 for output in heard.outputs)
    assert engine.prompts == [[7, 8]]
    assert engine.recordings[0].output == heard.ids
    assert (engine.requests, engine.active, engine.aborted) == (1, 0, 0)


async def test_calls_itself_sim(encoder):
    engine = await started(encoder, FAST)
    assert (engine.name, engine.model) == ("sim", "sim")
    assert "sim" in (await listen(engine, request())).text
    assert not engine.recordings


async def test_absolute_schedule_and_prefill_cost(encoder):
    clock = VirtualClock()
    script = {
        "tokens_per_second": 50,
        "prefill_tokens_per_second": 1000,
        "prefill_overhead_ms": 20,
        "default": {"answer": {"text": "x" * 999}},
    }
    engine = await started(encoder, script, clock=clock)
    heard = await listen(engine, request([1] * 480), clock=clock)
    assert heard.times[0] == pytest.approx(0.5)
    assert heard.times[-1] == pytest.approx(0.5 + 999 / 50)
    again = await listen(engine, request([1] * 500), clock=clock)
    assert again.cached_tokens == 480  # so that 20 tokens are left to evaluate
    assert again.times[0] - heard.times[-1] == pytest.approx(0.02 + 0.02)


async def test_coalesces_due_tokens(encoder):
    clock = VirtualClock()
    script = {
        "tokens_per_second": 1000,
        "coalesce_ms": 20,
        "default": {"answer": {"text": "x" * 99}},
    }
    engine = await started(encoder, script, clock=clock)
    heard = await listen(engine, request(), clock=clock)
    assert len(heard.ids) == 100
    assert [len(output.token_ids) for output in heard.outputs] == [1, 20, 20, 20, 20, 19]
    assert heard.times[-1] - heard.times[0] == pytest.approx(0.099)


async def test_delays(encoder):
    clock = VirtualClock()
    script = {
        "tokens_per_second": 10,
        "prefill_overhead_ms": 0,
        "prefill_tokens_per_second": 1e12,
        "default": {
            "answer": {"text": "abc"},
            "delay": {"first_token_ms": 500, "after_tokens": 2, "ms": 1000},
        },
    }
    engine = await started(encoder, script, clock=clock)
    heard = await listen(engine, request(), clock=clock)
    assert heard.times == pytest.approx([0.5, 0.6, 1.7, 1.8])


@pytest.mark.parametrize(
    ("max_tokens", "text", "reason"),
    [(1, "a", "length"), (3, "abc", "length"), (4, "abc", "stop"), (9, "abc", "stop")],
)
async def test_max_tokens(encoder, max_tokens, text, reason):
    engine = await started(encoder, one_answer({"text": "abc"}))
    heard = await listen(engine, request(max_tokens=max_tokens))
    assert (heard.text, heard.finish_reason) == (text, reason)


async def test_max_tokens_zero_warms_the_prefix_cache(encoder):
    rule = {"when": {"turn": 1}, "answer": {"text": "first"}}
    engine = await started(encoder, {**FAST, "rules": [rule]})
    heard = await listen(engine, request(range(40), max_tokens=0))
    assert (heard.ids, heard.finish_reason, heard.cached_tokens) == ([], "length", 0)
    heard = await listen(engine, request(range(40)))
    assert heard.cached_tokens == 32
    assert heard.text == "first"  # a warm-up is no turn


async def test_context_length(encoder):
    engine = await started(encoder, {**one_answer({"text": "abcdef"}), "context_length": 20})
    heard = await listen(engine, request([1] * 18))
    assert (heard.text, heard.finish_reason) == ("ab", "length")
    with pytest.raises(ContextLengthError):
        await listen(engine, request([1] * 20))
    assert engine.active == 0


async def test_raw_ids_are_played_as_they_are(encoder):
    engine = await started(encoder, one_answer({"ids": [198, 198]}))
    assert (await listen(engine, request())).ids == [198, 198, STOP_ID]
    other = frozenset({STOP_ID, 0})
    assert (await listen(engine, request(stop_token_ids=other))).ids == [198, 198, STOP_ID]
    early = await listen(engine, request(stop_token_ids=frozenset({198})))
    assert (early.ids, early.finish_reason) == ([198], "stop")


async def test_cached_tokens_grow_along_a_chain(encoder):
    engine = await started(encoder, one_answer({"text": "x" * 30}))
    prompt = list(range(100))
    parent_total = 0
    for _ in range(4):
        heard = await listen(engine, request(prompt, affinity="a"))
        assert heard.cached_tokens == max(parent_total - 1, 0) // 16 * 16
        parent_total = len(prompt) + len(heard.ids)
        prompt = [*prompt, *heard.ids, *range(5)]


def constraint(*tools: tuple[str, dict], many: bool = False) -> ToolCallConstraint:
    return ToolCallConstraint(
        open="<tool_call>\n",
        close="\n</tool_call>",
        tools=[(name, json.dumps(schema).encode()) for name, schema in tools],
        many=many,
    )


async def test_a_forced_choice_keeps_only_the_allowed_calls(encoder):
    calls = [{"name": name, "arguments": {"n": i}} for i, name in enumerate("fgf")]
    engine = await started(encoder, one_answer({"text": "Let me see.", "calls": calls}))
    one = await listen(engine, request(constraint=constraint(("f", {}))))
    assert one.text == '<tool_call>{"name": "f", "arguments": {"n": 0}}</tool_call>'
    two = await listen(engine, request(constraint=constraint(("f", {}), many=True)))
    assert two.text.count("<tool_call>") == 2


async def test_a_forced_choice_without_a_scripted_call_makes_the_smallest_one_up(encoder):
    engine = await started(encoder, one_answer({"text": "no"}))
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    heard = await listen(engine, request(constraint=constraint(("search", schema))))
    assert heard.text == '<tool_call>{"name": "search", "arguments": {"q": ""}}</tool_call>'
    hard = constraint(("search", {"type": "string", "pattern": "a"}))
    with pytest.raises(EngineError, match="pattern"):
        await listen(engine, request(constraint=hard))


async def test_not_ready_before_start_and_after_close(encoder):
    engine = SimEngine(Script(), encoder)
    with pytest.raises(OverloadedError):
        await listen(engine, request())
    await engine.close()
    await engine.start()
    await listen(engine, request(max_tokens=1))
    await engine.close()
    await engine.close()
    assert not engine.ready


async def test_closing_the_iterator_aborts(encoder):
    engine = await started(
        encoder, {"tokens_per_second": 200, "default": {"answer": {"text": "x" * 500}}}
    )
    async with aclosing(engine.generate(request())) as outputs:
        async for _ in outputs:
            assert engine.active == 1
            break
    assert (engine.active, engine.aborted) == (0, 1)

    task = asyncio.create_task(listen(engine, request()))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 0.1
    assert (engine.active, engine.aborted) == (0, 2)


async def test_leaving_after_the_last_output_is_no_abort(encoder):
    engine = await started(encoder, one_answer({"text": ""}))
    async with aclosing(engine.generate(request())) as outputs:
        async for output in outputs:
            assert output.finish_reason == "stop"
            break
    assert engine.aborted == 0


async def test_fault_fail(encoder):
    script = one_answer({"text": "abcdef"}, fault={"kind": "fail", "after_tokens": 2})
    engine = await started(encoder, script)
    heard = Heard()
    with pytest.raises(EngineError):
        await listen(engine, request(), heard=heard)
    assert heard.text == "ab"
    assert (engine.ready, engine.active, engine.aborted) == (True, 0, 0)


async def test_fault_die_takes_the_others_along_and_comes_back(encoder):
    rules = [
        {
            "when": {"contains": "die"},
            "fault": {"kind": "die", "after_tokens": 1, "restart_ms": 80},
        },
        {"when": {"contains": "slow"}, "delay": {"first_token_ms": 60_000}},
    ]
    engine = await started(encoder, {**FAST, "rules": rules})
    await listen(engine, request(range(64), affinity="a"))
    slow = asyncio.create_task(listen(engine, request(last_item=LastItem("message", "slow"))))
    await asyncio.sleep(0)
    with pytest.raises(EngineError):
        await listen(engine, request(last_item=LastItem("message", "die")))
    with pytest.raises(OverloadedError):
        await listen(engine, request())
    with pytest.raises(EngineError):
        await asyncio.wait_for(slow, 1)
    await asyncio.sleep(0.1)
    heard = await listen(engine, request(range(64), affinity="a"))
    assert heard.cached_tokens == 0  # it lost its prefix cache


async def test_fault_stall_until_closed(encoder):
    script = one_answer({"text": "abcdef"}, fault={"kind": "stall", "after_tokens": 3})
    engine = await started(encoder, script)
    heard = Heard()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listen(engine, request(), heard=heard), 0.2)
    assert heard.text == "abc"
    assert engine.aborted == 1


async def test_fault_cut_ends_without_a_reason(encoder):
    engine = await started(
        encoder, one_answer({"text": "abc"}, fault={"kind": "cut", "after_tokens": 99})
    )
    heard = await listen(engine, request())
    assert (heard.text, heard.finish_reason) == ("abc", None)
    assert engine.aborted == 0


async def test_sixteen_at_once_keep_the_clock(encoder):
    clock = VirtualClock()
    script = {
        "tokens_per_second": 100,
        "prefill_overhead_ms": 0,
        "default": {"answer": {"text": "x" * 99}},
    }
    engine = await started(encoder, script, clock=clock)
    prompts = [[i] * 20 for i in range(16)]
    all_heard = await asyncio.gather(*(listen(engine, request(p), clock=clock) for p in prompts))
    for heard in all_heard:
        assert len(heard.ids) == 100
        assert heard.times[-1] == pytest.approx(0.991)
    assert engine.requests == 16


async def test_max_sequences_queues(encoder):
    clock = VirtualClock()
    script = {
        "tokens_per_second": 100,
        "prefill_overhead_ms": 0,
        "prefill_tokens_per_second": 1e12,
        "max_sequences": 2,
        "default": {"answer": {"text": "x" * 100}},
    }
    engine = await started(encoder, script, clock=clock)
    all_heard = await asyncio.gather(*(listen(engine, request(), clock=clock) for _ in range(4)))
    assert sorted(round(heard.times[0], 3) for heard in all_heard) == [0, 0, 1, 1]


async def test_wall_clock_holds_the_rate(encoder):
    script = {
        "tokens_per_second": 500,
        "prefill_overhead_ms": 0,
        "default": {"answer": {"text": "x" * 249}},
    }
    engine = await started(encoder, script)
    began = time.monotonic()
    await listen(engine, request())
    assert 0.49 < time.monotonic() - began < 0.8


async def test_a_script_that_the_encoder_refuses_is_the_engines_fault(encoder):
    class Refusing:
        def encode_output(self, output: bytes) -> list[int]:
            raise InvalidValueError("no such call")

    engine = SimEngine(Script(), Refusing())
    await engine.start()
    with pytest.raises(EngineError, match="no such call"):
        await listen(engine, request())


async def test_rules_see_the_turn_of_their_own_connection(encoder):
    rules = [{"when": {"turn": n}, "answer": {"text": f"turn {n}"}} for n in (1, 2)]
    engine = await started(encoder, {**FAST, "rules": rules})
    said = [(await listen(engine, request(affinity=a))).text for a in ("a", "b", "a", "b")]
    assert said == ["turn 1", "turn 1", "turn 2", "turn 2"]
    assert encode("turn 1") == (await listen(engine, request(affinity="c"))).ids[:-1]
