"""What turns were, for ``--debug``: counts and times of each, and its tokens for its owner."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire._core import Node


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's costs. Token counts; times in the unit that the name says."""

    response_id: str
    previous_response_id: str | None
    kind: str
    """How the turn was opened: ``cold``, ``extend``, ``fork``, ``rebase`` or ``rewind``."""
    outcome: str
    prompt_tokens: int
    reused_tokens: int
    """Tokens of the prompt that were there before: nothing was rendered or encoded for them."""
    rendered_tokens: int
    reencoded_tokens: int
    """Tokens sampled earlier that the prompt holds otherwise than as sampled (docs/tokens.md)."""
    sampled_tokens: int
    cached_tokens: int | None
    """What the engine found in its prefix cache; None when it did not say."""
    open_micros: int
    first_token_ms: float | None
    total_ms: float


class TurnRecords:
    """The newest records, bounded. With a ``size`` of 0 nothing is kept."""

    def __init__(self, size: int) -> None:
        self._kept: deque[tuple[TurnRecord, str, Node | None]] = deque(maxlen=size)

    def add(self, record: TurnRecord, *, owner: str, node: Node | None) -> None:
        """Keep ``record``, dropping the oldest beyond the bound.

        ``node`` is None for a turn that did not commit.
        """
        self._kept.append((record, owner, node))

    def newest_last(self) -> Sequence[TurnRecord]:
        """Return what is kept, oldest first."""
        return tuple(record for record, _, _ in self._kept)

    def find(self, response_id: str, owner: str) -> Node | None:
        """Return the tokens of a response; None when they are not kept, or somebody else's."""
        for record, whose, node in self._kept:
            if record.response_id == response_id and whose == owner:
                return node
        return None
