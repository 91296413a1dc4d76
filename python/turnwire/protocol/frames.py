"""What a client may say: frames and HTTP bodies, decoded.

Only the envelope is decoded here. ``input``, ``instructions``, ``tools`` and ``tool_choice`` stay
raw JSON and are parsed once, by the core (docs/design.md, D1); their errors come from there.
Unknown top-level fields are ignored, because clients send private ones (Codex:
``client_metadata``) and new ones appear every month; what a field *means* is checked strictly, in
:mod:`turnwire.protocol.validate`.

Nothing of msgspec leaves this module: every failure is a RequestError with a message in the manner
of OpenAI's and the parameter's path.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from turnwire.errors import (
    InvalidStreamIdError,
    InvalidValueError,
    MissingParameterError,
    RequestError,
)

_ABSENT = Raw(b"")
_EMPTY_ARRAY = Raw(b"[]")


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """The ``reasoning`` object of a create."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The ``text.format`` object."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    schema: Raw = _ABSENT
    strict: bool | None = None


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """The ``text`` object of a create."""

    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The ``stream_options`` object. This server never pads, so it has nothing to do."""

    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The ``prompt_cache_options`` object; ``prewarm`` is the same as ``generate: false``."""

    mode: str | None = None
    ttl: str | None = None
    comparison_response_id: str | None = None
    prewarm: bool | None = None


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/responses`` and of ``response.create`` (docs/protocol.md).

    A Raw field is ``b""`` when absent and may hold the JSON ``null``; :func:`given` says whether it
    holds a value. None means absent or ``null`` everywhere else. Raw fields are views of the
    message, which lives as long as they do.
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
        """Whether nothing is to be sampled."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)

    @property
    def effort(self) -> str | None:
        """``reasoning.effort``, or None when the model's own default is wanted."""
        return self.reasoning.effort if self.reasoning is not None else None

    @property
    def verbosity(self) -> str | None:
        """``text.verbosity``, or None when it is the model's own."""
        return self.text.verbosity if self.text is not None else None

    @property
    def json_schema(self) -> bytes | None:
        """What the answer must be valid under, by ``text.format``; None when it is free text."""
        wanted = self.text.format if self.text is not None else None
        if wanted is None or wanted.type == "text":
            return None
        return bytes(wanted.schema) if wanted.type == "json_schema" else b'{"type":"object"}'

    @property
    def calls_in_parallel(self) -> bool:
        """``parallel_tool_calls`` with its default, true."""
        return self.parallel_tool_calls is not False

    @property
    def input_json(self) -> Raw:
        """``input`` for the core: ``[]`` when absent or null (a continuation may add nothing)."""
        return self.input if given(self.input) else _EMPTY_ARRAY


class CreateFrame(
    CreateRequest, frozen=True, kw_only=True, tag_field="type", tag="response.create"
):
    """``response.create``: a request, flat beside its ``type``."""


class CancelFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.cancel"
):
    """``response.cancel``, an extension that Pipecat sends.

    Its fields may be any JSON: what names no active response is ignored, as a reply with an error
    would be charged to a turn.
    """

    response_id: Any = None
    stream_id: Any = None


class InterruptFrame(
    CancelFrame, frozen=True, kw_only=True, tag_field="type", tag="response.interrupt"
):
    """``response.interrupt``, which is in Codex (0.169 on): the same as a cancel."""


class SteerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """``response.steer``, which this server declines (docs/compatibility.md)."""

    previous_response_id: Any = None
    input: Raw = _ABSENT


class ProcessedFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.processed"
):
    """``response.processed``, which Codex sends; any reply would poison its next turn."""


class UnsupportedFrame(msgspec.Struct, frozen=True):
    """A frame of a type that this server does not know (or no longer: ``response.append``)."""

    type: str


Frame: TypeAlias = CreateFrame | CancelFrame | SteerFrame | ProcessedFrame | UnsupportedFrame
_Known = CreateFrame | CancelFrame | InterruptFrame | SteerFrame | ProcessedFrame
T = TypeVar("T")


class _StreamId(msgspec.Struct):
    stream_id: Any = None


_frames: msgspec.json.Decoder[_Known] = msgspec.json.Decoder(_Known)
_creates = msgspec.json.Decoder(CreateRequest)
_objects = msgspec.json.Decoder(dict[str, Raw])
_stream_ids = msgspec.json.Decoder(_StreamId)
_CREATE = "response.create"

