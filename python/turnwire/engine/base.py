"""What an engine is: token ids in, token ids out (docs/design.md, D9).

Engines know no items, no text and no wire events. ``server/turns.py`` builds an
:class:`EngineRequest` from a turn's prompt and reads :class:`EngineOutput` until one of them
carries a ``finish_reason``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

FinishReason = Literal["stop", "length", "abort"]
"""Why sampling ended: a stop id was sampled, ``max_tokens`` reached, the request aborted."""


@dataclass(frozen=True, slots=True)
class ToolCallConstraint:
    r"""The output must be tool calls and nothing else (a forced ``tool_choice``).

    ``open`` and ``close`` are the family's text around one call (``<tool_call>\n`` and
    ``\n</tool_call>``); between them stands the JSON object
    ``{"name": <one of tools>, "arguments": <by that tool's schema>}``.
    """

    open: str
    close: str
    tools: Sequence[tuple[str, bytes]]
    """(name, JSON schema of its arguments) for every tool that may be called."""
    many: bool
    """Whether several calls may follow each other (``parallel_tool_calls``)."""


@dataclass(frozen=True, slots=True)
class JsonConstraint:
    """The output must be one JSON value under ``schema``, and nothing else (``text.format``)."""

    schema: bytes


Constraint: TypeAlias = ToolCallConstraint | JsonConstraint


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. None leaves a choice to the engine's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def over(self, other: Sampling) -> Sampling:
        """Return the same, with ``other``'s choices where this leaves them open."""
        open_ = (name for name in self.__slots__ if getattr(self, name) is None)
        return replace(self, **{name: getattr(other, name) for name in open_})


@dataclass(frozen=True, slots=True)
class LastItem:
    """The newest item of a turn's input. Only the sim reads it, to choose a scripted answer."""

    type: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One turn's work.

    ``prompt`` holds u32 ids (format ``I``) and stays valid and unchanged until ``generate`` has
    returned, whatever the chain does meanwhile.
    """

    request_id: str
    prompt: memoryview
    max_tokens: int
    """At least 0. With 0 nothing is sampled: the engine may only warm its prefix cache."""
    stop_token_ids: frozenset[int]
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | None = None
    affinity: str = ""
    """Same value, same prefix cache where the engine has several (a connection's id)."""
    last_item: LastItem | None = None
    cache_scope: str = ""
    """Only requests with the same value may find each other's tokens in the prefix cache."""
    priority: int = 0
    """Higher goes first, where the engine schedules by priority."""


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step sampled. ``token_ids`` are new ids only, stop id included."""

    token_ids: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the engine found in its prefix cache; None until it says so."""


class Engine(Protocol):
    """One inference engine. Implementations are safe to use from one event loop only."""

    name: str
    """``llamacpp`` or ``sim``; the sim calls itself that everywhere."""
    model: str
    """The name of the model that it serves."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together that one request may hold."""
        ...

    @property
    def default_sampling(self) -> Sampling:
        """What it uses where a request leaves a choice open; None where it cannot say."""
        ...

    async def start(self) -> None:
        """Make the engine ready. Raises StartupError when it cannot be."""
        ...

    async def close(self) -> None:
        """Release everything. Safe to call twice, and before ``start``."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request would be served now (False while a child restarts)."""
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        """Sample until a stop id, ``max_tokens`` or the end of the iteration.

        Closing the iterator (``aclose``, cancellation) stops the engine within one token.
        Raises EngineError when the engine fails; OverloadedError when it is not ready.
        """
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """An engine that can encode text by its own tokenizer, so that ours can be compared with it."""

    async def tokenize(self, text: str, *, special: bool = False) -> Sequence[int]:
        """Encode ``text``, adding no token; with ``special``, control tokens are read by name.

        Raises EngineError.
        """
        ...


@runtime_checkable
class TemplateRenderer(Protocol):
    """An engine that can render chat messages by its own template, so that ours can be compared."""

    async def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> Sequence[int]:
        """Return the prompt's ids for messages as in chat completions. Raises EngineError."""
        ...


class OutputEncoder(Protocol):
    """Encodes what a model would sample for an answer. The sim gets one from the profile."""

    def encode_output(self, output: bytes) -> Sequence[int]:
        """Encode ``{"reasoning": str?, "text": str?, "calls": [{"name", "arguments"}]?}``.

        The family's stop id stands at the end. ``arguments`` is the raw JSON text of the arguments.
        Raises InvalidValueError when ``output`` is not of that form.
        """
        ...
