"""openai-python: WebSocket, HTTP with JSON, HTTP with server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI

from clients.loop import (
    ANSWER,
    CALLS,
    INSTRUCTIONS,
    QUESTION,
    SCRIPT,
    TOOLS,
    assert_each_turn_goes_on_from_the_last,
    calls_of,
    outputs,
)

if TYPE_CHECKING:
    from openai.types.responses import Response
from running import MODEL

KEY = "sk-python-test-0123456789"


@pytest.fixture
def running(serve):
    return serve(SCRIPT)


@pytest.fixture
def client(running):
    with OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0, timeout=30) as made:
        yield made


def assert_was_the_loop(responses: list[Response], recordings: Any) -> None:
    found = [[(c.name, c.arguments) for c in calls_of(response)] for response in responses]
    expected = [
        [(name, '{"path": "notes.txt"}' if name == "read_file" else '{"text": "one two three"}')]
        for ((name, _),) in CALLS[:2]
    ]
    assert found == [*expected, []]
    assert responses[-1].output_text == ANSWER
    for response in responses:
        assert response.status == "completed"
        assert response.usage is not None
        assert response.usage.output_tokens > 0
    assert responses[0].usage.output_tokens_details.reasoning_tokens > 0
    prompts = [r.prompt for r in recordings if r.max_tokens > 0]
    assert [r.usage.input_tokens for r in responses] == [len(prompt) for prompt in prompts]


def test_websocket_tool_loop(client, running):
    responses: list[Response] = []
    with client.responses.connect() as connection:
        new: list[Any] = [{"role": "user", "content": QUESTION}]
        while new:
            streamed, items = "", []
            connection.response.create(
                model=MODEL,
                instructions=INSTRUCTIONS,
                tools=TOOLS,
                store=False,
                input=new,
                **({"previous_response_id": responses[-1].id} if responses else {}),
            )
            numbers = []
            for event in connection:
                assert event.type != "error", event
                numbers.append(event.sequence_number)
                if event.type == "response.output_text.delta":
                    streamed += event.delta
                elif event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type == "response.completed":
                    break
            assert numbers == list(range(len(numbers)))
            assert [item.to_dict() for item in items] == [
                item.to_dict() for item in event.response.output
            ]
            assert streamed == event.response.output_text
            responses.append(event.response)
            new = outputs(calls_of(event.response))
    assert_was_the_loop(responses, running.engine.recordings)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=3)


def test_http_json_tool_loop(client, running):
    responses: list[Response] = []
    new: Any = QUESTION
    while new:
        response = client.responses.create(
            model=MODEL,
            instructions=INSTRUCTIONS,
            tools=TOOLS,
            input=new,
            **({"previous_response_id": responses[-1].id} if responses else {}),
        )
        responses.append(response)
        new = outputs(calls_of(response))
    assert_was_the_loop(responses, running.engine.recordings)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=3)


def test_http_events_tool_loop(client, running):
    responses: list[Response] = []
    new: Any = QUESTION
    while new:
        types = []
        with client.responses.create(
            model=MODEL,
            instructions=INSTRUCTIONS,
            tools=TOOLS,
            input=new,
            stream=True,
            **({"previous_response_id": responses[-1].id} if responses else {}),
        ) as stream:
            for event in stream:
                types.append(event.type)
        assert types[:2] == ["response.created", "response.in_progress"]
        assert types[-1] == "response.completed"
        responses.append(event.response)
        new = outputs(calls_of(event.response))
    assert_was_the_loop(responses, running.engine.recordings)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=3)


def test_http_resending_everything_finds_the_same_answer(client, running):
    """A client that keeps its own history: no previous_response_id, all items every time."""
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    responses: list[Response] = []
    while True:
        response = client.responses.create(
            model=MODEL,
            instructions=INSTRUCTIONS,
            tools=TOOLS,
            input=history,
            store=False,
        )
        responses.append(response)
        if not calls_of(response):
            break
        history += [item.to_dict() for item in response.output] + outputs(calls_of(response))
    assert_was_the_loop(responses, running.engine.recordings)
