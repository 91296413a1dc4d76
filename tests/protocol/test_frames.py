"""Frames and bodies: what is taken, and how what is not is named."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.errors import (
    InvalidStreamIdError,
    InvalidValueError,
    MissingParameterError,
    RequestError,
)
from turnwire.protocol.frames import (
    CancelFrame,
    CreateFrame,
    CreateRequest,
    ProcessedFrame,
    SteerFrame,
    UnsupportedFrame,
    decode_create,
    decode_frame,
    stream_id_of,
)
from turnwire.protocol.frames import given as is_given

CREATE = '{"type":"response.create","model":"m","input":[{"role":"user","content":"hé"}]}'


@pytest.mark.parametrize("data", [CREATE, CREATE.encode()])
def test_create_as_text_or_binary(data):
    frame = decode_frame(data)
    assert isinstance(frame, CreateFrame)
    assert isinstance(frame, CreateRequest)
    assert bytes(frame.input) == '[{"role":"user","content":"hé"}]'.encode()
    assert frame.model == "m"


def test_raw_fields_are_the_very_bytes():
    # The core parses them: spacing, key order and number forms as the client wrote them.
    raw = b'[ {"b": 1.0,"a":1e2 , "b":"\\u00e9"} ]'
    frame = decode_frame(b'{"type":"response.create","input":' + raw + b',"tools":' + raw + b"}")
    assert isinstance(frame, CreateFrame)
    assert bytes(frame.input) == raw
    assert bytes(frame.tools) == raw
    assert not bytes(frame.tool_choice)


def test_what_codex_sends_is_taken():
    # As Codex sends them: stream, include, text, client_metadata, and a null or two.
    body = {
        "type": "response.create",
        "model": "m",
        "input": [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": None,
        "prompt_cache_key": "thread",
        "text": {"verbosity": "medium"},
        "generate": False,
        "client_metadata": {"x-codex-turn-metadata": "{}"},
        "some_future_field": {"a": [1, 2]},
    }
    frame = decode_frame(json.dumps(body))
    assert isinstance(frame, CreateFrame)
    assert frame.warm_up
    assert not frame.stored
    assert frame.effort == "medium"


def test_defaults():
    request = decode_create(b"{}")
    assert request.stored
    assert request.calls_in_parallel
    assert not request.warm_up
    assert request.effort is None
    assert bytes(request.input_json) == b"[]"
    assert bytes(decode_create(b'{"input":null}').input_json) == b"[]"
    assert bytes(decode_create(b'{"input":""}').input_json) == b'""'


@pytest.mark.parametrize(
    ("body", "warm"),
    [
        (b'{"generate":false}', True),
        (b'{"generate":true}', False),
        (b'{"prompt_cache_options":{"prewarm":true}}', True),
        (b'{"generate":true,"prompt_cache_options":{"prewarm":true}}', True),
        (b'{"prompt_cache_options":{"prewarm":false}}', False),
    ],
)
def test_warm_up(body, warm):
    assert decode_create(body).warm_up is warm


@pytest.mark.parametrize(
    ("raw", "value"), [(b"", False), (b"null", False), (b"0", True), (b'""', True), (b"[]", True)]
)
def test_given(raw, value):
    assert is_given(msgspec.Raw(raw)) is value


@pytest.mark.parametrize("kind", ["response.cancel", "response.interrupt"])
def test_cancels(kind):
    frame = decode_frame(json.dumps({"type": kind, "response_id": "r", "stream_id": "s"}))
    assert isinstance(frame, CancelFrame)
    assert (frame.response_id, frame.stream_id) == ("r", "s")
    # Any JSON is taken: a reply with an error would be charged to a turn.
    assert isinstance(decode_frame(f'{{"type":"{kind}","response_id":[1]}}'), CancelFrame)


def test_other_frames():
    assert decode_frame('{"type":"response.append","input":3}') == UnsupportedFrame(
        "response.append"
    )
    assert isinstance(decode_frame('{"type":"response.processed","response_id":1}'), ProcessedFrame)
    steer = decode_frame('{"input":"x","type":"response.steer","previous_response_id":"r"}')
    assert isinstance(steer, SteerFrame)
    assert bytes(steer.input) == b'"x"'


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "The frame is not valid JSON: Input data was truncated."),
        ("{", "not valid JSON"),
        ("nope", "not valid JSON: invalid character"),
        (CREATE + "x", "not valid JSON: trailing characters"),
        ('{"type":"response.create","input":[1,]}', "not valid JSON: trailing comma"),
        ('{"type":"response.create","temperature":NaN}', "not valid JSON"),
        ('{"type":"response.create","input":[Infinity]}', "not valid JSON"),
        ('{"type":"response.create","input":01}', "not valid JSON"),
        ('{"type":"response.create","input":"\\ud800 x"}', "half of a surrogate pair"),
        ('{"type":"response.create","user":"\\udc00"}', "half of a surrogate pair"),
        ('{"type":"response.create","model":"\ud800"}', "not valid UTF-8"),
        (b'{"type":"response.create","ignored":"\xff"}', "not valid UTF-8"),
        (b"\xff\xfe{", "not valid UTF-8"),
        (b'{"type":"response.create","input":' + DEEP + b"}", "nested too deeply"),
        (b'{"type":"response.create","ignored":' + DEEP + b"}", "nested too deeply"),
        (DEEP, "JSON object"),
        ("[]", "A frame must be a JSON object with a string 'type'."),
        ('"response.create"', "JSON object"),
        ("null", "JSON object"),
        ('{"type":7}', "string 'type'"),
        ('{"type":["response.create"]}', "string 'type'"),
    ],
)
def test_malformed(data, says):
    with pytest.raises(RequestError) as caught:
        decode_frame(data)
    assert says in caught.value.message
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    assert "msgspec" not in repr(caught.value)


def test_a_frame_needs_a_type():
    with pytest.raises(MissingParameterError) as caught:
        decode_frame('{"model":"m"}')
    assert caught.value.param == "type"
    with pytest.raises(MissingParameterError):
        decode_frame('{"type":null}')


TYPES = [
    ('"temperature":"hot"', "temperature", "expected a number, but got a string instead."),
    ('"temperature":[]', "temperature", "expected a number, but got an array instead."),
    ('"temperature":1e999', "temperature", "Invalid value for 'temperature': number out of range."),
    ('"max_output_tokens":1.5', "max_output_tokens", "expected an integer, but got a number"),
    ('"max_output_tokens":"5"', "max_output_tokens", "expected an integer, but got a string"),
    ('"model":3', "model", "expected a string, but got an integer instead."),
    ('"store":"no"', "store", "expected a boolean, but got a string instead."),
    ('"stream":1', "stream", "expected a boolean, but got an integer instead."),
    ('"metadata":[]', "metadata", "expected an object, but got an array instead."),
    ('"metadata":{"a":1}', "metadata", "expected a string, but got an integer instead."),
    ('"include":"x"', "include", "expected an array, but got a string instead."),
    ('"include":["a",null]', "include[1]", "expected a string, but got null instead."),
    ('"reasoning":"high"', "reasoning", "expected an object, but got a string instead."),
    ('"reasoning":{"effort":1}', "reasoning.effort", "expected a string, but got an integer"),
    ('"text":{"format":"json"}', "text.format", "expected an object, but got a string"),
    ('"text":{"format":{"type":1}}', "text.format.type", "expected a string, but got an integer"),
    ('"previous_response_id":1', "previous_response_id", "expected a string"),
]


@pytest.mark.parametrize(("field", "param", "says"), TYPES)
@pytest.mark.parametrize("over", ["websocket", "http"])
def test_wrong_types_name_the_parameter(field, param, says, over):
    with pytest.raises(InvalidValueError) as caught:
        if over == "websocket":
            decode_frame('{"type":"response.create",' + field + "}")
        else:
            decode_create(("{" + field + "}").encode())
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_stream_id_of_another_type():
    with pytest.raises(InvalidStreamIdError):
        decode_frame('{"type":"response.create","stream_id":7}')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The request body is not valid JSON"),
        (b"[]", "The request body must be a JSON object."),
        (b'{"a":"\xff"}', "The request body is not valid UTF-8."),
        (DEEP, "must be a JSON object"),
        (b'{"input":' + DEEP + b"}", "nested too deeply"),
    ],
)
def test_malformed_bodies(body, says):
    with pytest.raises(RequestError) as caught:
        decode_create(body)
    assert says in caught.value.message


def test_websocket_fields_are_no_error_over_http():
    request = decode_create(b'{"type":"response.create","stream_id":"a b","generate":false}')
    assert request.warm_up


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"stream_id":"a","temperature":"x"}', "a"),
        (b'{"temperature":"x"}', None),
        (b'{"stream_id":null}', None),
        (b"[]", None),
        (b"{", None),
        (b'{"stream_id":"a","x":' + DEEP + b"}", None),
    ],
)
def test_stream_id_of(body, name):
    assert stream_id_of(body) == name


def test_stream_id_of_another_type():
    with pytest.raises(InvalidStreamIdError):
        stream_id_of(b'{"stream_id":3,"temperature":"x"}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
fields = st.dictionaries(
    st.sampled_from([*CreateRequest.__struct_fields__, "type", "response_id", "zzz"]),
    json_values | st.sampled_from(["response.create", "response.cancel", "response.steer"]),
    max_size=6,
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.binary(), fields.map(json.dumps), json_values.map(json.dumps)))
def test_anything_decodes_or_is_a_request_error(data):
    try:
        decode_frame(data)
    except RequestError as error:
        assert error.status == 400
    body = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
    try:
        decode_create(body)
    except RequestError as error:
        assert error.status == 400
