"""How much at once: counted, never queued. A count is held for the length of a ``with`` block.

A refusal is a 429 with a delay and never a 503 ``server_is_overloaded``: Codex retries the first
and takes the second for final.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnwire.errors import RateLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnwire.policy.auth import Principal

RETRY_AFTER = 1.0
"""Seconds that a refused client is told to wait: a turn or a socket may end at any time."""


class Gauge:
    """How many of one thing exist, in all and per principal."""

    def __init__(self, what: str, *, total: int, per_principal: int) -> None:
        self._what = what
        self._total = total
        self._per_principal = per_principal
        self._held: Counter[str] = Counter()
        self._all = 0

    @property
    def count(self) -> int:
        """How many are held now."""
        return self._all

    def check(self, principal: Principal) -> None:
        """Raise the RateLimitError that :meth:`hold` would raise now."""
        if self._held[principal.name] >= self._per_principal:
            limit, whose = self._per_principal, "for your API key"
        elif self._all >= self._total:
            limit, whose = self._total, "for this server"
        else:
            return
        raise RateLimitError(
            f"Limit of {limit} {self._what} reached {whose}. Please try again in {RETRY_AFTER:g}s.",
            retry_after=RETRY_AFTER,
        )

    @contextmanager
    def hold(self, principal: Principal) -> Iterator[None]:
        """Count one more for the length of the block."""
        self.check(principal)
        self._all += 1
        self._held[principal.name] += 1
        try:
            yield
        finally:
            self._all -= 1
            self._held[principal.name] -= 1
            if not self._held[principal.name]:
                del self._held[principal.name]
