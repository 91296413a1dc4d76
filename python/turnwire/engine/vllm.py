"""vLLM over HTTP: ids in and ids out, by whichever of its two routes it serves.

``/inference/v1/generate`` speaks ids only, but answers 403 unless vLLM was started with
``--enable-scale-out``; ``/v1/completions`` with ``return_token_ids`` is always there. The first
never applies the model's own sampling defaults, the second does. Written against vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine import served
from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.prompt_text import DEFAULT_BUDGET, PiecesPayload, PromptTexts
from turnwire.engine.remote import Remote, Waits, check_request, refused
from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from turnwire.engine.base import EngineRequest, FinishReason

log = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

NEUTRAL = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
"""What ``/inference/v1/generate`` uses where a request leaves a choice open."""

_DONE = b"[DONE]"
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_SEED_MASK = 2**63 - 1


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


class VllmEngine:
    """One vLLM server, or whatever speaks its dialect. See docs/engines.md."""

    name = "vllm"

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str = "",
        context_length: int | None = None,
        priorities: bool = False,
        salt: bytes | None = None,
        waits: Waits | None = None,
        text_budget: int = DEFAULT_BUDGET,
    ) -> None:
        """Describe it; nothing is sent yet.

        ``model`` is vLLM's own name for what it serves (None: the first that it lists), and
        ``context_length`` a limit below the model's. ``priorities`` sends those of requests, which
        vLLM refuses unless it runs ``--scheduling-policy priority``. ``salt`` is a secret that
        keeps the prefix caches of different ``cache_scope`` apart (None: one cache for all).
        ``text_budget`` bounds the bytes of prompts that are kept as JSON.
        """
        self.model = model or ""
        self._wanted_context = context_length
        self._context_length = context_length or 0
        self._priorities = priorities
        self._salt = salt
        self._texts = PromptTexts(text_budget)
        self._remote = Remote(url, engine="vLLM", api_key=api_key, waits=waits or Waits())
        self.route = ""
        """The route that is used; known once the engine has started."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together; final once the engine has started."""
        return self._context_length

    @property
    def default_sampling(self) -> Sampling:
        """What it uses where a request leaves a choice open, as far as it is known."""
        return NEUTRAL if self.route == GENERATE else Sampling()

    @property
    def ready(self) -> bool:
        """Whether it was there when last looked for."""
        return self._remote.ready

    @property
    def remote(self) -> Remote:
        """The server."""
        return self._remote

    async def start(self) -> None:
        """Wait until it is healthy, and learn what it serves. Raises StartupError."""
        await self._remote.start()
        try:
            self.model, self._context_length = await served.learn_model(
                self._remote, self.model, self._wanted_context
            )
            self.route = await self._probe_route()
        except EngineError as error:
            await self.close()
            raise StartupError(error.message) from error
        except BaseException:
            await self.close()
            raise
        log.info("vLLM serves %s by %s", self.model, self.route)

    async def close(self) -> None:
        """End every request with EngineError. Safe to call twice, and before ``start``."""
        await self._remote.close()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Sample; see :class:`Engine`. Closing the iterator closes the connection: vLLM aborts."""
        check_request(request, self)
        body = PiecesPayload(self._body(request))
        headers = {"X-Session-ID": request.affinity} if request.affinity else {}
        reason: FinishReason | None = None
        usage: _Usage | None = None
        async with self._remote.stream(self.route, body, headers) as events:
            while (payload := await events.next()) != _DONE:
                event = _read(payload)
                if event.usage is not None:
                    usage = event.usage
                    self._compare(usage, request)
                for choice in event.choices:
                    ids, reason = _taken(choice)
                    if ids and request.max_tokens > 0:
                        yield EngineOutput(ids)
        if reason is None:
            raise EngineError("vLLM ended a stream without a finish reason.")
        details = usage.prompt_tokens_details if usage is not None else None
        cached = details.cached_tokens if details is not None else None
        yield EngineOutput((), reason if request.max_tokens > 0 else "length", cached)

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text as vLLM does, which always reads control tokens. Raises EngineError."""
        del special
        return await served.tokenize(self._remote, self.model, text)

    async def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> list[int]:
        """Render chat messages by the model's template, as vLLM does. Raises EngineError."""
        return await served.render(self._remote, self.model, messages, tools)

    async def _probe_route(self) -> str:
        """See which route there is, by a request that cannot be served: it has no prompt."""
        status = await self._remote.status(GENERATE, {})
        if status in {400, 422}:
            return GENERATE
        if status in {401, 403, 404, 405}:
            return COMPLETIONS
        raise StartupError(f"vLLM answered {GENERATE} with status {status}.")

    def _body(self, request: EngineRequest) -> list[bytes]:
        """Write the request: the fields, and the prompt's text from where it is kept."""
        sampling: dict[str, object] = {
            "max_tokens": max(request.max_tokens, 1),
            "stop_token_ids": sorted(request.stop_token_ids),
        }
        for name in Sampling.__slots__:
            value = getattr(request.sampling, name)
            if value is not None:
                sampling[name] = value & _SEED_MASK if name == "seed" else value
        fields: dict[str, object] = {
            "model": self.model,
            "request_id": request.request_id,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._salt is not None:
            fields["cache_salt"] = salted(self._salt, request.cache_scope)
        if self._priorities:
            fields["priority"] = -request.priority  # vLLM: lower is earlier
        if self.route == GENERATE:
            fields["sampling_params"] = {**sampling, "detokenize": False}
            prompt_field = b"token_ids"
        else:
            fields |= {**sampling, "return_token_ids": True}
            prompt_field = b"prompt"
        head = msgspec.json.encode(fields)[:-1]
        prompt = self._texts.write(request.affinity, request.prompt)
        return [b'%s,"%s":' % (head, prompt_field), *prompt, b"}"]

    @staticmethod
    def _compare(usage: _Usage, request: EngineRequest) -> None:
        """Law 8: the engine must have seen as many tokens as were sent."""
        if usage.prompt_tokens != len(request.prompt):
            raise EngineError(
                f"vLLM counted {usage.prompt_tokens} prompt tokens of {len(request.prompt)}."
            )


def salted(secret: bytes, scope: str) -> str:
    """Return the salt of a scope: nobody without the secret can name it."""
    return hmac.new(secret, scope.encode(), hashlib.sha256).hexdigest()


def _read(payload: bytes) -> _Event:
    try:
        event = _event.decode(payload)
    except msgspec.DecodeError as error:
        raise EngineError(f"vLLM sent an event that cannot be read: {error}") from None
    if event.error is not None:
        raise refused("vLLM", event.error.message or "no reason given")
    return event


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
