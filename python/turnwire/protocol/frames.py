"""What a client may say: frames and HTTP bodies, decoded.

Only the envelope is decoded here. ``input``, ``instructions``, ``tools`` and ``tool_choice`` stay
raw JSON and are parsed once, by the core (D1); their errors come from there. Unknown top-level
fields are ignored, because clients send private ones (Codex: ``client_metadata``) and new ones
appear every month; what a field *means* is checked strictly, in :mod:`turnwire.protocol.validate`.

Nothing of msgspec leaves this module: every failure is a RequestError with a message in the manner
of OpenAI's and the parameter's path.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from turnwire.errors import (
    InvalidStreamIdError,
    InvalidValueError,
    MissingParameterError,
    RequestError,
)

_ABSENT = Raw(b"")


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """The ``reasoning`` object of a create."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The ``text.format`` object; only its kind is read."""

    type: str | None = None


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """The ``text`` object of a create."""

    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The ``stream_options`` object. This server never pads, so both values are honoured."""

    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``prompt_cache_options`` object; ``prewarm`` is the same as ``generate: false``."""

    mode: str | None = None
    ttl: str | None = None
    comparison_response_id: str | None = None
    prewarm: bool | None = None


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/responses`` and of ``response.create`` (protocol §3.2).

    A Raw field is ``b""`` when absent and may hold the JSON ``null``; :func:`given` says whether it
    holds a value. None means absent or ``null`` everywhere else.
    """

    model: str | None = None
    input: Raw = _ABSENT
    instructions: Raw = _ABSENT
    tools: Raw = _ABSENT
    tool_choice: Raw = _ABSENT
    previous_response_id: str | None = None
    conversation: Raw = _ABSENT
    store: bool | None = None
    stream: bool | None = None
    stream_id: str | None = None
    generate: bool | None = None
    background: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    client_metadata: Raw = _ABSENT
    stream_options: StreamOptions | None = None
    context_management: Raw = _ABSENT
    prompt: Raw = _ABSENT
    multi_agent: Raw = _ABSENT
    moderation: Raw = _ABSENT

    @property
    def stored(self) -> bool:
        """Whether the response is to be stored: the API's default is yes."""
        return self.store is not False

    @property
    def warm_up(self) -> bool:
        """Whether nothing is to be sampled (protocol §3.3)."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)

    @property
    def effort(self) -> str | None:
        """``reasoning.effort``, or None when the model's own default is wanted."""
        return self.reasoning.effort if self.reasoning is not None else None

    @property
    def thinking(self) -> bool:
        """Whether the model may reason: every effort but ``none``."""
        return self.effort != "none"

    @property
    def calls_in_parallel(self) -> bool:
        """``parallel_tool_calls`` with its default, true."""
        return self.parallel_tool_calls is not False

    @property
    def input_json(self) -> Raw:
        """``input`` for the core: ``[]`` when absent or null (a continuation may add nothing)."""
        return self.input if given(self.input) else _EMPTY_ARRAY


_EMPTY_ARRAY = Raw(b"[]")


class CreateFrame(
    CreateRequest, frozen=True, kw_only=True, tag_field="type", tag="response.create"
):
    """``response.create``: a request, flat beside its ``type``."""


class CancelFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.cancel"
):
    """``response.cancel``, an extension that Pipecat sends, and Codex's ``response.interrupt``.

    ``response_id`` may be any JSON value: one that names no active response is ignored.
    """

    response_id: Any = None
    stream_id: Any = None


class SteerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """``response.steer`` (protocol §7), which this server always declines."""

    previous_response_id: str = ""
    input: Raw = _ABSENT


class ProcessedFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.processed"
):
    """``response.processed``, sent by Codex: swallowed, as any reply would poison its next turn."""


class UnsupportedFrame(msgspec.Struct, frozen=True):
    """A frame of a type that this server does not know (or no longer: ``response.append``)."""

    type: str


Frame: TypeAlias = CreateFrame | CancelFrame | SteerFrame | ProcessedFrame | UnsupportedFrame


def given(raw: Raw) -> bool:
    """Whether a Raw field holds a value: neither absent nor ``null``."""
    view = memoryview(raw)
    return view.nbytes > 0 and bytes(view[:4]) != b"null"


def decode_create(body: bytes) -> CreateRequest:
    """Decode an HTTP body. Raises RequestError; ``param`` names the parameter at fault."""
    raise NotImplementedError


def decode_frame(data: str | bytes) -> Frame:
    """Decode a WebSocket frame, text or binary (protocol §3.1).

    Raises RequestError for what is not a JSON object with a string ``type``, InvalidStreamIdError
    for a ``stream_id`` that is not a string, and InvalidValueError for a create whose envelope has
    a wrong type somewhere.
    """
    raise NotImplementedError
