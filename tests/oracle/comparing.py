"""Prompts against an oracle that is asked for each: equal, or known to part."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from counting import Compared
from oracle.asked import conversations, ours
from talking import common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oracle.asked import Asked
    from oracle.generic import Template
    from oracle.partings import Partings
    from turnwire import _core

COUNT = int(os.environ.get("ORACLE_CONVERSATIONS", "2000"))
"""How many conversations of a model must be equal."""


class RefusedError(Exception):
    """The oracle cannot say this conversation: its words."""


def compare(
    name: str,
    oracle: str,
    template: Template,
    profile: _core.Profile,
    theirs: Callable[[Asked], list[int]],
    *,
    partings: Sequence[Partings],
    effort: Callable[[Asked], str | None] = lambda _: None,
    plain: bool = False,
    seen_as: Callable[..., tuple[list[int], list[int]]] = lambda _, found, other: (found, other),
) -> None:
    """Asks both until COUNT are equal; ``seen_as`` is what of two prompts is compared. Prints what
    was counted, and fails where they part unexpectedly, or part no more."""
    assert profile.not_native is None
    known = {reason: holds for table in partings for reason, holds in table.items()}
    counts: Counter[str] = Counter()
    parted: Counter[str] = Counter()
    for asked in conversations(f"{oracle} {name}", template.vocabulary, plain=plain):
        found, other, words = ours(profile, asked, effort(asked)), None, ""
        try:
            other = theirs(asked)
        except RefusedError as error:
            words = str(error)
        if found is not None and other is not None:
            found, other = seen_as(asked, found, other)
        reasons = [reason for reason, holds in known.items() if holds(asked)]
        counts.update(reasons)
        if len(reasons) == 1 and found != other:
            parted.update(reasons)
        if reasons:
            continue
        if found != other:
            _differ(template, asked, found, other, words)
        if found is None:
            counts["refused by both"] += 1
            continue
        Compared(oracle, name)()
        counts["equal"] += 1
        if counts["equal"] == COUNT:
            break
    told = (f"{what}: {count:,}" for what, count in counts.most_common())
    print(f"\n{name} against {oracle}. " + "; ".join(told))
    together = [reason for reason in known if not parted[reason]]
    assert COUNT < 2000 or not together, f"they part no more on {together}"


def _differ(template: Template, asked: Asked, found: Any, other: Any, words: str) -> NoReturn:
    known = template.vocabulary
    shown = f"\n  {asked!r}"[:6000]
    if found is None or other is None:
        by = "turnwire" if found is None else f"the oracle: {words}"
        pytest.fail(f"refused by {by}{shown}", pytrace=False)
    at = common(found, other)
    before, mine, its = (
        known.spell(ids).decode(errors="replace")
        for ids in (other[max(0, at - 20) : at], found[at : at + 20], other[at : at + 20])
    )
    pytest.fail(
        f"ids part at {at} behind {before!r}\n  ours:   {mine!r}\n  theirs: {its!r}{shown}",
        pytrace=False,
    )
