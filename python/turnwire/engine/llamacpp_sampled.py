"""The ids that llama.cpp sampled, including those that it does not stream.

llama.cpp sends no event for a token that leaves half a character (b11549, ``process_token``): the
next event then carries the whole character's text, but only its own token's id. An emoji would
lose two of its three ids, and the next turn its prefix cache. ``tokens_predicted`` betrays the gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwire.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turnwire.engine.base import EngineRequest, FinishReason
    from turnwire.engine.llamacpp_wire import Chunk


class SampledIds:
    """Collects one request's sampled ids in order."""

    def __init__(
        self,
        prompt_length: int,
        *,
        tokenize: Callable[[str], Awaitable[Sequence[int]]],
        sequence: Callable[[], Awaitable[Sequence[int]]] | None,
    ) -> None:
        """Begin with no ids.

        ``tokenize`` encodes a text, special tokens' names as plain text. ``sequence`` tells the ids
        in the request's slot once it is idle: the prompt and all sampled ones but the last. Without
        it (None) a turn whose ids cannot be told otherwise fails, but for half a character at its
        very end, which has no text.
        """
        self._tokenize = tokenize
        self._sequence = sequence
        self._prompt_length = prompt_length
        self.holding = False
        """Whether ids are held back until the end."""
        self._last: tuple[int, int] | None = None
        self.ids: list[int] = []
        """Handed out so far."""

    async def read(
        self, chunk: Chunk, request: EngineRequest, *, leave: Callable[[], None]
    ) -> tuple[Sequence[int], FinishReason | None]:
        """Take an event that is not about the prompt: the ids to hand out, and why they end.

        ``leave`` closes the stream.
        """
        if request.max_tokens == 0:
            return (), "length"  # llama.cpp samples one token all the same
        if chunk.stop:
            ids = await self.rest(chunk)
            return ids, "length" if chunk.stop_type == "limit" else "stop"
        ids = await self.take(chunk)
        if chunk.tokens[-1] not in request.stop_token_ids:
            return ids, None
        # llama.cpp knows only the vocabulary's own end-of-generation ids; at others it would go
        # on, and leaving the stream ends the sampling.
        leave()
        if self.holding:
            ids = await self.rest(chunk)
        return ids, "stop"

    async def take(self, chunk: Chunk) -> list[int]:
        """Take an event with a token; returns the ids that can be handed out."""
        position = chunk.tokens_predicted - 1
        token = chunk.tokens[-1]
        self._last = (position, token)
        missing = position - len(self.ids)
        new: list[int] = []
        if self.holding:
            return new
        if missing == 0:
            new = [token]
        else:
            new = list(await self._tokenize(chunk.content))
            if len(new) != missing + 1 or new[-1] != token:
                # Not what the tokenizer would have written: only the slot knows. It tells at the
                # end, and until then nothing can be handed out in order.
                self.holding = True
                return []
        self.ids += new
        return new

    async def rest(self, final: Chunk) -> list[int]:
        """Return what was held back, after the last event.

        The very last id stays unknown if it left half a character: it is in no slot yet.
        """
        if final.tokens_predicted <= len(self.ids):
            return []
        if self._sequence is None:
            if not self.holding:
                return []
            raise EngineError("llama.cpp did not stream all ids, and its text has others (0013).")
        sampled = list(await self._sequence())[self._prompt_length :]
        del sampled[max(final.tokens_predicted - 1, 0) :]
        if sampled[: len(self.ids)] != self.ids:
            raise EngineError("llama.cpp's slot does not hold what it streamed.")
        if self._last is not None and self._last[0] == len(sampled):
            sampled.append(self._last[1])
        new = sampled[len(self.ids) :]
        self.ids += new
        return new
