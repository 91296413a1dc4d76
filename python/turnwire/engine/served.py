"""What vLLM and SGLang have alike: their models, ``/tokenize``, salts, and how they sample."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from turnwire.engine.base import Sampling
from turnwire.engine.prompt_text import DEFAULT_BUDGET
from turnwire.engine.remote import refused
from turnwire.engine.remote_engine import RemoteEngine
from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire.engine.base import EngineRequest
    from turnwire.engine.remote import Remote, Waits

NEUTRAL = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
"""What they use for ids where neither a request nor the server's own preference says more."""

DONE = b"[DONE]"
"""The last event of a stream."""

_SEED_MASK = 2**63 - 1


class _Failure(Protocol):
    @property
    def message(self) -> str: ...


class _Event(Protocol):
    @property
    def error(self) -> _Failure | None: ...


_EventT = TypeVar("_EventT", bound=_Event)


class _Card(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Card, ...]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


async def learn_model(remote: Remote, wanted: str, limit: int | None) -> tuple[str, int]:
    """Return the model that is served, and how many tokens one request may hold.

    ``wanted`` is its name ("": the first that is listed), ``limit`` our own. Raises StartupError
    when it is not there or its context is not known, and EngineError.
    """
    cards = (await remote.get("/v1/models", _Models)).data
    wanted = wanted or (cards[0].id if cards else "")
    card = next((card for card in cards if card.id == wanted), None)
    if card is None:
        names = ", ".join(card.id for card in cards) or "nothing"
        raise StartupError(f"{remote.engine} serves {names}, not '{wanted}' (engine.model).")
    limits = [size for size in (card.max_model_len, limit) if size]
    if not limits:
        raise StartupError(
            f"{remote.engine} does not say how long the model's context is. "
            "Set engine.context_length."
        )
    return card.id, min(limits)


class ServedEngine(RemoteEngine):
    """vLLM or SGLang."""

    _priority_sign = 1
    """-1 where what is lower is earlier."""

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
        """Describe it; nothing is sent yet. See :class:`RemoteEngine`.

        ``priorities`` sends those of requests, which the server must be started for. ``salt`` is a
        secret that keeps the prefix caches of different ``cache_scope`` apart (None: one cache for
        all).
        """
        super().__init__(
            url,
            model=model,
            api_key=api_key,
            context_length=context_length,
            waits=waits,
            text_budget=text_budget,
        )
        self._priorities = priorities
        self._salt = salt

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text as the engine does, which always reads control tokens. Raises EngineError."""
        del special
        return await self._tokens({"prompt": text})

    async def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> list[int]:
        """Render chat messages by the engine's own template. Raises EngineError."""
        chat = {"messages": messages, "add_generation_prompt": True}
        return await self._tokens(chat | ({"tools": tools} if tools else {}))

    async def _tokens(self, given: dict[str, object]) -> list[int]:
        body = {"model": self.model, **given, "add_special_tokens": False}
        return (await self._remote.post("/tokenize", body, _Tokens)).tokens

    def _scheduling(self, request: EngineRequest) -> dict[str, object]:
        """Return whose cache may serve a request, and its place, as far as these are told."""
        fields: dict[str, object] = {}
        if self._salt is not None:
            fields["cache_salt"] = salted(self._salt, request.cache_scope)
        if self._priorities:
            fields["priority"] = self._priority_sign * request.priority
        return fields

    def _read(self, decoder: msgspec.json.Decoder[_EventT], payload: bytes) -> _EventT:
        """Decode an event. Raises for one that cannot be read, or that says what went wrong."""
        try:
            event = decoder.decode(payload)
        except msgspec.DecodeError as error:
            message = f"{self.server} sent an event that cannot be read: {error}"
            raise EngineError(message) from None
        if event.error is not None:
            raise refused(self.server, event.error.message or "no reason given")
        return event

    def _compare(self, counted: int, request: EngineRequest) -> None:
        """Law 8: the engine must have seen as many tokens as were sent."""
        if counted != len(request.prompt):
            raise EngineError(
                f"{self.server} counted {counted} prompt tokens of {len(request.prompt)}."
            )


def chosen(sampling: Sampling) -> dict[str, Any]:
    """Return what a request chooses of its sampling, by the engines' names."""
    given = {name: getattr(sampling, name) for name in Sampling.__slots__}
    given = {name: value for name, value in given.items() if value is not None}
    if "seed" in given:
        given["seed"] &= _SEED_MASK
    return given


def salted(secret: bytes, scope: str) -> str:
    """Return the salt of a scope: nobody without the secret can name it."""
    return hmac.new(secret, scope.encode(), hashlib.sha256).hexdigest()
