"""Grammars for what an engine request demands, every schema in them known to compile (0011)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnwire.engine import grammar
from turnwire.engine.base import JsonConstraint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turnwire.engine.base import EngineRequest

_KNOWN_SCHEMAS = 1024


class ProbedGrammars:
    """Writes grammars for one llama.cpp, which would ignore one that does not compile."""

    def __init__(
        self, complete: Callable[[dict[str, object]], Awaitable[bytes]], *, slot: int
    ) -> None:
        """``complete`` posts a ``/completion`` and returns the reply; probes run in ``slot``."""
        self._complete = complete
        self._slot = slot
        self._compiled: set[bytes] = set()

    async def of(self, request: EngineRequest) -> str:
        """Write the request's grammar. Raises UnsupportedParameterError, naming what cannot be."""
        constraint = request.constraint
        if constraint is None or request.max_tokens == 0:
            return ""
        for rules, refusal in grammar.probe_grammars(constraint):
            key = rules.encode()
            if key in self._compiled:
                continue
            if not await self._compiles(rules):
                raise refusal
            if len(self._compiled) >= _KNOWN_SCHEMAS:
                self._compiled.clear()
            self._compiled.add(key)
        if isinstance(constraint, JsonConstraint):
            return grammar.json_grammar(constraint, request.stop_token_ids)
        return grammar.tool_call_grammar(constraint, request.stop_token_ids)

    async def _compiles(self, rules: str) -> bool:
        body = {
            "prompt": [0],
            "n_predict": 1,
            "temperature": 0,
            "id_slot": self._slot,
            "cache_prompt": False,
            "grammar": rules,
            "response_fields": ["content"],
        }
        content = msgspec.json.decode(await self._complete(body), type=dict[str, str])["content"]
        return content == grammar.PROBE_TEXT
