"""What the server says: one JSON object per event, encoded once.

An event's ``body`` is sent as one text frame over WebSocket, and as ``event:`` and ``data:`` lines
over HTTP. Bodies are put together from fragments: the encoder sees only what is new in an event.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from turnwire.errors import ContextLengthError, RateLimitError, RequestError, TurnwireError

if TYPE_CHECKING:
    from turnwire.protocol.frames import CreateRequest


class Event(NamedTuple):
    """One server event: its ``type``, and ``body``, a JSON object in UTF-8."""

    type: str
    body: bytes


class Usage(NamedTuple):
    """Tokens of one response; ``cached_tokens`` is what the engine reported, else 0."""

    input_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


encode: Final = msgspec.json.Encoder().encode
"""Any plain value as JSON."""


def lane_fragment(stream_id: str | None) -> bytes:
    """Echo ``stream_id``, in a fragment: nothing at all on the default lane."""
    return b"" if stream_id is None else b',"stream_id":' + encode(stream_id)


def error_event(
    error: TurnwireError, *, sequence_number: int = 0, stream_id: str | None = None
) -> Event:
    """Make the nested ``error`` event of a WebSocket (docs/protocol.md, Errors).

    It is for failures before ``response.created`` and ends its turn: nothing may follow it for
    that request. All four keys, ``status`` and ``sequence_number`` are always there:
    Codex ignores one without ``status``, the Vercel AI SDK one without ``sequence_number``, and
    Open Responses' suite wants all four keys.
    """
    headers = error_headers(error)
    body = b'{"type":"error","sequence_number":%d,"status":%d%b,"error":%b%b}' % (
        sequence_number,
        error.status,
        lane_fragment(stream_id),
        encode(
            {
                "type": error.type,
                "code": error.code,
                "message": error.public_message,
                "param": error.param,
            }
        ),
        # Codex reads the wait from a map beside `error`, not inside it.
        b',"headers":' + encode(headers) if headers else b"",
    )
    return Event("error", body)


def error_body(error: TurnwireError) -> bytes:
    """Make the body of an HTTP error, with the four keys of OpenAI's ``Error`` schema."""
    return encode(
        {
            "error": {
                "message": error.public_message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_headers(error: TurnwireError) -> dict[str, str]:
    """HTTP headers that go with an error: ``retry-after`` in seconds where a wait is known."""
    if isinstance(error, RateLimitError) and error.retry_after is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    return {}


def steer_failed(
    *, code: str, message: str, previous_response_id: str, steer_input: bytes, stream_id: str | None
) -> Event:
    """Decline a ``response.steer``, giving its input back as OpenAI's event does.

    It belongs to no response's count of events, so its ``sequence_number`` is 0.
    """
    body = (
        b'{"type":"response.steer.failed","sequence_number":0%b,'
        b'"steer":{"previous_response_id":%b,"input":%b},"error":%b}'
    ) % (
        lane_fragment(stream_id),
        encode(previous_response_id),
        steer_input,
        encode({"type": "invalid_request_error", "code": code, "message": message}),
    )
    return Event("response.steer.failed", body)


FailureCode = Literal[
    "server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"
]


def failure_code(error: TurnwireError) -> FailureCode:
    """Name a failure for ``response.error.code`` (docs/protocol.md, Errors).

    The published values are a closed list and strict clients check it; ``context_length_exceeded``
    is added because Codex has a text of its own for it. Overload reads ``server_error``: Codex
    takes ``server_is_overloaded`` for final, ``server_error`` for worth a retry.
    """
    if isinstance(error, ContextLengthError):
        return "context_length_exceeded"
    if isinstance(error, RateLimitError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"


def _format(request: CreateRequest) -> dict[str, object]:
    """``text.format`` as it is in force: a schema is always enforced."""
    wanted = request.text.format if request.text is not None else None
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name,
        "description": wanted.description,
        "schema": wanted.schema,
        "strict": True,
    }


class ResponseObject:
    """The Response object of one response, in fragments.

    What never changes, with the core's echo of ``tools``, ``instructions`` and ``tool_choice``
    spliced in as it is, is encoded once; ``render`` adds what does.
    """

    __slots__ = ("_constant", "_head")

    def __init__(
        self,
        request: CreateRequest,
        *,
        response_id: str,
        created_at: int,
        model: str,
        store: bool,
        echo_tools: bytes,
        echo_instructions: bytes,
        echo_tool_choice: bytes,
        temperature: float | None,
        top_p: float | None,
        has_verbosity: bool,
    ) -> None:
        self._head = b'{"id":%b,"object":"response","created_at":%d,"status":"' % (
            encode(response_id),
            created_at,
        )
        asked = request.verbosity if has_verbosity else None
        constant = {
            "background": False,
            "conversation": None,
            "frequency_penalty": 0.0,
            "instructions": msgspec.Raw(echo_instructions),
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata or {},
            "model": model,
            "parallel_tool_calls": request.calls_in_parallel,
            "presence_penalty": 0.0,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "reasoning": {"effort": request.effort, "summary": None},
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": store,
            "temperature": _first(request.temperature, temperature, 1.0),
            "text": {"format": _format(request), "verbosity": asked or "medium"},
            "tool_choice": msgspec.Raw(echo_tool_choice),
            "tools": msgspec.Raw(echo_tools),
            "top_logprobs": 0,
            "top_p": _first(request.top_p, top_p, 1.0),
            "truncation": request.truncation or "disabled",
            "user": request.user,
        }
        self._constant = b"," + encode(constant)[1:]

    def render(
        self,
        status: str,
        output: bytes,
        *,
        usage: Usage | None = None,
        completed_at: int | None = None,
        reason: str | None = None,
        error: TurnwireError | None = None,
    ) -> bytes:
        """Encode the object. ``output`` is the JSON of the items, with commas between them."""
        failure = None
        if error is not None:
            failure = {"code": failure_code(error), "message": error.public_message}
        return (
            b'%b%b","completed_at":%b,"error":%b,"incomplete_details":%b,"output":[%b],"usage":%b%b'
            % (
                self._head,
                status.encode(),
                encode(completed_at),
                encode(failure),
                encode(None if reason is None else {"reason": reason}),
                output,
                _usage(usage),
                self._constant,
            )
        )


def _usage(usage: Usage | None) -> bytes:
    if usage is None:
        return b"null"
    return encode(
        {
            "input_tokens": usage.input_tokens,
            # Both keys are required by openai-python's model of usage, whatever a server caches.
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
    )


def _first(asked: float | None, effective: float | None, default: float) -> float:
    if asked is not None:
        return asked
    return default if effective is None else effective
