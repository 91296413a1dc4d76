"""What a create may ask for, as far as it does not depend on history.

Every option of the API is honoured, or refused with an error that names it; what is only accepted
and echoed is listed in docs/compatibility.md. The core checks ``input``, ``instructions``,
``tools`` and ``tool_choice`` when the turn starts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from turnwire.errors import (
    InvalidStreamIdError,
    InvalidValueError,
    MissingParameterError,
    UnsupportedParameterError,
)
from turnwire.protocol.frames import given

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from turnwire.protocol.frames import CreateRequest, TextFormat

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES = ("auto", "concise", "detailed")
_CONTEXTS = ("auto", "current_turn", "all_turns")
_VERBOSITIES = ("low", "medium", "high")
_FORMAT_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TEXT_FORMATS = ("text", "json_schema", "json_object")
_TRUNCATIONS = ("auto", "disabled")
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
_RETENTIONS = ("in_memory", "24h")
_CACHE_MODES = ("implicit", "explicit")
_CACHE_TTLS = ("30m", "12h")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    _LOGPROBS,
)

_MAX_INT = 2**31 - 1
# What is echoed on every lifecycle event, or in an error, must not be a way to make events large.
# safety_identifier's bound is OpenAI's; the others are ours and generous.
_MAX_LENGTHS = {
    "model": 256,
    "previous_response_id": 256,
    "prompt_cache_key": 1024,
    "safety_identifier": 128,
    "user": 1024,
}


def validate(request: CreateRequest, transport: Literal["websocket", "http"]) -> None:
    """Refuse what cannot be served.

    ``stream_id`` is for WebSocket only and ignored over HTTP. Raises InvalidValueError,
    MissingParameterError, UnsupportedParameterError, and InvalidStreamIdError over WebSocket.
    """
    if transport == "websocket":
        check_stream_id(request.stream_id)
    _check_lengths(request)
    _check_lineage(request)
    _check_ranges(request)
    _check_choices(request)
    _check_unserved(request)


def check_stream_id(stream_id: str | None) -> None:
    """Raise InvalidStreamIdError unless it is None (the default lane) or well formed."""
    if stream_id is not None and _STREAM_ID.fullmatch(stream_id) is None:
        raise InvalidStreamIdError


def _check_lengths(request: CreateRequest) -> None:
    for param, limit in _MAX_LENGTHS.items():
        value: str | None = getattr(request, param)
        if value is None:
            continue
        if len(value) > limit:
            raise InvalidValueError(
                f"Invalid '{param}': string too long. Expected a string with maximum length "
                f"{limit}, but got a string with length {len(value)} instead.",
                param=param,
            )
        if not value and param in {"model", "previous_response_id"}:
            raise InvalidValueError(f"Invalid '{param}': empty string.", param=param)


def _check_lineage(request: CreateRequest) -> None:
    if request.model is None:
        raise MissingParameterError("Missing required parameter: 'model'.", param="model")
    if request.previous_response_id is not None:
        if given(request.conversation):
            raise InvalidValueError(
                "Mutually exclusive parameters: 'previous_response_id' cannot be used in "
                "conjunction with 'conversation'.",
                param="previous_response_id",
            )
    elif not (given(request.input) or given(request.conversation) or request.warm_up):
        raise MissingParameterError(
            "Missing required parameter: 'input'. One of 'input' or 'previous_response_id' must "
            "be provided.",
            param="input",
        )


def _check_ranges(request: CreateRequest) -> None:
    check_range("temperature", request.temperature, 0, 2)
    check_range("top_p", request.top_p, 0, 1)
    check_range("top_logprobs", request.top_logprobs, 0, 20)
    check_range("max_output_tokens", request.max_output_tokens, 1, _MAX_INT)
    check_range("max_tool_calls", request.max_tool_calls, 1, _MAX_INT)
    metadata = request.metadata or {}
    if len(metadata) > 16:
        raise InvalidValueError(
            f"Invalid 'metadata': at most 16 pairs are allowed, but got {len(metadata)}.",
            param="metadata",
        )
    for key, value in metadata.items():
        if len(key) > 64:
            raise InvalidValueError(
                "Invalid 'metadata': a key is longer than 64 characters.", param="metadata"
            )
        if len(value) > 512:
            raise InvalidValueError(
                f"Invalid 'metadata.{key}': the value is longer than 512 characters.",
                param=f"metadata.{key}",
            )


def _check_choices(request: CreateRequest) -> None:
    check_choice("truncation", request.truncation, _TRUNCATIONS)
    check_choice("service_tier", request.service_tier, _TIERS)
    check_choice("prompt_cache_retention", request.prompt_cache_retention, _RETENTIONS)
    check_includes(request.include or ())
    if request.prompt_cache_options is not None:
        check_choice("prompt_cache_options.mode", request.prompt_cache_options.mode, _CACHE_MODES)
        check_choice("prompt_cache_options.ttl", request.prompt_cache_options.ttl, _CACHE_TTLS)
    if request.reasoning is not None:
        check_choice("reasoning.effort", request.reasoning.effort, _EFFORTS)
        check_choice("reasoning.summary", request.reasoning.summary, _SUMMARIES)
        check_choice("reasoning.generate_summary", request.reasoning.generate_summary, _SUMMARIES)
        check_choice("reasoning.context", request.reasoning.context, _CONTEXTS)
    if request.text is not None:
        check_choice("text.verbosity", request.text.verbosity, _VERBOSITIES)
        if request.text.format is not None:
            _check_format(request.text.format)


def _check_format(text_format: TextFormat) -> None:
    _required("text.format.type", text_format.type)
    check_choice("text.format.type", text_format.type, _TEXT_FORMATS)
    if text_format.type != "json_schema":
        return
    name = text_format.name
    _required("text.format.name", name)
    if name is not None and not _FORMAT_NAME.fullmatch(name):
        raise InvalidValueError(
            f"Invalid 'text.format.name': expected '{_FORMAT_NAME.pattern}'.",
            param="text.format.name",
        )
    _required("text.format.schema", text_format.schema if given(text_format.schema) else None)
    if not bytes(text_format.schema).startswith(b"{"):
        raise InvalidValueError(
            "Invalid type for 'text.format.schema': expected an object.",
            param="text.format.schema",
        )


def _required(param: str, value: object | None) -> None:
    if value is None:
        raise MissingParameterError(f"Missing required parameter: '{param}'.", param=param)


def _check_unserved(request: CreateRequest) -> None:
    if request.background:
        raise _unserved("background", "Background responses are not served.")
    if given(request.conversation):
        raise _unserved("conversation", "Continue by 'previous_response_id' instead.")
    if given(request.prompt):
        raise _unserved("prompt", "Prompt templates are not served.")
    if given(request.context_management):
        raise _unserved("context_management", "Compaction is not served.")
    if given(request.moderation):
        raise _unserved("moderation", "Moderation results are not served.")
    if given(request.multi_agent) and _enabled(request.multi_agent):
        raise _unserved("multi_agent", "Hosted multi-agent runs are not served.")
    if request.top_logprobs:
        raise _unserved("top_logprobs", "Log probabilities are not served.")
    for index, value in enumerate(request.include or ()):
        if value == _LOGPROBS:
            raise _unserved(f"include[{index}]", "Log probabilities are not served.")
    if request.reasoning is not None and request.reasoning.mode not in {None, "standard"}:
        raise _unserved("reasoning.mode", "Only 'standard' is served.")


def _enabled(raw: msgspec.Raw) -> bool:
    value: Any = msgspec.json.decode(raw)
    return not (isinstance(value, dict) and value.get("enabled", False) is False)


def check_includes(values: Iterable[str]) -> None:
    """Raise InvalidValueError for an ``include`` that the API does not have."""
    for index, value in enumerate(values):
        check_choice(f"include[{index}]", value, _INCLUDABLE)


def check_range(param: str, value: float | None, low: int, high: int) -> None:
    """Raise InvalidValueError unless ``value`` is None or within the bounds."""
    if value is None or low <= value <= high:
        return
    bound = f">= {low}" if value < low else f"<= {high}"
    kind = "integer" if isinstance(value, int) else "decimal"
    raise InvalidValueError(
        f"Invalid '{param}': {kind} {'below minimum' if value < low else 'above maximum'} value. "
        f"Expected a value {bound}, but got {shown(value)} instead.",
        param=param,
    )


def check_choice(param: str, value: str | None, allowed: Collection[str]) -> None:
    """Raise InvalidValueError unless ``value`` is None or ``allowed``."""
    if value is not None and value not in allowed:
        listed = ", ".join(f"'{choice}'" for choice in allowed)
        raise InvalidValueError(
            f"Invalid value: '{shown(value)}'. Supported values are: {listed}.", param=param
        )


def _unserved(param: str, why: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"Unsupported parameter: '{param}' is not supported by this server. {why}", param=param
    )


def shown(value: object) -> str:
    """Repeat a client's value in an error: at most 64 characters of it."""
    try:
        text = str(value)
    except ValueError:  # an int of more digits than Python will print
        return "a huge number"
    return text if len(text) <= 64 else text[:64] + "…"
