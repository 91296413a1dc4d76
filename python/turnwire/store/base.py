"""What outlives a connection: stored responses, by id and owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

StateT = TypeVar("StateT")
"""What continues a response; opaque here (``server/turns.py`` puts the core's node in it)."""


@dataclass(frozen=True, slots=True)
class StoredResponse(Generic[StateT]):
    """One response whose request had ``store: true``."""

    response_id: str
    principal: str
    """Name of the principal that owns it; nobody else learns that it exists."""
    state: StateT
    body: bytes
    """The final Response object as JSON."""


class Store(Protocol[StateT]):
    """Where stored responses live. Methods are safe to call from one event loop only."""

    name: str
    """``memory``, later ``sqlite``, ``postgres``, ``redis``."""

    async def put(self, response: StoredResponse[StateT]) -> None:
        """Keep ``response``. When this returns, :meth:`get` finds it."""
        ...

    async def get(self, response_id: str, principal: str) -> StoredResponse[StateT] | None:
        """Return the response of that id, if ``principal`` owns it.

        An id of somebody else and one that never existed are indistinguishable.
        """
        ...
