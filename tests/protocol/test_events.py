"""Errors as they read on the wire, and the figures of a response."""

from __future__ import annotations

import inspect
import json

import pytest

import turnwire.errors
from turnwire.errors import (
    ConnectionLimitError,
    ContextLengthError,
    EngineError,
    InvalidStreamIdError,
    InvalidValueError,
    InvariantError,
    OverloadedError,
    PreviousResponseNotFoundError,
    RateLimitError,
    StartupError,
    StreamLimitError,
    TurnwireError,
)
from turnwire.protocol.events import (
    error_body,
    error_event,
    error_headers,
    failure_code,
    steer_failed,
)

SPECIAL = {
    PreviousResponseNotFoundError: ("resp_9f",),
    InvalidStreamIdError: (),
    StreamLimitError: (32,),
    ConnectionLimitError: (60,),
}
EVERY = [
    cls
    for _, cls in inspect.getmembers(turnwire.errors, inspect.isclass)
    if issubclass(cls, TurnwireError) and not issubclass(cls, StartupError)
]


@pytest.mark.parametrize("cls", EVERY)
@pytest.mark.parametrize("stream_id", [None, "planner"])
def test_error_event_has_all_that_some_client_needs(cls, stream_id, oracle):
    error = cls(*SPECIAL.get(cls, ('Über-"broken"\n',)))
    event = error_event(error, sequence_number=3, stream_id=stream_id)
    oracle(event)
    body = json.loads(event.body)
    assert body["type"] == "error"
    assert body["sequence_number"] == 3
    assert body["status"] == error.status
    assert isinstance(body["status"], int)
    assert body["error"] == {
        "type": error.type,
        "code": error.code,
        "message": error.public_message,
        "param": error.param,
    }
    assert body.get("stream_id") == stream_id
    assert ("stream_id" in body) == (stream_id is not None)
    assert "headers" not in body
    assert json.loads(error_body(error)) == {"error": body["error"]}


def test_previous_response_not_found_as_documented():
    # The example in OpenAI's guide to WebSocket mode, with the keys that clients need besides.
    event = error_event(PreviousResponseNotFoundError("resp_9f"), stream_id="planner")
    assert json.loads(event.body) == {
        "type": "error",
        "status": 400,
        "stream_id": "planner",
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Previous response with id 'resp_9f' not found.",
            "param": "previous_response_id",
        },
    }


@pytest.mark.parametrize(("wait", "said"), [(0.2, "1"), (1.0, "1"), (2.1, "3")])
def test_rate_limit_says_when_to_come_back(wait, said, oracle):
    error = RateLimitError("slow down", retry_after=wait)
    event = error_event(error)
    oracle(event)
    assert json.loads(event.body)["headers"] == {"retry-after": said}
    assert error_headers(error) == {"retry-after": said}
    assert error_headers(RateLimitError("no idea")) == {}


@pytest.mark.parametrize("cls", [EngineError, InvariantError])
def test_internals_are_never_sent(cls):
    error = cls("/root/secret.gguf: SIGSEGV")
    assert b"secret" not in error_event(error).body
    assert b"secret" not in error_body(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("x"), "server_error"),
        (InvariantError("x"), "server_error"),
        (OverloadedError("x"), "server_error"),
        (RateLimitError("x"), "rate_limit_exceeded"),
        (InvalidValueError("x"), "invalid_prompt"),
        (ContextLengthError("x"), "context_length_exceeded"),
    ],
)
def test_failure_codes_are_published_ones(error, code):
    assert failure_code(error) == code


def test_steer_is_declined_by_the_schema(oracle):
    event = steer_failed(
        code="steering_not_supported",
        message="Steering is not supported by this server.",
        previous_response_id="resp_1",
        steer_input=b'"keep it short"',
        stream_id="a",
    )
    model = oracle(event)
    assert model.steer.input == "keep it short"
    assert model.error.code == "steering_not_supported"
    assert model.stream_id == "a"
