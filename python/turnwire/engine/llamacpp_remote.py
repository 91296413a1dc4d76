"""A llama.cpp server that runs elsewhere: ``/completion``, ids in and ids out (b11549).

The server chooses its slots and has no notion of whose tokens are whose, so ``cache_scope`` cannot
be kept here: whoever may use this engine can find out by timing what others have sent.
"""

from __future__ import annotations

import logging
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine import llamacpp_wire
from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.llamacpp_grammar import ProbedGrammars
from turnwire.engine.llamacpp_sampled import SampledIds
from turnwire.engine.prompt_text import DEFAULT_BUDGET, PiecesPayload, PromptTexts
from turnwire.engine.remote import Remote, Waits, check_request
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


class LlamaCppRemote:
    """One llama.cpp server. See docs/engines.md."""

    name = "llamacpp"

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str = "",
        context_length: int | None = None,
        waits: Waits | None = None,
        text_budget: int = DEFAULT_BUDGET,
    ) -> None:
        """Describe it; nothing is sent yet.

        ``model`` is only a name here (None: the server's own), ``context_length`` a limit below the
        server's, and ``text_budget`` bounds the bytes of prompts that are kept as JSON.
        """
        self.model = model or ""
        self._wanted_context = context_length
        self._context_length = context_length or 0
        self._default_sampling = Sampling()
        self._texts = PromptTexts(text_budget)
        self._remote = Remote(url, engine="llama.cpp", api_key=api_key, waits=waits or Waits())
        self._grammars = ProbedGrammars(self._complete, slot=ANY_SLOT)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together; final once the engine has started."""
        return self._context_length

    @property
    def default_sampling(self) -> Sampling:
        """What llama.cpp uses where a request leaves a choice open, by its own word."""
        return self._default_sampling

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
            props = await self._remote.get("/props", dict[str, Any])
            largest, self._default_sampling = llamacpp_wire.read_settings(props)
            cards = (await self._remote.get("/v1/models", _Models)).data
        except (EngineError, KeyError, TypeError, ValueError) as error:
            await self.close()
            raise StartupError(f"llama.cpp does not tell its settings: {error}") from error
        except BaseException:
            await self.close()
            raise
        self._context_length = min(largest, self._wanted_context or largest)
        if not self.model:
            listed = cards[0].id if cards else "model"
            # Without an alias it lists the path of its file.
            self.model = PurePath(listed).stem if listed.endswith(".gguf") else listed
        log.info("llama.cpp at %s serves %s", self._remote.url, self.model)

    async def close(self) -> None:
        """End every request with EngineError. Safe to call twice, and before ``start``."""
        await self._remote.close()

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
        head = msgspec.json.encode(fields)[:-1]
        prompt = self._texts.write(request.affinity, request.prompt)
        body = PiecesPayload([head + b',"prompt":', *prompt, b"}"])
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
