"""llama.cpp's own HTTP dialect (b11549): ``/completion`` chunks, refusals, saved slots."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine.base import Sampling
from turnwire.errors import ContextLengthError, EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from turnwire.engine.base import EngineRequest
    from turnwire.engine.events import EventReader

# Of the last event. All of them would include the whole prompt as text, once per turn.
_FINAL_FIELDS = ["stop", "tokens", "stop_type", "tokens_predicted", "timings/cache_n"]

_SEED_MASK = 0xFFFF_FFFF


class Progress(msgspec.Struct, frozen=True):
    """How far the prompt has been evaluated; ``cache`` tokens of it were in the slot."""

    cache: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """An error, as a body or as an event."""

    message: str = ""
    type: str = ""


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream. ``tokens_predicted`` counts this chunk's token."""

    tokens: tuple[int, ...] = ()
    content: str = ""
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = 0
    prompt_progress: Progress | None = None
    cached: int | None = msgspec.field(default=None, name="timings/cache_n")
    error: Refusal | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: Refusal = Refusal()


_WHOLE_CONTEXT = -1
_chunk = msgspec.json.Decoder(Chunk)


def completion_body(
    request: EngineRequest, *, slot: int, share: bool, max_tokens: int, grammar: str
) -> bytes:
    """Write the body of a ``POST /completion``."""
    fields = completion_fields(
        request, slot=slot, share=share, max_tokens=max_tokens, grammar=grammar
    )
    return msgspec.json.encode({"prompt": request.prompt.tolist(), **fields})


def completion_fields(
    request: EngineRequest, *, slot: int, share: bool, max_tokens: int, grammar: str
) -> dict[str, object]:
    """Return everything but the prompt."""
    body: dict[str, object] = {
        "n_predict": max_tokens,
        "id_slot": slot,
        "cache_prompt": share,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "response_fields": _FINAL_FIELDS,
    }
    sampling = request.sampling
    if sampling.temperature is not None:
        body["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if sampling.min_p is not None:
        body["min_p"] = sampling.min_p
    if sampling.repetition_penalty is not None:
        body["repeat_penalty"] = sampling.repetition_penalty
        body["repeat_last_n"] = _WHOLE_CONTEXT  # as Transformers counts; its own default is 64
    if sampling.seed is not None:
        body["seed"] = sampling.seed & _SEED_MASK
    if grammar:
        body["grammar"] = grammar
    return body


def read_settings(props: dict[str, Any]) -> tuple[int, Sampling]:
    """Return the context of one request and the default sampling from ``GET /props``.

    Raises KeyError, TypeError or ValueError for a reply of another form.
    """
    settings = props["default_generation_settings"]
    params = settings["params"]
    return int(settings["n_ctx"]), Sampling(
        # It keeps them as 32-bit floats: 0.8 reads 0.800000011920929.
        temperature=round(float(params["temperature"]), 6),
        top_p=round(float(params["top_p"]), 6),
    )


def template_body(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> dict[str, object]:
    """Return the body of a ``POST /apply-template``."""
    return {"messages": messages, **({"tools": tools} if tools else {})}


def chat_tokens_body(prompt: str) -> dict[str, object]:
    """Return the body of a ``POST /tokenize`` that encodes as a chat completion would be."""
    return {"content": prompt, "add_special": True, "parse_special": True}


def read_prompt(reply: bytes) -> str:
    """Read the reply of ``/apply-template``."""
    return msgspec.json.decode(reply, type=dict[str, str])["prompt"]


def native(ids: Sequence[int]) -> bytes:
    """Lay ids out as native u32 bytes."""
    return array("I", ids).tobytes()


class ChunkReader:
    """Reads a stream's events. There is no ``[DONE]`` on this route."""

    def __init__(self, events: EventReader) -> None:
        self._events = events

    async def next(self) -> Chunk:
        """Wait for one event. Raises EngineError when the stream ends or carries an error."""
        payload = await self._events.next()
        try:
            chunk = _chunk.decode(payload)
        except msgspec.DecodeError as error:
            raise EngineError(f"llama.cpp sent an event that cannot be read: {error}") from error
        if chunk.error is not None:
            raise refused(chunk.error)
        return chunk


def read_refusal(status: int, body: bytes) -> ContextLengthError | EngineError:
    """Turn the body of a response that is not 200 into the error to raise."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        error = Refusal()
    return refused(error, f"HTTP status {status}")


def refused(error: Refusal, fallback: str = "no reason given") -> ContextLengthError | EngineError:
    """Turn llama.cpp's error object into the error to raise."""
    if error.type == "exceed_context_size_error":
        return ContextLengthError(f"{error.message[:1].upper()}{error.message[1:]}.", param="input")
    return EngineError(f"llama.cpp refused: {error.message or fallback}")


def read_saved_tokens(path: Path) -> list[int]:
    """Read the token ids at the head of a saved slot (sequence state, version 4).

    They are packed as ``-1, 1, count, ids…`` in this version, bare ids in others. Raises
    EngineError for a file of another kind.
    """
    with path.open("rb") as file:
        magic, _version, count = struct.unpack("<4sII", file.read(12))
        if magic != b"qsgg":
            raise EngineError("llama.cpp saved a slot in an unknown format.")
        raw = file.read(4 * count)
    ids = list(struct.unpack(f"<{len(raw) // 4}i", raw))
    if ids[:2] == [-1, 1]:
        return ids[3 : 3 + ids[2]]
    return ids
