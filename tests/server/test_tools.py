"""Custom tools, namespaces and hosted tools over WebSocket. Case numbers are of docs/faults.md."""

from __future__ import annotations

import json
import logging

import pytest

from running import RunningServer, calls_of, connect, text_of

PATCH = '*** Begin Patch\n*** Add File: é.txt\n+"quoted" \\ 🌍\n*** End Patch\n'
APPLY = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"},
}
FIND = {
    "type": "function",
    "name": "find",
    "description": "Finds a customer.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
    "strict": False,
}
CRM = {"type": "namespace", "name": "mcp__crm", "description": "Customers.", "tools": [FIND]}
WEB = {"type": "web_search", "external_web_access": True}

SCRIPT = {
    "rules": [
        {"when": {"type": "function_call_output"}, "answer": {"text": "The tool has spoken."}},
        {
            "when": {"contains": "patch it"},
            "answer": {
                "reasoning": "I must PONDER.",
                "calls": [{"name": "apply_patch", "arguments": {"input": PATCH}}],
            },
        },
        {
            "when": {"contains": "find her"},
            "answer": {"calls": [{"name": "mcp__crm__find", "arguments": {"name": "Ada"}}]},
        },
    ],
    "default": {"answer": {"text": "Plain answer."}},
}


async def test_case_12_a_tool_of_a_namespace_is_called_by_both_names(serve):
    server: RunningServer = serve(SCRIPT)
    async with connect(server) as socket:
        first = await socket.response("Please find her", tools=[CRM])
        (call,) = calls_of(first)
        assert (call["namespace"], call["name"]) == ("mcp__crm", "find")
        assert json.loads(call["arguments"]) == {"name": "Ada"}
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Ada L."}
        second = await socket.response(
            [output], previous_response_id=first["id"], tools=[CRM], model="sim-qwen3"
        )
    assert first["tools"] == [CRM]
    assert text_of(second) == "The tool has spoken."
    prompt = server.decode(server.engine.prompts[-1])
    assert "Customers." in prompt
    assert prompt.count("mcp__crm__find") == 2  # its declaration, and the call


async def test_a_custom_tool_is_called_with_a_text(serve):
    server: RunningServer = serve(SCRIPT)
    async with connect(server) as socket:
        events = await socket.turn("Please patch it", tools=[APPLY])
    response = events[-1]["response"]
    call = response["output"][-1]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    pieces = [
        event["delta"]
        for event in events
        if event["type"] == "response.custom_tool_call_input.delta"
    ]
    assert len(pieces) > 5
    assert "".join(pieces) == PATCH
    assert "start: begin hunk+ end" in server.decode(server.engine.prompts[-1])
    # What nothing enforces is not claimed.
    assert response["tools"][0]["format"] == {"type": "text"}


@pytest.mark.parametrize("resent", [False, True], ids=["continued", "sent again in full"])
async def test_cases_18_and_19_reasoning_and_custom_call_are_in_the_next_prompt(serve, resent):
    """Also of a client that sends everything again, whose echo takes back the sampled tokens."""
    server: RunningServer = serve(SCRIPT)
    async with connect(server) as socket:
        first = await socket.response("Please patch it", tools=[APPLY])
        call = first["output"][-1]
        output = {
            "type": "custom_tool_call_output",
            "call_id": call["call_id"],
            "output": [{"type": "input_text", "text": "DONE-CANARY"}],
        }
        if resent:
            asked = {"role": "user", "content": "Please patch it"}
            second = await socket.response([asked, *first["output"], output], tools=[APPLY])
        else:
            second = await socket.response(
                [output], tools=[APPLY], previous_response_id=first["id"]
            )
    assert text_of(second) == "The tool has spoken."
    before, after = server.engine.recordings
    assert after.prompt[: len(before.prompt)] == before.prompt
    sampled = after.prompt[len(before.prompt) :][: len(before.output)]
    assert sampled == before.output
    prompt = server.decode(after.prompt)
    assert "PONDER" in prompt
    assert "DONE-CANARY" in prompt


async def test_a_foreign_custom_call_is_rendered_as_the_function_that_the_model_knows(serve):
    server: RunningServer = serve(SCRIPT)
    call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "Done."}
    async with connect(server) as socket:
        response = await socket.response([call, output], tools=[APPLY])
    assert text_of(response) == "The tool has spoken."
    prompt = server.decode(server.engine.prompts[-1])
    written = json.dumps({"input": PATCH}, ensure_ascii=False, separators=(",", ":"))
    assert written in prompt


async def test_a_forced_custom_tool_is_called(serve):
    choice = {"type": "custom", "name": "apply_patch"}
    async with connect(serve(SCRIPT)) as socket:
        response = await socket.response("Hello", tools=[APPLY, FIND], tool_choice=choice)
    assert [item["type"] for item in response["output"]] == ["custom_tool_call"]


async def test_hosted_tools_are_left_out_and_said_so_once(serve, caplog):
    server: RunningServer = serve(SCRIPT)
    with caplog.at_level(logging.WARNING, logger="turnwire"):
        async with connect(server) as socket:
            for _ in range(2):
                response = await socket.response("Hello", tools=[FIND, WEB])
                assert response["tools"] == [FIND]
                assert "web_search" not in server.decode(server.engine.prompts[-1])
            error = await socket.error("Hello", tools=[WEB], tool_choice={"type": "web_search"})
            assert (error["status"], error["error"]["param"]) == (400, "tool_choice.type")
    told = [record.message for record in caplog.records if "web_search" in record.message]
    assert told == ["left out of requests: hosted tools of type 'web_search'"]


async def test_hosted_tools_can_be_refused(serve):
    async with connect(serve(SCRIPT, tools={"hosted": "refuse"})) as socket:
        error = await socket.error("Hello", tools=[FIND, WEB])
        assert (error["status"], error["error"]["param"]) == (400, "tools")
        assert "web_search" in error["error"]["message"]
        assert (await socket.response("Hello", tools=[FIND]))["status"] == "completed"


async def test_case_39_a_tool_that_is_not_served_is_named(serve):
    async with connect(serve(SCRIPT)) as socket:
        error = await socket.error("Hello", tools=[FIND, {"type": "local_shell"}])
        assert (error["status"], error["error"]["param"]) == (400, "tools[1].type")
        assert "local_shell" in error["error"]["message"]
