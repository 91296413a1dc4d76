"""How many conversations were compared with an oracle, by oracle and family.

A conversation counts once, when the first of its prompts has been compared.
"""

from __future__ import annotations

from collections import Counter

_COMPARED: Counter[tuple[str, str]] = Counter()


class Compared:
    """One conversation, under one oracle."""

    def __init__(self, oracle: str, family: str) -> None:
        self._key = oracle, family
        self._counted = False

    def __call__(self) -> None:
        """A prompt of it is compared."""
        if not self._counted:
            self._counted = True
            _COMPARED[self._key] += 1


def lines() -> list[str]:
    """The counts, for people."""
    return [
        f"{family}: {count:,} conversations against {oracle}"
        for (oracle, family), count in sorted(_COMPARED.items(), key=lambda pair: pair[0][::-1])
    ]
