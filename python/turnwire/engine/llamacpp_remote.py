"""A llama.cpp server that runs elsewhere: ``/completion``, ids in and ids out (b11549).

The server chooses its slots and has no notion of whose tokens are whose, so ``cache_scope`` cannot
be kept here: whoever may use this engine can find out by timing what others have sent.
"""

from __future__ import annotations

import functools
import logging
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine import llamacpp_wire
from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.llamacpp_grammar import ProbedGrammars
from turnwire.engine.llamacpp_sampled import SampledIds
from turnwire.engine.remote import check_request
from turnwire.engine.remote_engine import RemoteEngine
from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from turnwire.engine.base import EngineRequest, FinishReason

log = logging.getLogger(__name__)

ANY_SLOT = -1

_COMPLETION = "/completion"


class _Card(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Card, ...] = ()


class LlamaCppRemote(RemoteEngine):
    """One llama.cpp server, for which ``model`` is only a name. See docs/engines.md."""

    name = "llamacpp"
    server = "llama.cpp"
    _default_sampling = Sampling()

    @property
    def default_sampling(self) -> Sampling:
        """What llama.cpp uses where a request leaves a choice open, by its own word."""
        return self._default_sampling

    @functools.cached_property
    def _grammars(self) -> ProbedGrammars:
        return ProbedGrammars(self._complete, slot=ANY_SLOT)

    async def _learn(self) -> None:
        try:
            props = await self._remote.get("/props", dict[str, Any])
            largest, self._default_sampling = llamacpp_wire.read_settings(props)
            cards = (await self._remote.get("/v1/models", _Models)).data
        except (EngineError, KeyError, TypeError, ValueError) as error:
            raise StartupError(f"llama.cpp does not tell its settings: {error}") from error
        self._context_length = min(largest, self._wanted_context or largest)
        if not self.model:
            listed = cards[0].id if cards else "model"
            # Without an alias it lists the path of its file.
            self.model = PurePath(listed).stem if listed.endswith(".gguf") else listed
        log.info("llama.cpp at %s serves %s", self._remote.url, self.model)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Sample; see :class:`Engine`. Closing the iterator closes the connection: it stops."""
        check_request(request, self, forces_calls=True)
        count = len(request.prompt)
        rules = await self._grammars.of(request)
        fields = llamacpp_wire.completion_fields(
            request,
            slot=ANY_SLOT,
            share=True,
            max_tokens=min(request.max_tokens, self._context_length - count),
            grammar=rules,
        )
        body = self._payload(msgspec.json.encode(fields), "prompt", request)
        sampled = SampledIds(count, tokenize=self.tokenize, sequence=None)
        cached: int | None = None
        reason: FinishReason | None = None
        async with self._remote.stream(_COMPLETION, body, {}) as events:
            reader = llamacpp_wire.ChunkReader(events)
            while reason is None:
                chunk = await reader.next()
                if chunk.prompt_progress is not None:  # its token is no token
                    cached = chunk.prompt_progress.cache
                    continue
                ids, reason = await sampled.read(chunk, request, leave=_nothing)
                if ids or reason is not None:
                    yield EngineOutput(ids, reason, cached)
                    cached = None

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text as llama.cpp does; ``special`` reads tokens' names. Raises EngineError."""
        body = {"content": text, "add_special": False, "parse_special": special}
        return (await self._remote.post("/tokenize", body, dict[str, list[int]]))["tokens"]

    async def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> list[int]:
        """Render chat messages by the GGUF's template, as llama.cpp does. Raises EngineError."""
        body = llamacpp_wire.template_body(messages, tools)
        prompt = (await self._remote.post("/apply-template", body, dict[str, Any]))["prompt"]
        tokens = llamacpp_wire.chat_tokens_body(prompt)
        return (await self._remote.post("/tokenize", tokens, dict[str, list[int]]))["tokens"]

    async def _complete(self, body: dict[str, object]) -> bytes:
        return bytes(await self._remote.post(_COMPLETION, body, msgspec.Raw))


def _nothing() -> None:
    """Leave the stream: that is what the end of the iteration does."""
