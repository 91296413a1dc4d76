"""What every engine that runs elsewhere is: a server that is learnt about at the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from turnwire.engine.prompt_text import DEFAULT_BUDGET, PiecesPayload, PromptTexts
from turnwire.engine.remote import Remote, Waits
from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from turnwire.engine.base import EngineRequest


class RemoteEngine(ABC):
    """An engine at a URL. A kind of server adds what it says of itself, and its requests."""

    server: str
    """The server's name in errors."""
    alive = "/health"
    """The path that is asked whether it is still there."""

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

        ``model`` is what it is to serve (None: what it names first), ``context_length`` a limit
        below its own, and ``text_budget`` bounds the bytes of prompts that are kept as JSON.
        """
        self.model = model or ""
        self._wanted_context = context_length
        self._context_length = context_length or 0
        self._texts = PromptTexts(text_budget)
        self._remote = Remote(
            url, engine=self.server, api_key=api_key, waits=waits or Waits(), alive=self.alive
        )

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together; final once the engine has started."""
        return self._context_length

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
            await self._learn()
        except EngineError as error:
            await self.close()
            raise StartupError(error.message) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every request with EngineError. Safe to call twice, and before ``start``."""
        await self._remote.close()

    @abstractmethod
    async def _learn(self) -> None:
        """Ask what it serves. Raises EngineError and StartupError."""

    def _payload(self, fields: bytes, name: str, request: EngineRequest) -> PiecesPayload:
        """Put the prompt as the member ``name`` behind ``fields``, a JSON object's bytes."""
        prompt = self._texts.write(request.affinity, request.prompt)
        return PiecesPayload([b'%b,"%b":' % (fields[:-1], name.encode()), *prompt, b"}"])
