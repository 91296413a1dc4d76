"""SGLang over HTTP: its native ``/generate``, ids in and ids out.

**Transcribed from the source of SGLang 0.5.23, and not run against it**, since SGLang needs a GPU.
Transcribed are ``entrypoints/http_server.py`` (routes, errors, the final ``[DONE]``),
``managers/io_struct.py`` (request fields), ``managers/tokenizer_manager.py`` (events, aborts),
``sampling/sampling_params.py`` and ``managers/schedule_policy.py`` (which priorities go first).
``tests/engine/contract_sglang.py`` is the same transcription as a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import TYPE_CHECKING

import msgspec

from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.remote import check_request, refused
from turnwire.engine.served import DONE, NEUTRAL, ServedEngine, chosen, learn_model
from turnwire.errors import EngineError, OverloadedError, StartupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnwire.engine.base import EngineRequest, FinishReason
    from turnwire.engine.prompt_text import PiecesPayload

log = logging.getLogger(__name__)

ABORT_SECONDS = 2.0
"""How long the request to abort may take; SGLang notices a lost connection by itself, later."""

_ALL = -1  # of top_k


class _Preferred(msgspec.Struct, frozen=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class _ModelFacts(msgspec.Struct, frozen=True):
    preferred_sampling_params: _Preferred | str | None = None


class _ServerFacts(msgspec.Struct, frozen=True):
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False


class _Finish(msgspec.Struct, frozen=True):
    type: str
    message: str = ""
    status_code: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | None = None


class _Event(msgspec.Struct, frozen=True):
    output_ids: tuple[int, ...] = ()
    meta_info: _Meta = _Meta()
    error: _Failure | None = None


_event = msgspec.json.Decoder(_Event)


class SglangEngine(ServedEngine):
    """One SGLang server. See docs/engines.md."""

    name = "sglang"
    server = "SGLang"
    # Its /health samples a token and takes a second; this path is asked while it serves.
    alive = "/model_info"

    _default_sampling = NEUTRAL

    @functools.cached_property
    def _farewells(self) -> set[asyncio.Task[None]]:
        """Requests to abort that are on their way."""
        return set()

    @property
    def default_sampling(self) -> Sampling:
        """What it uses where a request leaves a choice open, by its own word."""
        return self._default_sampling

    async def close(self) -> None:
        """End every request with EngineError. Safe to call twice, and before ``start``."""
        await super().close()
        await asyncio.gather(*self._farewells, return_exceptions=True)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Sample; see :class:`Engine`. Closing the iterator aborts the request in SGLang."""
        check_request(request, self)
        body = self._body(request)
        reason: FinishReason | None = None
        handed = 0
        try:
            async with self._remote.stream("/generate", body, {}) as events:
                while (payload := await events.next()) != DONE:
                    meta, ids = self._taken(payload, handed, request)
                    handed += len(ids)
                    reason = _ended(meta.finish_reason)
                    if request.max_tokens == 0:
                        ids = ()
                    yield EngineOutput(ids, None, meta.cached_tokens)
        finally:
            if reason is None:
                self._say_farewell(request.request_id)
        if reason is None:
            raise EngineError("SGLang ended a stream without a finish reason.")
        yield EngineOutput((), reason if request.max_tokens > 0 else "length")

    async def _learn(self) -> None:
        """Ask for the model, its context, its preferred sampling and the sense of priorities."""
        self.model, self._context_length = await learn_model(
            self._remote, self.model, self._wanted_context
        )
        preferred = (await self._remote.get("/model_info", _ModelFacts)).preferred_sampling_params
        if isinstance(preferred, str):  # as it was given on the command line
            preferred = msgspec.json.decode(preferred, type=_Preferred)
        if preferred is not None:
            given = {name: getattr(preferred, name) for name in preferred.__struct_fields__}
            if given["top_k"] == _ALL:
                given["top_k"] = 0
            self._default_sampling = Sampling(**given).over(NEUTRAL)
        if self._priorities:
            facts = await self._remote.get("/server_info", _ServerFacts)
            if not facts.enable_priority_scheduling:
                raise StartupError(
                    "engine.priorities is on, but SGLang was not started with "
                    "--enable-priority-scheduling."
                )
            self._priority_sign = -1 if facts.schedule_low_priority_values_first else 1
        log.info("SGLang serves %s", self.model)

    def _body(self, request: EngineRequest) -> PiecesPayload:
        sampling: dict[str, object] = {
            "max_new_tokens": max(request.max_tokens, 1),
            "stop_token_ids": sorted(request.stop_token_ids),
            **chosen(request.sampling),
        }
        if "seed" in sampling:
            sampling["sampling_seed"] = sampling.pop("seed")
        if sampling.get("top_k") == 0:
            sampling["top_k"] = _ALL
        fields: dict[str, object] = {
            "rid": request.request_id,
            "stream": True,
            "sampling_params": sampling,
            **self._scheduling(request),
        }
        if request.affinity:
            fields["session_id"] = request.affinity
        return self._payload(msgspec.json.encode(fields), "input_ids", request)

    def _taken(
        self, payload: bytes, handed: int, request: EngineRequest
    ) -> tuple[_Meta, tuple[int, ...]]:
        """Read an event; return the ids in it that have not been handed out.

        ``completion_tokens`` counts all ids so far, and so tells whether an event repeats them (the
        default) or has new ones only (``--incremental-streaming-output``).
        """
        event = self._read(_event, payload)
        meta, ids = event.meta_info, event.output_ids
        if meta.finish_reason is not None and meta.finish_reason.type == "abort":
            return meta, ()  # what an aborted request repeats is no new id
        if meta.prompt_tokens is not None:
            self._compare(meta.prompt_tokens, request)
        if meta.completion_tokens == len(ids):
            return meta, ids[handed:]
        if meta.completion_tokens == handed + len(ids):
            return meta, ids
        raise EngineError(
            f"SGLang sent {len(ids)} ids after {handed}, and counts {meta.completion_tokens}."
        )

    def _say_farewell(self, request_id: str) -> None:
        """Abort a request in SGLang, which would notice a lost connection seconds later."""
        if not self._remote.ready:
            return
        task = asyncio.create_task(self._abort(request_id), name=f"abort {request_id}")
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(EngineError, OverloadedError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._remote.status("/abort_request", {"rid": request_id})


def _ended(finish: _Finish | None) -> FinishReason | None:
    """Say why it ended. Raises for an abort that the client did not ask for."""
    if finish is None:
        return None
    if finish.type == "abort" and finish.status_code is not None:
        raise refused("SGLang", finish.message or "aborted", finish.status_code)
    if finish.type == "abort":
        return "abort"
    if finish.type == "stop":
        return "stop"
    if finish.type == "length":
        return "length"
    raise EngineError(f"SGLang ended with the reason '{finish.type}'.")
