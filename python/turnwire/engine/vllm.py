"""vLLM over HTTP: ids in and ids out, by whichever of its two routes it serves.

``/inference/v1/generate`` speaks ids only, but answers 403 unless vLLM was started with
``--enable-scale-out``; ``/v1/completions`` with ``return_token_ids`` is always there. The first
never applies the model's own sampling defaults, the second does. Written against vLLM 0.32.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.remote import check_request
from turnwire.engine.served import DONE, NEUTRAL, ServedEngine, chosen, learn_model
from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from turnwire.engine.base import EngineRequest, FinishReason
    from turnwire.engine.prompt_text import PiecesPayload

log = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class _Choice(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Failure | None = None


_event = msgspec.json.Decoder(_Event)


class VllmEngine(ServedEngine):
    """One vLLM server, or whatever speaks its dialect. See docs/engines.md.

    vLLM refuses priorities unless it runs ``--scheduling-policy priority``.
    """

    name = "vllm"
    server = "vLLM"
    _priority_sign = -1
    route = ""
    """The route that is used; known once the engine has started."""

    @property
    def default_sampling(self) -> Sampling:
        """What it uses where a request leaves a choice open, as far as it is known."""
        return NEUTRAL if self.route == GENERATE else Sampling()

    async def _learn(self) -> None:
        self.model, self._context_length = await learn_model(
            self._remote, self.model, self._wanted_context
        )
        self.route = await self._probe_route()
        log.info("vLLM serves %s by %s", self.model, self.route)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Sample; see :class:`Engine`. Closing the iterator closes the connection: vLLM aborts."""
        check_request(request, self)
        body = self._body(request)
        headers = {"X-Session-ID": request.affinity} if request.affinity else {}
        reason: FinishReason | None = None
        usage: _Usage | None = None
        async with self._remote.stream(self.route, body, headers) as events:
            while (payload := await events.next()) != DONE:
                event = self._read(_event, payload)
                if event.usage is not None:
                    usage = event.usage
                    self._compare(usage.prompt_tokens, request)
                for choice in event.choices:
                    ids, reason = _taken(choice)
                    if ids and request.max_tokens > 0:
                        yield EngineOutput(ids)
        if reason is None:
            raise EngineError("vLLM ended a stream without a finish reason.")
        details = usage.prompt_tokens_details if usage is not None else None
        cached = details.cached_tokens if details is not None else None
        yield EngineOutput((), reason if request.max_tokens > 0 else "length", cached)

    async def _probe_route(self) -> str:
        """See which route there is, by a request that cannot be served: it has no prompt."""
        status = await self._remote.status(GENERATE, {})
        if status in {400, 422}:
            return GENERATE
        if status in {401, 403, 404, 405}:
            return COMPLETIONS
        raise StartupError(f"vLLM answered {GENERATE} with status {status}.")

    def _body(self, request: EngineRequest) -> PiecesPayload:
        """Write the request: the fields, and the prompt's text from where it is kept."""
        sampling: dict[str, object] = {
            "max_tokens": max(request.max_tokens, 1),
            "stop_token_ids": sorted(request.stop_token_ids),
            **chosen(request.sampling),
        }
        fields: dict[str, object] = {
            "model": self.model,
            "request_id": request.request_id,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._scheduling(request),
        }
        if self.route == GENERATE:
            fields["sampling_params"] = {**sampling, "detokenize": False}
        else:
            fields |= {**sampling, "return_token_ids": True}
        prompt = "token_ids" if self.route == GENERATE else "prompt"
        return self._payload(msgspec.json.encode(fields), prompt, request)


def _taken(choice: _Choice) -> tuple[Sequence[int], FinishReason | None]:
    """Return a choice's ids and why it ended. Raises EngineError for text without ids."""
    if choice.token_ids is None and (choice.text or choice.finish_reason is None):
        raise EngineError("vLLM sent no token ids. Is it older than `return_token_ids`?")
    if choice.finish_reason is None:
        return choice.token_ids or (), None
    reason = _REASONS.get(choice.finish_reason)
    if reason is None:
        raise EngineError(f"vLLM ended with the reason '{choice.finish_reason}'.")
    return choice.token_ids or (), reason
