"""Stored responses in this process's memory: a restart forgets them all."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from turnwire.store.base import SWEEP_ROWS, Lineage, Store, StoredResponse, joined, now

if TYPE_CHECKING:
    from collections.abc import Collection


class MemoryStore(Store):
    """Keeps the ``max_responses`` most recently used responses."""

    name = "memory"

    def __init__(self, *, max_responses: int) -> None:
        self._max_responses = max_responses
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._children: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._responses)

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def put(self, response: StoredResponse) -> None:
        """Keep ``response``; forget the least recently used one beyond the bound."""
        parent = response.parent_id
        if parent is not None:
            row = self._responses.get(parent)
            if row is None or row.principal != response.principal or row.delta is None:
                response = replace(response, delta=None)
            else:
                self._children.setdefault(parent, set()).add(response.response_id)
        self._responses[response.response_id] = response
        self._responses.move_to_end(response.response_id)
        while len(self._responses) > self._max_responses:
            self._forget(next(iter(self._responses)))

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """Return the response, if it is still here and ``principal`` owns it."""
        response = self._responses.get(response_id)
        if response is None or not response.visible(principal):
            return None
        self._responses.move_to_end(response_id)
        return response

    async def holds(self, response_id: str, principal: str) -> bool:
        """Whether it is still here."""
        return await self.get(response_id, principal) is not None

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """Walk back along the parents."""
        if not await self.holds(response_id, principal):
            return None
        deltas: list[tuple[str, bytes]] = []
        following: str | None = response_id
        while following is not None and following not in known:
            row = self._responses.get(following)
            if row is None or row.delta is None:
                return None
            deltas.append((following, row.delta))
            following = row.parent_id
        return Lineage(following, deltas[::-1])

    async def delete(self, response_id: str, principal: str) -> bool:
        """Forget the response."""
        row = self._responses.get(response_id)
        if row is None or not row.visible(principal):
            return False
        self._forget(response_id)
        return True

    async def sweep(self) -> int:
        """Delete what has expired."""
        moment = now()
        expired = [
            row.response_id
            for row in self._responses.values()
            if row.expires_at is not None and row.expires_at <= moment
        ]
        newest_first = sorted(
            expired, key=lambda name: self._responses[name].created_at, reverse=True
        )[:SWEEP_ROWS]
        for response_id in newest_first:
            self._forget(response_id)
        return len(newest_first)

    def _forget(self, response_id: str) -> None:
        gone = self._responses.pop(response_id)
        children = self._children.pop(response_id, set())
        for name in children & self._responses.keys():
            child = self._responses[name]
            self._responses[name] = replace(
                child, delta=joined(gone.delta, child.delta), parent_id=gone.parent_id
            )
        if gone.parent_id is not None:
            siblings = self._children.get(gone.parent_id, set())
            siblings.discard(response_id)
            if children:
                self._children.setdefault(gone.parent_id, siblings).update(children)
            elif not siblings:
                self._children.pop(gone.parent_id, None)
