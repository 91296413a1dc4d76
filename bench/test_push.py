"""What a sampled token costs through the wall: ``turn.push`` of about 1,500 ids, some at a time.

The ids come as lists, as engines give them, and the deltas are taken but not looked at. With
``--push-example`` the same is measured in Rust (``push.py``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from models import MODELS, profile_of
from push import PUSHES, SAYS, opened, sampled
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("size", PUSHES)
@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("model", MODELS)
def test_push(benchmark, measured, model, says, size):
    chains = _core.Chains(profile_of(model))
    ids = sampled(model, says)
    edges = [*range(0, len(ids), size), len(ids)]
    pushes = [ids[a:b] for a, b in pairwise(edges)]
    turns: list[_core.Turn] = []

    def prepare() -> tuple[tuple[_core.Turn], dict[str, Any]]:
        turns.append(opened(chains, says))
        return (turns[-1],), {}

    def push(turn: _core.Turn) -> None:
        for part in pushes:
            turn.push(part)

    benchmark.pedantic(push, setup=prepare, rounds=100, warmup_rounds=5)
    assert says in kinds(opened(chains, says), pushes)
    measured(contender=f"push, {says}, {model}", push_ids=size, new_tokens=len(ids), per_token=True)
    for turn in turns:
        turn.abort()


def kinds(turn: _core.Turn, pushes: Sequence[list[int]]) -> set[str]:
    """What the client is told of: that what is measured is what it is called."""
    said = {delta.kind for part in pushes for delta in turn.push(part)}
    turn.abort()
    return said
