"""Counting what exists at once."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from turnwire.errors import RateLimitError
from turnwire.policy.auth import Principal
from turnwire.policy.limits import Gauge

ALICE, BOB, CAROL = Principal("alice"), Principal("bob"), Principal("carol")


def test_one_principals_limit_and_everybodys():
    gauge = Gauge("turns", total=3, per_principal=2)
    with ExitStack() as held:
        held.enter_context(gauge.hold(ALICE))
        held.enter_context(gauge.hold(ALICE))
        with pytest.raises(RateLimitError, match=r"Limit of 2 turns .* your API key"):
            gauge.check(ALICE)
        held.enter_context(gauge.hold(BOB))
        with pytest.raises(RateLimitError, match=r"Limit of 3 turns .* this server") as refused:
            held.enter_context(gauge.hold(CAROL))
        assert refused.value.retry_after == 1.0
        assert "try again in 1s" in refused.value.message
        assert gauge.count == 3
    assert gauge.count == 0
    gauge.check(ALICE)


def test_a_failure_within_gives_back():
    gauge = Gauge("turns", total=1, per_principal=1)
    with pytest.raises(ValueError, match="x"), gauge.hold(ALICE):
        raise ValueError("x")
    assert gauge.count == 0
    with gauge.hold(BOB):
        pass