SERVED_FRAMES = (_CREATE, "response.cancel", "response.steer")
"""The frame types an error lists; Codex's two private ones are taken as well."""

# `Expected `float | null`, got `str` - at `$.temperature``; the path never holds client's text.
_WITH_PATH = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<got>[^`]*)`)?")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_WORDS = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}


def given(raw: Raw) -> bool:
    """Whether a Raw field holds a value: neither absent nor ``null``."""
    view = memoryview(raw)
    return view.nbytes > 0 and bytes(view[:4]) != b"null"


def decode_create(body: bytes) -> CreateRequest:
    """Decode an HTTP body. Raises RequestError; ``param`` names the parameter at fault."""
    utf8(body, "request body")
    try:
        return _decode(_creates, body, "request body")
    except msgspec.ValidationError as error:
        raise _mismatch(str(error), "The request body") from None


def decode_frame(data: str | bytes) -> Frame:
    """Decode a WebSocket frame, text or binary.

    Raises RequestError for what is not a JSON object with a string ``type``, InvalidStreamIdError
    for a create's ``stream_id`` that is not a string, and InvalidValueError for another field of
    it that has a wrong type.
    """
    return parse_frame(utf8(data, "frame"))


def parse_frame(body: bytes) -> Frame:
    """Do what :func:`decode_frame` does, to what is known to be UTF-8."""
    try:
        return _decode(_frames, body, "frame")
    except msgspec.ValidationError as error:
        return _unknown_frame(body, error)


def stream_id_of(body: bytes) -> str | None:
    """Read which stream a create names that was refused for another field.

    Raises InvalidStreamIdError when it is neither a string nor null.
    """
    try:
        name = _stream_ids.decode(body).stream_id
    except (msgspec.MsgspecError, RecursionError):
        return None
    if name is not None and not isinstance(name, str):
        raise InvalidStreamIdError
    return name


def utf8(data: str | bytes, noun: str) -> bytes:
    """Take what came as bytes. Raises RequestError when it is not, or cannot be, UTF-8."""
    # msgspec does not look into what it skips, so bytes are checked here, whole.
    try:
        if isinstance(data, str):
            return data.encode()
        if not data.isascii():
            data.decode()
    except UnicodeError:
        raise RequestError(f"The {noun} is not valid UTF-8.") from None
    return data


def _decode(decoder: msgspec.json.Decoder[T], body: bytes, noun: str) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        detail = str(error).removeprefix("JSON is malformed: ")
        if _LONE_SURROGATE.search(body):
            detail = "a \\u escape is half of a surrogate pair"
        raise RequestError(f"The {noun} is not valid JSON: {detail}.") from None
    except RecursionError:
        raise RequestError(f"The {noun} is nested too deeply.") from None


def _unknown_frame(body: bytes, error: msgspec.ValidationError) -> Frame:
    try:
        raw = _objects.decode(body).get("type")
        kind = msgspec.json.decode(raw, type=str) if raw is not None and given(raw) else None
    except (msgspec.MsgspecError, RecursionError):
        raise RequestError("A frame must be a JSON object with a string 'type'.") from None
    if kind is None:
        raise MissingParameterError("Missing required parameter: 'type'.", param="type")
    if kind != _CREATE:
        return UnsupportedFrame(kind)
    raise _mismatch(str(error), "The frame") from None


def _mismatch(message: str, noun: str) -> RequestError:
    match = _WITH_PATH.fullmatch(message)
    what, path = (match["what"], match["path"]) if match is not None else (message, None)
    mismatch = _MISMATCH.match(what)
    if not path:
        return RequestError(f"{noun} must be a JSON object.")
    param = path.replace("[...]", "")
    if param == "stream_id":
        return InvalidStreamIdError()
    if mismatch is None:
        why = ": number out of range" if what == "Number out of range" else ""
        return InvalidValueError(f"Invalid value for '{param}'{why}.", param=param)
    expected = [name for name in mismatch["expected"].split(" | ") if name != "null"]
    wanted = " or ".join(_WORDS.get(name, name) for name in expected)
    got = mismatch["got"]
    instead = f", but got {_WORDS.get(got, got)} instead" if got else ""
    return InvalidValueError(
        f"Invalid type for '{param}': expected {wanted}{instead}.", param=param
    )
