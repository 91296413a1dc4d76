"""Stored responses in this process's memory: a restart forgets them all."""

from __future__ import annotations

from collections import OrderedDict

from turnwire.store.base import StateT, Store, StoredResponse


class MemoryStore(Store[StateT]):
    """Keeps the ``max_responses`` most recently used responses."""

    name = "memory"

    def __init__(self, *, max_responses: int) -> None:
        self._max_responses = max_responses
        self._responses: OrderedDict[str, StoredResponse[StateT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    async def put(self, response: StoredResponse[StateT]) -> None:
        """Keep ``response``; forget the least recently used one beyond the bound."""
        self._responses[response.response_id] = response
        self._responses.move_to_end(response.response_id)
        while len(self._responses) > self._max_responses:
            self._responses.popitem(last=False)

    async def get(self, response_id: str, principal: str) -> StoredResponse[StateT] | None:
        """Return the response, if it is still here and ``principal`` owns it."""
        response = self._responses.get(response_id)
        if response is None or response.principal != principal:
            return None
        self._responses.move_to_end(response_id)
        return response
