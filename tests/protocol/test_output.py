"""Golden event streams, and the grammar over random ones."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.responses_websocket import ResponsesWebSocketAccumulator
from openai.lib.streaming.responses import ResponseStreamState

from turnwire.errors import EngineError, InvariantError
from turnwire.protocol.events import Usage
from turnwire.protocol.frames import decode_create
from turnwire.protocol.lifecycle import RESPONSE, ResponsePhase
from turnwire.protocol.output import ResponseStream

USAGE = Usage(input_tokens=40, cached_tokens=30, output_tokens=12, reasoning_tokens=5)
TOOL = b'{"type":"function","name":"ls","description":null,"parameters":{},"strict":false}'


def stream(*, stream_id: str | None = "a", body: bytes = b'{"model":"m","input":"hi"}', **more):
    ids = itertools.count(1)
    return ResponseStream(
        decode_create(body),
        response_id="resp_1",
        created_at=1_790_000_000,
        model="m",
        stream_id=stream_id,
        new_id=lambda prefix: f"{prefix}_{next(ids)}",
        store=True,
        echo_tools=b"[" + TOOL + b"]",
        echo_instructions=b'"Be terse."',
        **more,
    )


def begun(**options):
    response = stream(**options)
    return response, response.created() + response.in_progress()


def bodies(events):
    return [json.loads(event.body) for event in events]


REASONING = [
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]
CUSTOM_CALL = [
    "response.output_item.added",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done",
]
SEARCH = ["response.output_item.added", "response.output_item.done"]
START = ["response.created", "response.in_progress"]


@pytest.fixture(scope="module")
def say(piece):
    def call(number: int):
        return [
            piece("call", call_id=f"call_{number}", name="ls"),
            piece("arguments", '{"path":'),
            piece("arguments", ' "."}'),
        ]

    return SimpleNamespace(
        reasoning=[piece("reasoning", "Hmm.")],
        message=[piece("text", "Hé"), piece("text", "llo 🌍")],
        call=call,
        custom=[
            piece("custom_call", call_id="call_9", name="apply_patch", namespace="edit"),
            piece("input", "*** Begin"),
            piece("input", ' "Patch"\n'),
        ],
        search=[
            piece("search_call", call_id="call_8", name="tool_search"),
            piece("query", '{"query": '),
            piece("query", '"a"}'),
        ],
    )


def golden(name, say):
    """(deltas, the item events that follow) of each golden stream."""
    return {
        "message": (say.message, MESSAGE),
        "reasoning+message": (say.reasoning + say.message, REASONING + MESSAGE),
        "reasoning+call": (say.reasoning + say.call(1), REASONING + CALL),
        "two calls": (say.call(1) + say.call(2), CALL + CALL),
        "message+call": (say.message + say.call(1), MESSAGE + CALL),
        "call+custom call": (say.call(1) + say.custom, CALL + CUSTOM_CALL),
        "search": (say.reasoning + say.search, REASONING + SEARCH),
        "empty": ([], []),
    }[name]


@pytest.mark.parametrize("stream_id", [None, "a"])
@pytest.mark.parametrize(
    "name",
    [
        "message",
        "reasoning+message",
        "reasoning+call",
        "two calls",
        "message+call",
        "call+custom call",
        "search",
        "empty",
    ],
)
@pytest.mark.parametrize("ending", ["completed", "incomplete", "cancelled"])
def test_golden(name, ending, stream_id, say, oracle, automaton):
    deltas, middle = golden(name, say)
    response, events = begun(stream_id=stream_id)
    events += response.push(deltas)
    if ending == "completed":
        events += response.completed(USAGE, completed_at=1_790_000_009)
    elif ending == "incomplete":
        events += response.incomplete("max_output_tokens", USAGE)
    else:
        events += response.cancelled(USAGE)
    last = "response.completed" if ending == "completed" else "response.incomplete"
    assert [event.type for event in events] == [*START, *middle, last]
    reader = automaton()
    for event in events:
        reader.feed(event)
        oracle(event)
    assert reader.ended
    assert response.ended
    end = bodies(events)[-1]["response"]
    assert json.loads(response.response) == end
    assert end["status"] == ending
    assert end["completed_at"] == (1_790_000_009 if ending == "completed" else None)
    reason = {"reason": "max_output_tokens"} if ending == "incomplete" else None
    assert end["incomplete_details"] == reason
    assert end["usage"] == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 52,
    }
    statuses = [item["status"] for item in end["output"]]
    whole = "completed" if ending == "completed" else "incomplete"
    assert statuses == ["completed"] * (len(statuses) - 1) + [whole] * bool(statuses)


def test_failure_leaves_the_open_item_open(say, oracle, automaton):
    response, events = begun()
    events += response.push(say.reasoning + say.message)
    events += response.failed(EngineError("the child died: /secret/path"))
    reader = automaton()
    for event in events:
        reader.feed(event)
        oracle(event)
    assert events[-1].type == "response.failed"
    assert events[-2].type == "response.output_text.delta"
    end = bodies(events)[-1]["response"]
    assert [item["type"] for item in end["output"]] == ["reasoning"]
    assert end["error"]["code"] == "server_error"
    assert "secret" not in end["error"]["message"]
    assert end["usage"] is None


def test_items_in_full(say):
    response, _ = begun()
    response.push(say.reasoning + say.message + say.call(1) + say.custom + say.search)
    end = bodies(response.completed(USAGE, completed_at=1))[-1]["response"]
    assert end["output"] == [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hmm."}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "id": "msg_2",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Héllo 🌍", "annotations": [], "logprobs": []}
            ],
        },
        {
            "id": "fc_3",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "ls",
            "arguments": '{"path": "."}',
        },
        {
            "id": "ctc_4",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_9",
            "namespace": "edit",
            "name": "apply_patch",
            "input": '*** Begin "Patch"\n',
        },
        {
            "id": "tsc_5",
            "type": "tool_search_call",
            "status": "completed",
            "call_id": "call_8",
            "execution": "client",
            "arguments": {"query": "a"},
        },
    ]


@pytest.mark.parametrize(
    ("sampled", "arguments"), [("", {}), ('{"a": [1', '{"a": [1'), ("[1]", [1]), ("x", "x")]
)
def test_what_a_search_is_made_with_is_json_or_what_was_sampled(sampled, arguments, piece, oracle):
    response, _ = begun()
    response.push([piece("search_call", call_id="c", name="tool_search"), piece("query", sampled)])
    events = response.incomplete("max_output_tokens", USAGE)
    for event in events:
        oracle(event)
    (item,) = bodies(events)[-1]["response"]["output"]
    assert (item["arguments"], item["status"]) == (arguments, "incomplete")


REQUIRED = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]


def test_every_key_of_the_response_object():
    # Open Responses' ResponseResource wants all 31; the rest is what OpenAI echoes.
    assert len(REQUIRED) == 31
    created = bodies(begun()[1])[0]["response"]
    assert set(REQUIRED) <= created.keys()
    assert {"user", "conversation", "prompt_cache_retention"} <= created.keys()
    assert created["tools"] == [json.loads(TOOL)]
    assert created["instructions"] == "Be terse."
    assert created["tool_choice"] == "auto"


def test_echo_of_the_request(oracle):
    body = b"""{"model": "m", "input": "x", "temperature": 0, "top_p": 0.5, "store": false,
        "max_output_tokens": 9, "max_tool_calls": 2, "metadata": {"a": "b"}, "user": "u",
        "parallel_tool_calls": false, "previous_response_id": "resp_0", "service_tier": "flex",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s",
        "reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}}"""
    response, events = begun(body=body)
    for event in events:
        oracle(event)
    echo = json.loads(response.response)
    expected = json.loads(body) | {
        "store": True,  # said by the server, not by the request
        "service_tier": "default",
        "reasoning": {"effort": "high", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},  # what the model is told
    }
    del expected["input"]
    assert {key: echo[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        (b'{"type": "json_object"}', {"type": "json_object"}),
        (
            b'{"type": "json_schema", "name": "n", "schema": {"type":  "object"}, "strict": false}',
            {
                "type": "json_schema",
                "name": "n",
                "description": None,
                "schema": {"type": "object"},
                "strict": True,  # as it is in force
            },
        ),
    ],
)
def test_the_format_of_a_text_is_echoed(given, echoed, oracle):
    response, events = begun(body=b'{"text": {"format": %b}}' % given)
    for event in events:
        oracle(event)
    assert json.loads(response.response)["text"]["format"] == echoed


@pytest.mark.parametrize(("has_verbosity", "echoed"), [(True, "low"), (False, "medium")])
def test_verbosity_is_echoed_where_the_model_is_told_of_it(has_verbosity, echoed):
    response, _ = begun(body=b'{"text": {"verbosity": "low"}}', has_verbosity=has_verbosity)
    assert json.loads(response.response)["text"]["verbosity"] == echoed


def test_effective_sampling_is_echoed_unless_asked():
    def sampling(body: bytes, **effective: float) -> tuple[float, float]:
        response = ResponseStream(
            decode_create(body),
            response_id="resp_1",
            created_at=1,
            model="m",
            stream_id=None,
            new_id=str,
            store=True,
            **effective,
        )
        echo = json.loads(response.response)
        return echo["temperature"], echo["top_p"]

    assert sampling(b"{}") == (1.0, 1.0)
    assert sampling(b"{}", temperature=0.6, top_p=0.0) == (0.6, 0.0)
    assert sampling(b'{"temperature":0}', temperature=0.6) == (0.0, 1.0)


def test_default_lane_has_no_stream_id(say):
    response, events = begun(stream_id=None)
    events += response.push(say.message + say.call(1))
    events += response.completed(USAGE, completed_at=1)
    assert all("stream_id" not in body for body in bodies(events))


def test_named_lane_is_echoed_on_every_event(say):
    response, events = begun(stream_id="a.b-c_9")
    events += response.push(say.reasoning + say.message + say.call(1)) + response.in_progress()
    events += response.completed(USAGE, completed_at=1)
    assert all(body["stream_id"] == "a.b-c_9" for body in bodies(events))


def test_keep_alive_mid_item_shows_what_there_is(say, oracle, automaton):
    response, events = begun()
    events += response.in_progress()
    events += response.push(say.reasoning + say.message[:1]) + response.in_progress()
    events += response.push(say.message[1:] + say.call(1)) + response.in_progress()
    events += response.completed(USAGE, completed_at=1)
    reader = automaton()
    for event in events:
        reader.feed(event)
        oracle(event)
    assert reader.ended


def test_keep_alives_do_not_disturb_openais_accumulators(say, oracle):
    # Theirs replace their whole snapshot at a lifecycle event, in the middle of an item as well.
    response, events = begun()
    for delta in say.reasoning + say.message + say.call(1):
        events += response.push([delta]) + response.in_progress()
    by_lane, by_stream = (
        ResponsesWebSocketAccumulator(),
        ResponseStreamState(input_tools=omit, text_format=omit),
    )
    for event in events:
        by_lane.add_event(oracle(event))
        by_stream.handle_event(oracle(event))
    reasoning, message, call = by_lane.detailed_snapshot()["output"]
    assert reasoning["content"][0]["part"]["text"] == "Hmm."
    assert message["content"][0]["part"]["text"] == "Héllo 🌍"
    assert call["item"]["arguments"] == '{"path": "."}'
    for event in response.completed(USAGE, completed_at=1):
        by_lane.add_event(oracle(event))
        by_stream.handle_event(oracle(event))
    assert by_lane.get_final_response().output_text == "Héllo 🌍"
    assert by_stream._completed_response.output_text == "Héllo 🌍"


def test_warm_up():
    response, events = begun()
    events += response.completed(Usage(input_tokens=7), completed_at=1)
    assert [event.type for event in events] == [*START, "response.completed"]
    end = bodies(events)[-1]["response"]
    assert end["output"] == []
    assert end["usage"]["output_tokens"] == 0


def test_empty_texts_make_no_item(piece):
    response, _ = begun()
    assert response.push([piece("text"), piece("reasoning"), piece("arguments")]) == []


def test_a_call_without_arguments_is_an_item(piece, oracle):
    response, _ = begun()
    events = response.push([piece("call", call_id="c", name="f")])
    events += response.completed(USAGE, completed_at=1)
    for event in events:
        oracle(event)
    assert bodies(events)[-1]["response"]["output"][0]["arguments"] == ""


@pytest.mark.parametrize("before", ["text", "custom_call", "search_call"])
def test_arguments_without_a_call(before, piece):
    response, _ = begun()
    with pytest.raises(InvariantError):
        response.push([piece(before, "a"), piece("arguments", "{}")])


VERBS = {
    "created": lambda r: r.created(),
    "in_progress": lambda r: r.in_progress(),
    "push": lambda r: r.push([]),
    "completed": lambda r: r.completed(USAGE, completed_at=1),
    "incomplete": lambda r: r.incomplete("content_filter", USAGE),
    "cancelled": lambda r: r.cancelled(USAGE),
    "failed": lambda r: r.failed(EngineError("x")),
}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(VERBS)), max_size=8))
def test_verbs_follow_the_table(verbs):
    response, phase = stream(), ResponsePhase.NEW
    for verb in verbs:
        following = RESPONSE[phase].get(verb)
        if following is None:
            with pytest.raises(InvariantError):
                VERBS[verb](response)
        else:
            VERBS[verb](response)
            phase = following
        assert response.ended == (phase is ResponsePhase.ENDED)


