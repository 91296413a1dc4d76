"""What outlives a connection: stored responses, by id and owner.

A row holds what one response brought. Its ``delta`` continues the one of its ``parent_id``, and
deltas one behind the other are a delta: so a row that goes leaves its own to its children, which go
on without it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

SWEEP_ROWS = 256
"""How many expired responses one sweep deletes at most."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response whose request had ``store: true``. Times in seconds since 1970."""

    response_id: str
    principal: str
    """Name of the principal that owns it; nobody else learns that it exists."""
    created_at: int
    expires_at: int | None
    """When it is forgotten; None for never."""
    parent_id: str | None
    """The response that it continues, and that ``delta`` needs."""
    input: bytes
    """The request's ``input`` as JSON, as it was sent."""
    body: bytes
    """The final Response object as JSON."""
    delta: bytes | None
    """What its tokens are behind its parent's; opaque here. None: it cannot be continued."""

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return len(self.input) + len(self.body) + len(self.delta or b"")

    def visible(self, principal: str) -> bool:
        """Whether ``principal`` may see it now."""
        expired = self.expires_at is not None and self.expires_at <= now()
        return self.principal == principal and not expired


class Lineage(NamedTuple):
    """The deltas that lead to a response."""

    base: str | None
    """The response that the first of them continues, one that was known; None for a beginning."""
    deltas: Sequence[tuple[str, bytes]]
    """Response id and delta, oldest first."""


class Store(Protocol):
    """Where stored responses live. Methods are safe to call from one event loop only.

    An id of somebody else, one that has expired and one that never existed are indistinguishable.
    All but ``close`` raise StoreUnavailableError when the store cannot be reached.
    """

    name: str
    """``memory``, ``sqlite``, ``postgres`` or ``redis``."""

    async def start(self) -> None:
        """Connect, and bring the schema up to date. Raises StartupError."""
        ...

    async def close(self) -> None:
        """Let go of everything. Safe to call twice."""
        ...

    async def put(self, response: StoredResponse) -> None:
        """Keep ``response``; its delta only if its parent is here with its own."""
        ...

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """Return the response of that id, if ``principal`` owns it."""
        ...

    async def holds(self, response_id: str, principal: str) -> bool:
        """Whether :meth:`get` would return it; costs less."""
        ...

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """Return the deltas back to the nearest response in ``known``, or to the beginning.

        One query. None when the response is not there, or cannot be continued.
        """
        ...

    async def delete(self, response_id: str, principal: str) -> bool:
        """Forget the response, and leave its delta to its children. False when it is not there."""
        ...

    async def sweep(self) -> int:
        """Delete what has expired, newest first, at most :data:`SWEEP_ROWS`; return how many."""
        ...


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def joined(before: bytes | None, after: bytes | None) -> bytes | None:
    """Two deltas as one; None when either is lost."""
    return None if before is None or after is None else before + after


def lineage_of(
    rows: Collection[tuple[str, str | None, bytes | None]], known: Collection[str]
) -> Lineage | None:
    """Make a lineage of rows, newest first; None when one is missing, or has lost its delta."""
    deltas: list[tuple[str, bytes]] = []
    base: str | None = None
    for response_id, parent_id, delta in rows:
        if delta is None:
            return None
        deltas.append((response_id, bytes(delta)))
        base = parent_id
    if not deltas or (base is not None and base not in known):
        return None
    return Lineage(base, deltas[::-1])
