"""What vLLM and SGLang answer alike: the models they list, and ``/tokenize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire.engine.remote import Remote


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


async def tokenize(remote: Remote, model: str, text: str) -> list[int]:
    """Encode text as the engine does, which always reads control tokens. Raises EngineError."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    return (await remote.post("/tokenize", body, _Tokens)).tokens


async def render(
    remote: Remote,
    model: str,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
) -> list[int]:
    """Render chat messages by the engine's own template. Raises EngineError."""
    body = {
        "model": model,
        "messages": messages,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        **({"tools": tools} if tools else {}),
    }
    return (await remote.post("/tokenize", body, _Tokens)).tokens