CALL_KINDS = {"call": "arguments", "custom_call": "input", "search_call": "query"}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["reasoning", "text"]), texts),
        st.tuples(st.sampled_from(sorted(CALL_KINDS)), st.lists(texts, max_size=3)),
        st.just(("keep-alive", "")),
        st.just(("next push", "")),
    ),
    max_size=12,
)


def as_json(text: str) -> Any:
    """What it says, if it is JSON; nothing is an object without members."""
    try:
        return json.loads(text, parse_constant=int) if text else {}
    except ValueError:
        return text


endings = st.sampled_from(["completed", "incomplete", "cancelled", "failed"])


@settings(deadline=None)
@given(script=steps, ending=endings, stream_id=st.sampled_from([None, "lane"]))
def test_any_deltas_keep_the_grammar(script, ending, stream_id, piece, automaton, oracle):
    response, events = begun(stream_id=stream_id)
    calls = itertools.count(1)
    said: list[tuple[str, str]] = []  # a naive account of the items
    pending = []

    def note(kind: str, text: str) -> None:
        if text and (not said or said[-1][0] != kind):
            said.append((kind, ""))
        if text:
            said[-1] = (kind, said[-1][1] + text)

    for kind, value in script:
        if kind == "keep-alive":
            events += response.push(pending) + response.in_progress()
            pending = []
        elif kind == "next push":
            events += response.push(pending)
            pending = []
        elif kind in CALL_KINDS:
            pending.append(piece(kind, call_id=f"call_{next(calls)}", name="f"))
            pending += [piece(CALL_KINDS[kind], text) for text in value]
            said.append((f"{kind} {len(said)}", "".join(value)))
        else:
            pending.append(piece(kind, value))
            note(kind, value)
    events += response.push(pending)
    events += VERBS[ending](response)
    reader = automaton()
    for event in events:
        reader.feed(event)
    assert reader.ended
    for event in events[-3:]:
        oracle(event)
    texts_said = [as_json(text) if "search" in kind else text for kind, text in said]
    shown = [
        item.get("arguments", item.get("input"))
        if "call_id" in item
        else "".join(part["text"] for part in item["content"])
        for item in reader.items
    ]
    # A failure leaves the last item unfinished, so it is no output.
    assert shown == (texts_said[:-1] if ending == "failed" else texts_said)
    with pytest.raises(InvariantError):
        response.push([])
