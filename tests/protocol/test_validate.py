"""Every option of a create: honoured, or refused with an error that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses.responses_client_event import ResponseCreate

from turnwire.errors import (
    InvalidStreamIdError,
    InvalidValueError,
    MissingParameterError,
    UnsupportedParameterError,
)
from turnwire.protocol.frames import CreateRequest, decode_create
from turnwire.protocol.validate import check_stream_id, shown, validate


def request(**fields) -> CreateRequest:
    body = {"model": "m", "input": "hi"} | fields
    return decode_create(json.dumps({k: v for k, v in body.items() if v is not ...}).encode())


def json_format(**changed: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    return {"text": {"format": wanted | changed}}


ACCEPTED = [
    {},
    {"input": ..., "previous_response_id": "resp_1"},
    {"input": [], "generate": False},
    {"input": ..., "generate": False, "instructions": "x"},
    {"background": False, "conversation": None, "prompt": None, "moderation": None},
    {"context_management": None, "multi_agent": {"enabled": False}},
    {"truncation": "auto"},
    {"truncation": "disabled", "include": [], "metadata": {}, "tools": None},
    {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
    {"temperature": 0, "top_p": 0, "max_output_tokens": 1, "max_tool_calls": 1, "top_logprobs": 0},
    {"temperature": 2, "top_p": 1, "max_output_tokens": 2**31 - 1},
    {"reasoning": {"effort": "xhigh", "summary": "detailed", "context": "all_turns"}},
    {"reasoning": {"mode": "standard", "generate_summary": "auto"}},
    {"text": {"format": {"type": "text"}, "verbosity": "high"}},
    {"text": {"format": {"type": "json_object"}}},
    json_format(name="n" * 64, strict=True, description="An answer."),
    json_format(strict=None, description=None),
    {"text": {"format": None}, "stream_options": {"include_obfuscation": True}},
    {"service_tier": "priority", "prompt_cache_retention": "24h", "stream": True},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m", "comparison_response_id": "r"}},
    {"metadata": {"k" * 64: "v" * 512}, "safety_identifier": "s" * 128, "user": "u" * 1024},
    {"stream_id": "a" * 256},
    {"stream_id": "A.z-0_9"},
    {"stream_id": None},
    {"never_heard_of": 1},
]


@pytest.mark.parametrize("fields", ACCEPTED)
@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_accepted(fields, transport):
    validate(request(**fields), transport)


REFUSED = [
    (MissingParameterError, "model", {"model": ...}),
    (MissingParameterError, "model", {"model": None}),
    (InvalidValueError, "model", {"model": ""}),
    (InvalidValueError, "model", {"model": "m" * 257}),
    (MissingParameterError, "input", {"input": ...}),
    (MissingParameterError, "input", {"input": None}),
    (InvalidValueError, "previous_response_id", {"previous_response_id": ""}),
    (InvalidValueError, "previous_response_id", {"previous_response_id": "r" * 257}),
    (
        InvalidValueError,
        "previous_response_id",
        {"previous_response_id": "resp_1", "conversation": "conv_1"},
    ),
    (UnsupportedParameterError, "conversation", {"conversation": {"id": "conv_1"}}),
    (UnsupportedParameterError, "conversation", {"conversation": "conv_1", "input": ...}),
    (UnsupportedParameterError, "background", {"background": True}),
    (UnsupportedParameterError, "prompt", {"prompt": {"id": "p"}}),
    (UnsupportedParameterError, "context_management", {"context_management": []}),
    (UnsupportedParameterError, "moderation", {"moderation": {"model": "m"}}),
    (UnsupportedParameterError, "multi_agent", {"multi_agent": {"enabled": True}}),
    (UnsupportedParameterError, "multi_agent", {"multi_agent": [1]}),
    (InvalidValueError, "truncation", {"truncation": "some"}),
    (InvalidValueError, "temperature", {"temperature": -0.1}),
    (InvalidValueError, "temperature", {"temperature": 2.01}),
    (InvalidValueError, "top_p", {"top_p": 1.01}),
    (InvalidValueError, "max_output_tokens", {"max_output_tokens": 0}),
    (InvalidValueError, "max_output_tokens", {"max_output_tokens": 2**31}),
    (InvalidValueError, "max_tool_calls", {"max_tool_calls": 0}),
    (InvalidValueError, "top_logprobs", {"top_logprobs": 21}),
    (UnsupportedParameterError, "top_logprobs", {"top_logprobs": 1}),
    (InvalidValueError, "include[1]", {"include": ["reasoning.encrypted_content", "x"]}),
    (UnsupportedParameterError, "include[0]", {"include": ["message.output_text.logprobs"]}),
    (InvalidValueError, "service_tier", {"service_tier": "gold"}),
    (InvalidValueError, "prompt_cache_retention", {"prompt_cache_retention": "1h"}),
    (InvalidValueError, "prompt_cache_options.mode", {"prompt_cache_options": {"mode": "x"}}),
    (InvalidValueError, "prompt_cache_options.ttl", {"prompt_cache_options": {"ttl": "1h"}}),
    (InvalidValueError, "reasoning.effort", {"reasoning": {"effort": "extreme"}}),
    (InvalidValueError, "reasoning.summary", {"reasoning": {"summary": "long"}}),
    (InvalidValueError, "reasoning.generate_summary", {"reasoning": {"generate_summary": "x"}}),
    (InvalidValueError, "reasoning.context", {"reasoning": {"context": "none"}}),
    (UnsupportedParameterError, "reasoning.mode", {"reasoning": {"mode": "pro"}}),
    (InvalidValueError, "text.verbosity", {"text": {"verbosity": "max"}}),
    (MissingParameterError, "text.format.type", {"text": {"format": {}}}),
    (InvalidValueError, "text.format.type", {"text": {"format": {"type": "xml"}}}),
    (MissingParameterError, "text.format.name", json_format(name=None)),
    (InvalidValueError, "text.format.name", json_format(name="")),
    (InvalidValueError, "text.format.name", json_format(name="a b")),
    (InvalidValueError, "text.format.name", json_format(name="n" * 65)),
    (MissingParameterError, "text.format.schema", json_format(schema=None)),
    (InvalidValueError, "text.format.schema", json_format(schema=[])),
    (InvalidValueError, "metadata", {"metadata": {str(n): "" for n in range(17)}}),
    (InvalidValueError, "metadata", {"metadata": {"k" * 65: ""}}),
    (InvalidValueError, "metadata.k", {"metadata": {"k": "v" * 513}}),
    (InvalidValueError, "safety_identifier", {"safety_identifier": "s" * 129}),
    (InvalidValueError, "user", {"user": "u" * 1025}),
    (InvalidValueError, "prompt_cache_key", {"prompt_cache_key": "k" * 1025}),
]


@pytest.mark.parametrize(("error", "param", "fields"), REFUSED)
@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_refused(error, param, fields, transport):
    with pytest.raises(error) as caught:
        validate(request(**fields), transport)
    assert type(caught.value) is error
    assert caught.value.param == param
    assert param in caught.value.message or "Invalid value: '" in caught.value.message
    assert len(caught.value.message) < 400


BAD_STREAM_IDS = ["", "a b", "ä", "a/b", "a" * 257, "a\n", "\u0661"]


@pytest.mark.parametrize("stream_id", BAD_STREAM_IDS)
def test_stream_id(stream_id):
    with pytest.raises(InvalidStreamIdError):
        check_stream_id(stream_id)
    with pytest.raises(InvalidStreamIdError):
        validate(request(stream_id=stream_id), "websocket")
    validate(request(stream_id=stream_id), "http")  # means nothing there


def test_messages_in_the_manner_of_openai():
    with pytest.raises(InvalidValueError) as caught:
        validate(request(temperature=3), "http")
    assert caught.value.message == (
        "Invalid 'temperature': decimal above maximum value. "
        "Expected a value <= 2, but got 3.0 instead."
    )
    with pytest.raises(InvalidValueError) as caught:
        validate(request(max_output_tokens=0), "http")
    assert caught.value.message == (
        "Invalid 'max_output_tokens': integer below minimum value. "
        "Expected a value >= 1, but got 0 instead."
    )
    with pytest.raises(InvalidValueError) as caught:
        validate(request(truncation="some"), "http")
    assert caught.value.message == (
        "Invalid value: 'some'. Supported values are: 'auto', 'disabled'."
    )


def test_huge_numbers_are_refused_in_few_words():
    body = b'{"model":"m","input":"x","max_output_tokens":' + b"9" * 5000 + b"}"
    with pytest.raises(InvalidValueError) as caught:
        validate(decode_create(body), "http")
    assert len(caught.value.message) < 400
    assert shown("x" * 1000) == "x" * 64 + "…"


# What OpenAI's create has that CreateRequest has not, and why that is right.
IGNORED = {
    "type": "the frame's own",
    "access_programs": "an entitlement at OpenAI; no model here asks for one",
    "background_options": "only with background, which is refused",
    "image": "a compression hint for images, which are refused by the core for now",
}


def test_no_option_of_the_api_is_overlooked():
    assert set(ResponseCreate.model_fields) - set(CreateRequest.__struct_fields__) == set(IGNORED)
