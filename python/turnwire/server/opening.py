"""Opening a turn: steps 3 and 4 of docs/architecture.md, which can refuse a request.

Whatever takes longer than a millisecond or two runs in a thread, so that no other connection's
tokens wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from turnwire._core import Chains
from turnwire.errors import (
    ContextLengthError,
    PreviousResponseNotFoundError,
    UnsupportedParameterError,
)

if TYPE_CHECKING:
    from turnwire._core import Node, Profile, Turn
    from turnwire.config import Config
    from turnwire.engine.base import Engine
    from turnwire.protocol.frames import CreateRequest
    from turnwire.server.exchange import Exchange
    from turnwire.server.recall import Recall

log = logging.getLogger(__name__)

IN_THREAD_BYTES = 64 * 1024
"""``chains.open`` of a larger input runs in a thread: at about 60 MB/s it would hold the event loop
for more than a millisecond."""

IN_THREAD_TOKENS = 16 * 1024
"""So does one behind a longer history where the template itself is run over all of it (at about 40
million tokens a second)."""


def chains_of(profile: Profile, config: Config) -> Chains:
    """Return the profile's chains, within the configured memory."""
    memory = config.memory
    return Chains(profile, budget_bytes=memory.bytes, ttl_seconds=memory.ttl_seconds)


class Opening:
    """Opens turns. One per server."""

    def __init__(self, *, chains: Chains, engine: Engine, recall: Recall, config: Config) -> None:
        self._profile: Profile = chains.profile
        self._chains = chains
        self._prefix_scope = config.memory.prefix_scope
        self._engine = engine
        self._recall = recall
        self._renders_all = self._profile.family == "generic"
        self._refuses_hosted = config.tools.hosted == "refuse"
        self._told_of: set[str] = set()

    async def open(self, exchange: Exchange, parent: Node | None, *, must_fit: bool = True) -> Turn:
        """Return a turn that the engine can sample. Raises RequestError classes.

        One that need not fit into the model's context is only looked at.
        """
        request = exchange.request
        if parent is None and request.previous_response_id is not None:
            parent = await self._stored(request.previous_response_id, exchange.principal.name)
        new_input = request.input_json
        opening = partial(
            self._chains.open,
            parent,
            new_input,
            instructions=request.instructions or None,
            tools=request.tools or None,
            tool_choice=request.tool_choice or None,
            parallel_tool_calls=request.calls_in_parallel,
            effort=request.effort,
            verbosity=request.verbosity,
            generate=not request.warm_up,
            scope=self._scope(exchange),
        )
        if self._is_long(memoryview(new_input).nbytes, parent):
            turn = await asyncio.to_thread(opening)
        else:
            turn = opening()
        try:
            self._check_tools(turn)
            self._check_format(turn, request)
            if must_fit:
                self._check_room(turn, request)
        except BaseException:
            turn.abort()
            raise
        return turn

    def _is_long(self, new_bytes: int, parent: Node | None) -> bool:
        history = parent.token_count if parent is not None and self._renders_all else 0
        return new_bytes > IN_THREAD_BYTES or history > IN_THREAD_TOKENS

    def _scope(self, exchange: Exchange) -> bytes | None:
        """Return whose past the input may be recognised in (D7)."""
        if self._prefix_scope == "principal":
            return b"principal " + exchange.principal.name.encode()
        if self._prefix_scope == "connection" and exchange.connection is not None:
            return b"connection " + exchange.connection.encode()
        return None

    async def _stored(self, response_id: str, principal: str) -> Node:
        node = await self._recall.node(response_id, principal)
        if node is None:
            raise PreviousResponseNotFoundError(response_id)
        return node

    def _check_tools(self, turn: Turn) -> None:
        """Refuse tools whose calls would come back as text, or never."""
        for hosted in turn.left_out:
            self._check_hosted(hosted)
        if turn.may_call and not self._profile.reads_calls:
            raise UnsupportedParameterError(
                "How this model writes calls is not known to this server, so it cannot be given "
                "tools.",
                param="tools",
            )

    def _check_hosted(self, tool_type: str) -> None:
        if self._refuses_hosted:
            raise UnsupportedParameterError(
                f"Nothing runs hosted tools of type '{tool_type}' here.", param="tools"
            )
        if tool_type not in self._told_of:
            self._told_of.add(tool_type)
            log.warning("left out of requests: hosted tools of type '%s'", tool_type)

    def _check_format(self, turn: Turn, request: CreateRequest) -> None:
        """Refuse JSON where it could not be enforced: behind reasoning, or beside calls."""
        if request.json_schema is None or request.warm_up:
            return
        if turn.may_think:
            raise UnsupportedParameterError(
                "An answer in JSON cannot be enforced behind reasoning yet. Set "
                "'reasoning.effort' to 'none', if this model can be asked not to reason.",
                param="text.format",
            )
        if turn.may_call:
            raise UnsupportedParameterError(
                "An answer in JSON cannot be enforced beside tools yet, but with the 'tool_choice' "
                "'none'.",
                param="text.format",
            )

    def _check_room(self, turn: Turn, request: CreateRequest) -> None:
        context, length = self._engine.context_length, len(turn.prompt)
        needed = length if request.warm_up else length + 1
        if needed > context:
            message = (
                f"This model's maximum context length is {context} tokens. However, your messages "
                f"resulted in {length} tokens. Please reduce the length of the messages."
            )
            if request.truncation == "auto":
                message += " 'truncation' 'auto' is accepted, but nothing is dropped yet."
            raise ContextLengthError(message, param="input")
