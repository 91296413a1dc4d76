"""Stored responses as the core's nodes: those at hand, and those made again from the store."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from turnwire.errors import InvalidValueError, InvariantError, StoreUnavailableError
from turnwire.store.base import StoredResponse, now

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from turnwire._core import Chains, Node
    from turnwire.store.queue import WriteQueue

log = logging.getLogger(__name__)


class Recall:
    """Keeps stored responses and finds them again. One per server."""

    def __init__(self, store: WriteQueue, chains: Chains, *, nodes: int, ttl_seconds: int) -> None:
        """Hold at most ``nodes`` nodes at hand; store for ``ttl_seconds``, 0 for ever."""
        self.store = store
        self._chains = chains
        self._most = nodes
        self._ttl_seconds = ttl_seconds
        self._nodes: OrderedDict[tuple[str, str], Node] = OrderedDict()

    def room(self) -> AbstractContextManager[None]:
        """Promise that a response may be put within the block. Raises OverloadedError."""
        return self.store.room()

    async def put(
        self,
        response_id: str,
        principal: str,
        node: Node,
        *,
        parent_id: str | None,
        given: bytes,
        body: bytes,
    ) -> None:
        """Keep a committed response; found from now on, written beside what follows."""
        created_at = now()
        await self.store.put(
            StoredResponse(
                response_id=response_id,
                principal=principal,
                created_at=created_at,
                expires_at=created_at + self._ttl_seconds if self._ttl_seconds else None,
                parent_id=parent_id,
                input=given,
                body=body,
                delta=node.export(),
            )
        )
        self._keep(response_id, principal, node)

    async def node(self, response_id: str, principal: str) -> Node | None:
        """Return what continues a response; None when ``principal`` has none of that id.

        Raises StoreUnavailableError where only the store would know.
        """
        at_hand = self._nodes.get((principal, response_id))
        if at_hand is not None:
            try:
                if not await self.store.holds(response_id, principal):
                    del self._nodes[principal, response_id]
                    return None
            except StoreUnavailableError:
                log.warning("%s is continued without asking the store, which is down", response_id)
            self._nodes.move_to_end((principal, response_id))
            return at_hand
        known = [name for owner, name in self._nodes if owner == principal]
        lineage = await self.store.lineage(response_id, principal, known)
        if lineage is None:
            return None
        node = None if lineage.base is None else self._nodes[principal, lineage.base]
        try:
            node = await asyncio.to_thread(
                self._hydrate, node, [blob for _, blob in lineage.deltas]
            )
        except InvalidValueError as error:
            if error.param != "blob":
                raise
            raise InvariantError(f"{response_id} is stored, and cannot be read: {error}") from error
        if node is not None:
            self._keep(response_id, principal, node)
        return node

    async def delete(self, response_id: str, principal: str) -> bool:
        """Forget a response, here and in the store. False when ``principal`` has none."""
        self._nodes.pop((principal, response_id), None)
        return await self.store.delete(response_id, principal)

    def _hydrate(self, node: Node | None, blobs: list[bytes]) -> Node | None:
        for blob in blobs:
            node = self._chains.hydrate(node, blob)
        return node

    def _keep(self, response_id: str, principal: str, node: Node) -> None:
        self._nodes[principal, response_id] = node
        self._nodes.move_to_end((principal, response_id))
        while len(self._nodes) > self._most:
            self._nodes.popitem(last=False)
