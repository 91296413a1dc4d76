"""What each turn cost, for ``--debug``: counts and times, never content."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    sampled_tokens: int
    cached_tokens: int | None
    """What the engine found in its prefix cache; None when it did not say."""
    open_micros: int
    first_token_ms: float | None
    total_ms: float


class TurnRecords:
    """The newest records, bounded. With a ``size`` of 0 nothing is kept."""

    def __init__(self, size: int) -> None:
        self._records: deque[TurnRecord] = deque(maxlen=size)

    def add(self, record: TurnRecord) -> None:
        """Keep ``record``, dropping the oldest beyond the bound."""
        self._records.append(record)

    def newest_last(self) -> Sequence[TurnRecord]:
        """Return what is kept, oldest first."""
        return tuple(self._records)
