"""Turns over WebSocket: continuation, tools, endings. Case numbers are of docs/faults.md."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import aiohttp
import pytest

from running import MODEL, RunningServer, answer_to, calls_of, connect, text_of, wait_for

LS = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}
CAT = {**LS, "name": "cat"}

TOOL_SCRIPT = {
    "rules": [
        {"when": {"type": "function_call_output"}, "answer": {"text": "The tool has spoken."}},
        {
            "when": {"contains": "use the tool"},
            "answer": {"reasoning": "I need it.", "calls": [{"name": "ls", "arguments": {"a": 1}}]},
        },
    ],
    "default": {"answer": {"text": "Plain answer."}},
}


async def test_a_turn_in_full_event_order(serve):
    server = serve(TOOL_SCRIPT)
    async with connect(server) as socket:
        events = await socket.turn("Please use the tool", tools=[LS], store=False)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert not any("stream_id" in event for event in events)
    assert {event["response"]["id"] for event in events if "response" in event} == {
        events[0]["response"]["id"]
    }
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    assert json.loads(calls_of(response)[0]["arguments"]) == {"a": 1}


async def test_the_next_prompt_begins_with_prompt_and_sampled_ids(serve):
    """Law 1 (docs/design.md), over the wire."""
    loop = {
        "rules": [
            {
                "when": {"contains": f"step {step}"},
                "answer": {"reasoning": "So.", "calls": [{"name": "ls"}]},
            }
            for step in (1, 2)
        ],
        "default": {"answer": {"reasoning": "Enough.", "text": "Done."}},
    }
    server: RunningServer = serve(loop)
    tools = {"tools": [LS], "store": False}
    async with connect(server) as socket:
        first = await socket.response("step 1", **tools)
        output = answer_to(calls_of(first)[0], "step 2")
        second = await socket.response([output], previous_response_id=first["id"], **tools)
        output = answer_to(calls_of(second)[0], "step 3")
        third = await socket.response([output], previous_response_id=second["id"], **tools)
    assert text_of(third) == "Done."
    seen = server.engine.recordings
    assert len(seen) == 3
    for earlier, later in pairwise(seen):
        known = earlier.prompt + earlier.output
        assert later.prompt[: len(known)] == known
    assert second["usage"]["input_tokens"] == len(seen[1].prompt)
    assert first["usage"]["output_tokens"] == len(seen[0].output)


async def test_case_10_a_chain_keeps_its_call_and_output(serve):
    server: RunningServer = serve(TOOL_SCRIPT)
    async with connect(server) as socket:
        first = await socket.response("Please use the tool", tools=[LS])
        second = await socket.response(
            [answer_to(calls_of(first)[0], "CANARY-OUTPUT")], previous_response_id=first["id"]
        )
        await socket.response("And now?", previous_response_id=second["id"])
    prompt = server.decode(server.engine.prompts[-1])
    assert '"ls"' in prompt
    assert "CANARY-OUTPUT" in prompt
    assert "The tool has spoken." in prompt


async def test_case_13_an_array_output_of_text(serve):
    server: RunningServer = serve(TOOL_SCRIPT)
    async with connect(server) as socket:
        first = await socket.response("Please use the tool", tools=[LS])
        parts = [{"type": "input_text", "text": "ARRAY-CANARY"}]
        second = await socket.response(
            [answer_to(calls_of(first)[0], parts)], previous_response_id=first["id"]
        )
    assert text_of(second) == "The tool has spoken."
    assert "ARRAY-CANARY" in server.decode(server.engine.prompts[-1])


async def test_case_15_a_named_tool_choice_is_called(serve):
    async with connect(serve(TOOL_SCRIPT)) as socket:
        response = await socket.response(
            "Hello", tools=[LS, CAT], tool_choice={"type": "function", "name": "cat"}
        )
    assert [call["name"] for call in calls_of(response)] == ["cat"]
    assert text_of(response) == ""


async def test_case_15_required_calls_some_tool(serve):
    async with connect(serve(TOOL_SCRIPT)) as socket:
        response = await socket.response("Hello", tools=[LS, CAT], tool_choice="required")
    assert len(calls_of(response)) == 1


async def test_case_15_an_unknown_model_is_404(serve):
    async with connect(serve()) as socket:
        error = await socket.error("Hello", model="nope")
        assert (error["status"], error["error"]["code"]) == (404, "model_not_found")
        assert error["error"]["param"] == "model"
        assert MODEL in error["error"]["message"]
        assert (await socket.response("Hello"))["status"] == "completed"


async def test_an_alias_is_the_same_model(serve):
    server = serve(model={"aliases": ["gpt-5.5"]})
    async with connect(server) as socket:
        assert (await socket.response("Hello", model="gpt-5.5"))["model"] == "gpt-5.5"


async def test_case_15_max_output_tokens_is_incomplete_and_can_be_continued(serve):
    async with connect(serve(TOOL_SCRIPT)) as socket:
        events = await socket.turn("Hello", max_output_tokens=1)
        assert events[-1]["type"] == "response.incomplete"
        response = events[-1]["response"]
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == 1
        after = await socket.response("Go on", previous_response_id=response["id"], store=False)
    assert after["status"] == "completed"


async def test_case_16_ids_are_the_same_in_events_and_in_the_response(serve):
    async with connect(serve(TOOL_SCRIPT)) as socket:
        events = await socket.turn("Please use the tool", tools=[LS])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    output = events[-1]["response"]["output"]
    assert len(output) == 2
    assert done == output
    assert [item["id"] for item in added] == [item["id"] for item in output]
    assert added[1]["call_id"] == output[1]["call_id"]


async def test_case_20_a_warm_up_keeps_its_content(serve):
    server: RunningServer = serve(TOOL_SCRIPT)
    async with connect(server) as socket:
        events = await socket.turn("WARM-CANARY", instructions="Be brief.", generate=False)
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        warm = events[-1]["response"]
        assert (warm["output"], warm["status"]) == ([], "completed")
        assert warm["usage"]["output_tokens"] == 0
        assert warm["usage"]["input_tokens"] > 0
        after = await socket.response(
            [], previous_response_id=warm["id"], instructions="Be brief.", store=False
        )
        assert text_of(after) == "Plain answer."
    prompt = server.decode(server.engine.prompts[-1])
    assert "WARM-CANARY" in prompt
    assert "Be brief." in prompt


async def test_a_warm_up_fills_the_engines_cache_in_the_background(serve):
    server: RunningServer = serve()
    async with connect(server) as socket:
        long = "word " * 200
        warm = await socket.response(long, generate=False)
        await wait_for(lambda: server.engine.requests == 1 and server.engine.active == 0)
        assert server.engine.recordings[0].max_tokens == 0
        after = await socket.response("Go", previous_response_id=warm["id"])
    cached = after["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached >= warm["usage"]["input_tokens"] - 16  # the sim caches whole blocks


async def test_the_next_turn_stops_a_warm_up(serve):
    server: RunningServer = serve({"prefill_tokens_per_second": 100})
    async with connect(server) as socket:
        warm = await socket.response("word " * 2000, generate=False)
        await wait_for(lambda: server.engine.active == 1)
        await socket.create("Go", previous_response_id=warm["id"], max_output_tokens=1)
        await wait_for(lambda: server.engine.aborted == 1)


async def test_prewarm_can_be_switched_off(serve):
    server: RunningServer = serve(engine={"kind": "sim", "prewarm": False})
    async with connect(server) as socket:
        warm = await socket.response("x", generate=False)
        await socket.response("y", previous_response_id=warm["id"])
    assert server.engine.requests == 1


async def test_case_21_an_unknown_parent_is_not_found(serve):
    async with connect(serve()) as socket:
        error = await socket.error("x", previous_response_id="resp_missing")
    assert error["status"] == 400
    assert error["sequence_number"] == 0
    assert error["error"] == {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": "Previous response with id 'resp_missing' not found.",
        "param": "previous_response_id",
    }


async def test_case_23_an_unstored_id_does_not_leave_its_socket(serve):
    server = serve()
    async with connect(server) as a, connect(server) as b:
        response = await a.response("x", store=False)
        error = await b.error("y", previous_response_id=response["id"])
        assert error["error"]["code"] == "previous_response_not_found"
        assert (await a.response("z", previous_response_id=response["id"]))["status"] == "completed"


async def test_a_stored_id_continues_on_another_socket(serve):
    server: RunningServer = serve()
    async with connect(server) as a:
        response = await a.response("STORED-CANARY")
    async with connect(server) as b:
        await b.response("y", previous_response_id=response["id"])
    assert "STORED-CANARY" in server.decode(server.engine.prompts[-1])


async def test_the_store_forgets_the_least_recently_used(serve):
    server = serve(store={"max_responses": 1})
    async with connect(server) as a:
        first = await a.response("1")
        await a.response("2")
    async with connect(server) as b:
        error = await b.error("3", previous_response_id=first["id"])
    assert error["error"]["code"] == "previous_response_not_found"


async def test_case_24_two_forks_are_routed_and_see_only_their_parent(serve):
    script = {"default": {"answer": {"text": "word " * 60}}, "tokens_per_second": 400}
    server: RunningServer = serve(script)
    async with connect(server) as socket:
        parent = await socket.response("PARENT", stream_id="main", max_output_tokens=2)
        for lane in ("a", "b"):
            await socket.create(f"FORK-{lane}", stream_id=lane, previous_response_id=parent["id"])
        events = (await socket.events()) + (await socket.events())
    lanes = [event["stream_id"] for event in events]
    assert set(lanes) == {"a", "b"}
    switches = sum(x != y for x, y in pairwise(lanes))
    assert switches > 10, "the forks did not run at the same time"
    for lane in ("a", "b"):
        own = [event["sequence_number"] for event in events if event["stream_id"] == lane]
        assert own == list(range(len(own)))
    prompts = [server.decode(prompt) for prompt in server.engine.prompts[-2:]]
    assert all("PARENT" in prompt for prompt in prompts)
    assert sorted("FORK-b" in prompt for prompt in prompts) == [False, True]


SLOW = {"default": {"answer": {"text": "word " * 400}}, "tokens_per_second": 100}


async def test_case_26_a_cancelled_response_leaves_nothing_behind(serve):
    server: RunningServer = serve({**SLOW, "rules": [{"when": {"contains": "short"}}]})
    async with connect(server) as socket:
        await socket.create("long")
        await socket.until("response.output_text.delta")
        await socket.send({"type": "response.cancel"})
        await socket.create("short", max_output_tokens=3)
        first = await socket.events()
        assert first[-1]["type"] == "response.incomplete"
        assert first[-1]["response"]["status"] == "cancelled"
        second = await socket.events()
        assert second[0]["type"] == "response.created"
        assert {e["response"]["id"] for e in second if "response" in e} == {
            second[0]["response"]["id"]
        }
        assert await socket.silent()
    assert server.engine.aborted == 1


async def test_case_32_usage_is_of_each_turn_and_of_what_was_cut_off(serve):
    """Against what the engine saw and sampled, turn by turn."""
    script = {
        "rules": [
            {"when": {"contains": "long"}, "answer": {"text": "word " * 400}},
            {"when": {"contains": "think"}, "answer": {"reasoning": "So it is.", "text": "Yes."}},
        ],
        "tokens_per_second": 400,
    }
    server: RunningServer = serve(script)
    async with connect(server) as socket:
        first = await socket.response("think " + "about it " * 40)
        second = await socket.response("think", previous_response_id=first["id"])
        await socket.create("long", previous_response_id=second["id"])
        await socket.until("response.output_text.delta")
        await socket.send({"type": "response.cancel"})
        third = (await socket.events())[-1]["response"]
    await wait_for(lambda: server.engine.active == 0)
    assert third["status"] == "cancelled"
    for response, seen in zip((first, second, third), server.engine.recordings, strict=True):
        usage = response["usage"]
        assert usage["input_tokens"] == len(seen.prompt)
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        # A cut-off turn is billed for what it was given, and the engine may be a step ahead.
        assert 0 < usage["output_tokens"] <= len(seen.output)
    assert first["usage"]["output_tokens"] == len(server.engine.recordings[0].output)
    for response in (first, second):
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 3
    assert third["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    cached = [r["usage"]["input_tokens_details"]["cached_tokens"] for r in (first, second)]
    assert cached[0] == 0
    # The second prompt drops the first one's reasoning: cached up to there, in whole blocks.
    assert first["usage"]["input_tokens"] - 16 <= cached[1] <= first["usage"]["input_tokens"] + 16


@pytest.mark.parametrize("kind", ["response.cancel", "response.interrupt"])
async def test_cancel_by_response_id_ends_once(serve, kind):
    server: RunningServer = serve(SLOW)
    async with connect(server) as socket:
        await socket.create("long", stream_id="a")
        created = await socket.recv()
        cancel = {"type": kind, "response_id": created["response"]["id"]}
        await socket.until("response.output_text.delta")
        await socket.send(cancel)
        await socket.send(cancel)
        last = (await socket.events())[-1]
        assert last["response"]["status"] == "cancelled"
        assert last["stream_id"] == "a"
        assert last["response"]["usage"]["output_tokens"] > 0
        await socket.send(cancel)
        assert await socket.silent()
        await wait_for(lambda: server.engine.active == 0)


async def test_a_cancel_right_behind_its_create_still_ends_once(serve):
    server: RunningServer = serve(SLOW)
    async with connect(server) as socket:
        for _ in range(5):
            await socket.create("long")
            await socket.send({"type": "response.cancel"})
            events = await socket.events()
            assert events[0]["type"] == "response.created"
            assert events[-1]["response"]["status"] == "cancelled"
        assert await socket.silent()
    await wait_for(lambda: server.engine.active == 0)


async def test_a_cancelled_turn_leaves_its_parent_usable(serve):
    server = serve({**SLOW, "rules": [{"when": {"contains": "short"}}]})
    async with connect(server) as socket:
        parent = await socket.response("short", store=False)
        await socket.create("long", previous_response_id=parent["id"], store=False)
        await socket.until("response.output_text.delta")
        await socket.send({"type": "response.cancel"})
        await socket.events()
        again = await socket.response("short", previous_response_id=parent["id"], store=False)
    assert again["status"] == "completed"


async def test_case_27_after_an_eviction_the_socket_still_serves(serve):
    server: RunningServer = serve(TOOL_SCRIPT)
    async with connect(server) as socket:
        parent = await socket.response("Please use the tool", tools=[LS], store=False)
        orphan = {"type": "function_call_output", "call_id": "call_unknown", "output": "x"}
        error = await socket.error([orphan], previous_response_id=parent["id"], store=False)
        assert error["status"] == 400
        stale = await socket.error(
            [answer_to(calls_of(parent)[0])], previous_response_id=parent["id"], store=False
        )
        assert stale["error"]["code"] == "previous_response_not_found"
        full = [{"role": "user", "content": "Please use the tool"}, *parent["output"]]
        again = await socket.response([*full, answer_to(calls_of(parent)[0])], tools=[LS])
        assert text_of(again) == "The tool has spoken."


async def test_a_failed_fork_keeps_the_shared_parent(serve):
    server = serve({"rules": [{"when": {"contains": "break"}, "fault": {"kind": "fail"}}]})
    async with connect(server) as socket:
        parent = await socket.response("x", stream_id="a", store=False)
        fork = {"previous_response_id": parent["id"], "store": False}
        failed = (await socket.turn("break", stream_id="b", **fork))[-1]
        assert failed["type"] == "response.failed"
        assert (await socket.response("y", stream_id="a", **fork))["status"] == "completed"


async def test_an_engine_failure_ends_in_one_response_failed(serve):
    script = {"rules": [{"when": {"contains": "break"}, "fault": {"kind": "fail"}, "times": 1}]}
    async with connect(serve(script)) as socket:
        parent = await socket.response("x")
        events = await socket.turn("break", previous_response_id=parent["id"])
        assert events[-1]["type"] == "response.failed"
        response = events[-1]["response"]
        assert response["error"]["code"] == "server_error"
        assert "script" not in response["error"]["message"], "internal details are not sent"
        assert await socket.silent()
        again = await socket.response("again", previous_response_id=parent["id"])
    assert again["status"] == "completed", "a stored parent outlives its eviction"


async def test_an_engine_that_dies_comes_back_for_the_next_turn(serve):
    script = {
        "rules": [
            {"when": {"contains": "die"}, "fault": {"kind": "die", "restart_ms": 300}, "times": 1}
        ]
    }
    async with connect(serve(script)) as socket:
        assert (await socket.turn("die"))[-1]["type"] == "response.failed"
        assert (await socket.response("hello"))["status"] == "completed"


async def test_a_stream_cut_by_the_engine_is_a_failure(serve):
    script = {"default": {"fault": {"kind": "cut", "after_tokens": 2}}}
    async with connect(serve(script)) as socket:
        assert (await socket.turn("x"))[-1]["type"] == "response.failed"


async def test_an_id_outside_the_vocabulary_is_the_engines_failure(serve):
    script = {"default": {"answer": {"ids": [4_000_000_000]}}}
    async with connect(serve(script)) as socket:
        last = (await socket.turn("x"))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"


async def test_context_overflow_is_refused_before_anything_starts(serve):
    async with connect(serve({"context_length": 64})) as socket:
        error = await socket.error("word " * 100)
        assert error["error"]["code"] == "context_length_exceeded"
        assert error["status"] == 400
        error = await socket.error("word " * 100, truncation="auto")
        assert error["error"]["code"] == "context_length_exceeded"
        assert "'truncation'" in error["error"]["message"]
        response = await socket.response("hi", max_output_tokens=1000, truncation="auto")
    assert response["usage"]["total_tokens"] <= 64
    assert response["truncation"] == "auto"


async def test_a_large_input_is_opened_in_a_thread(serve):
    server: RunningServer = serve()
    async with connect(server) as socket:
        response = await socket.response("lorem ipsum " * 20_000, max_output_tokens=1)
    assert response["usage"]["input_tokens"] > 10_000


async def test_a_turn_that_waits_gets_the_next_place(serve):
    """The 17th waits; FIFO within a lane."""
    server: RunningServer = serve(SLOW, limits={"active_per_connection": 2})
    async with connect(server) as socket:
        for lane in "abc":
            await socket.create(f"x {lane}", stream_id=lane, max_output_tokens=20)
        started, ended, most = [], [], 0
        while len(ended) < 3:
            event = await socket.recv()
            if event["type"] == "response.created":
                started.append(event["stream_id"])
                most = max(most, len(started) - len(ended))
            elif event["type"] == "response.incomplete":
                ended.append(event["stream_id"])
    assert started == ["a", "b", "c"]
    assert most == 2


async def test_sixteen_run_at_once(serve):
    server: RunningServer = serve(SLOW)
    async with connect(server) as socket:
        for number in range(18):
            await socket.create("x", stream_id=f"lane-{number}", max_output_tokens=60)
        await wait_for(lambda: server.engine.active == 16)
        await asyncio.sleep(0.05)
        assert server.engine.active == 16
        ends = 0
        while ends < 18:
            ends += (await socket.recv())["type"] == "response.incomplete"


async def test_pipelined_creates_on_one_lane_run_one_after_the_other(serve):
    server = serve({"default": {"answer": {"text": "one two"}}})
    async with connect(server) as socket:
        for number in range(5):
            await socket.create(f"x {number}")
        ids = []
        for _ in range(5):
            events = await socket.events()
            assert events[0]["type"] == "response.created"
            ids.append(events[-1]["response"]["id"])
    assert len(set(ids)) == 5


async def test_the_debug_records_tell_what_a_turn_cost(serve):
    server: RunningServer = serve(log={"debug": True})
    async with connect(server) as socket:
        first = await socket.response("x", store=False)
        second = await socket.response("y", previous_response_id=first["id"], store=False)
    async with aiohttp.ClientSession(server.url) as session, session.get("/debug/turns") as answer:
        record = (await answer.json())["data"][-1]
    assert record["response_id"] == second["id"]
    assert record["previous_response_id"] == first["id"]
    assert record["kind"] == "extend"
    assert record["reused_tokens"] + record["rendered_tokens"] >= record["prompt_tokens"]
    assert record["reused_tokens"] > 0
    assert record["sampled_tokens"] == second["usage"]["output_tokens"]
    assert record["first_token_ms"] > 0
