"""vLLM's token dialect (0.32), as ``turnwire sim`` reads and writes it."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from turnwire.engine.base import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire.engine.base import EngineOutput

SSE_END = b"data: [DONE]\n\n"

_HALF_CHARACTER = "\ufffd"
_LONGEST_CHARACTER = 8
"""Ids that can be held back for a character before it counts as broken."""


class TextCodec(Protocol):
    """What the app needs of a vocabulary. A profile of the core has it."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end an answer."""
        ...

    def encode(self, text: str, *, control: bool = False) -> Any:  # noqa: ANN401 -- has tolist()
        """Encode text; with ``control``, control tokens are read by name."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; what is no UTF-8 becomes U+FFFD."""
        ...

    def encode_output(self, output: bytes) -> Sequence[int]:
        """Encode an answer, as :class:`turnwire.engine.base.OutputEncoder` does."""
        ...


class SamplingParams(msgspec.Struct, frozen=True):
    """What stands in ``sampling_params``, or beside the prompt of a completion."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    n: Annotated[int, Meta(ge=1, le=1)] = 1

    @property
    def sampling(self) -> Sampling:
        """The same in the engines' own words."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether the stream counts the tokens at its end."""

    include_usage: bool = False


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    request_id: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    priority: int = 0

    @property
    def counted(self) -> bool:
        """Whether the stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class GenerateBody(_Asked, frozen=True, kw_only=True):
    """A ``POST /inference/v1/generate``."""

    token_ids: Annotated[list[int], Meta(min_length=1)]
    sampling_params: SamplingParams


class CompletionBody(_Asked, frozen=True, kw_only=True):
    """A ``POST /v1/completions``; beside these fields stand those of :class:`SamplingParams`."""

    prompt: str | list[int]
    return_token_ids: bool = False


class TokenizeBody(msgspec.Struct, frozen=True):
    """A ``POST /tokenize``, of a text or of a conversation."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one request."""

    prompt: int
    completion: int
    cached: int

    def encode(self) -> bytes:
        """Write it as vLLM does with ``--enable-prompt-tokens-details``."""
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":%d}}'
            % (self.prompt, self.completion, self.prompt + self.completion, self.cached)
        )


class SpokenText:
    """The text of ids that come one by one. Half a character is held back."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._pending: list[int] = []

    def take(self, ids: Sequence[int], *, last: bool) -> str:
        """Return what can be said now; stop ids say nothing."""
        stops = self._codec.stop_token_ids
        self._pending += [token for token in ids if token not in stops]
        text = self._codec.decode(self._pending)
        if not last and text.endswith(_HALF_CHARACTER) and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        self._pending.clear()
        return text


class GenerateEvents:
    """What ``/inference/v1/generate`` answers: ids and nothing else."""

    def __init__(self, request_id: str, stops: frozenset[int]) -> None:
        self._id = msgspec.json.encode(f"generate-tokens-{request_id}")
        self._stops = stops

    def chunk(self, output: EngineOutput, ids: Sequence[int] | None) -> bytes:
        """Write one event of a stream; without ``ids``, one that lacks them."""
        choice = self._choice(output, ids)
        return b'data: {"request_id":%s,"usage":null,"output_mode":"tokens","choices":[%s]}\n\n' % (
            self._id,
            choice,
        )

    def usage(self, usage: Usage) -> bytes:
        """Write the event that counts, the last but one of a stream."""
        return b'data: {"request_id":%s,"output_mode":"tokens","choices":[],"usage":%s}\n\n' % (
            self._id,
            usage.encode(),
        )

    def whole(self, output: EngineOutput, usage: Usage) -> bytes:
        """Write the reply to a request that does not stream."""
        choice = self._choice(output, output.token_ids)
        return b'{"request_id":%s,"choices":[%s],"usage":%s}' % (self._id, choice, usage.encode())

    def _choice(self, output: EngineOutput, ids: Sequence[int] | None) -> bytes:
        return b'{"index":0,"token_ids":%s,"logprobs":null,%s}' % (
            b"null" if ids is None else _ids(ids),
            _ending(output, self._stops),
        )


class CompletionEvents:
    """What ``/v1/completions`` answers: text, and the ids if they are asked for."""

    def __init__(
        self,
        request_id: str,
        stops: frozenset[int],
        *,
        model: str,
        codec: TextCodec,
        prompt: Sequence[int] | None,
    ) -> None:
        """``prompt`` is repeated in the first event; None: no ids are returned at all."""
        self._head = msgspec.json.encode(
            {
                "id": f"cmpl-{request_id}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": model,
            }
        )[:-1]
        self._stops = stops
        self._text = SpokenText(codec)
        self._prompt = prompt
        self._return_ids = prompt is not None

    def chunk(self, output: EngineOutput, ids: Sequence[int] | None) -> bytes:
        """Write one event of a stream; without ``ids``, one that lacks them."""
        return b'data: %s,"choices":[%s],"usage":null}\n\n' % (
            self._head,
            self._choice(output, ids),
        )

    def usage(self, usage: Usage) -> bytes:
        """Write the event that counts, the last but one of a stream."""
        return b'data: %s,"choices":[],"usage":%s}\n\n' % (self._head, usage.encode())

    def whole(self, output: EngineOutput, usage: Usage) -> bytes:
        """Write the reply to a request that does not stream."""
        choice = self._choice(output, output.token_ids)
        return b'%s,"choices":[%s],"usage":%s}' % (self._head, choice, usage.encode())

    def _choice(self, output: EngineOutput, ids: Sequence[int] | None) -> bytes:
        text = self._text.take(output.token_ids, last=output.finish_reason is not None)
        more = b""
        if self._return_ids and ids is not None:
            prompt, self._prompt = self._prompt, None
            more = b',"token_ids":%s,"prompt_token_ids":%s' % (
                _ids(ids),
                b"null" if prompt is None else _ids(prompt),
            )
        return b'{"index":0,"text":%s,"logprobs":null,%s%s}' % (
            msgspec.json.encode(text),
            _ending(output, self._stops),
            more,
        )


def _ids(ids: Sequence[int]) -> bytes:
    return msgspec.json.encode(ids if isinstance(ids, list) else list(ids))


def _ending(output: EngineOutput, stops: frozenset[int]) -> bytes:
    """Write why it ended. ``stop_reason`` names a stop id of the request, not the model's own."""
    reason = output.finish_reason
    stopped_by = None
    if reason == "stop" and output.token_ids and output.token_ids[-1] in stops:
        stopped_by = output.token_ids[-1]
    return b'"finish_reason":%s,"stop_reason":%s' % (
        b"null" if reason is None else b'"%s"' % reason.encode(),
        b"null" if stopped_by is None else b"%d" % stopped_by,
    )


def native_ids(ids: Sequence[int]) -> memoryview:
    """Lay a prompt's ids out as u32. Raises OverflowError for what is no id."""
    return memoryview(array("I", ids))


def error_body(message: str, *, kind: str, status: int, param: str | None = None) -> bytes:
    """Write an error as vLLM does, as a body or inside a stream."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return msgspec.json.encode({"error": error})
