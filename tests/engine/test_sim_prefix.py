from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.engine.sim.prefix import PrefixCache

if TYPE_CHECKING:
    import random


def raw(ids) -> bytes:
    return array("I", ids).tobytes()


def test_counts_whole_blocks_and_leaves_one_token_to_evaluate():
    cache = PrefixCache(100)
    prompt = list(range(64))
    assert cache.match(raw(prompt)) == 0
    cache.insert(raw(prompt))
    assert cache.match(raw(prompt)) == 48
    assert cache.match(raw([*prompt, 7])) == 64
    assert cache.match(raw(prompt[:20])) == 16
    assert cache.match(raw([*prompt[:40], *range(900, 960)])) == 32
    assert cache.match(raw([5, *prompt])) == 0
    assert cache.match(b"") == 0


def test_evicts_the_least_recently_used_block_first_and_the_deepest_of_those():
    cache = PrefixCache(8)
    old, new = [1] * 64, [2] * 64
    cache.insert(raw(old), "a")
    cache.insert(raw(new), "b")
    assert cache.match(raw([*old, 0]), "a") == 64
    cache.insert(raw([3] * 16), "c")
    assert len(cache) <= 8
    assert cache.match(raw([*old, 0])) == 64
    assert cache.match(raw([*new, 0])) in (32, 48)


def test_scopes_do_not_see_each_other():
    cache = PrefixCache(100)
    cache.insert(raw(range(64)), "a", "alice")
    assert cache.match(raw(range(80)), "a", "bob") == 0
    assert cache.match(raw(range(80)), "b", "alice") == 64


def test_clear_forgets():
    cache = PrefixCache(8)
    cache.insert(raw([1] * 64), "a")
    cache.clear()
    assert len(cache) == 0
    assert cache.match(raw([1] * 64), "a") == 0


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_same_count_as_a_naive_cache(draw: random.Random):
    """Against a set of whole prefixes: what affinities remember changes the cost, not the count."""
    cache = PrefixCache(10_000)
    known: set[tuple[int, ...]] = set()
    chains: list[list[int]] = [[]]
    for _ in range(30):
        chain = list(draw.choice(chains))
        del chain[draw.randrange(len(chain) + 1) :]
        chain += [draw.randrange(3) for _ in range(draw.randrange(50))]
        affinity = draw.choice("ab")
        whole = [tuple(chain[:end]) for end in range(16, len(chain) + 1, 16)]
        expected = 0
        for block in whole:
            if block not in known or len(block) >= len(chain):
                break
            expected = len(block)
        assert cache.match(raw(chain), affinity) == expected
        cache.insert(raw(chain), draw.choice("ab"))
        known.update(whole)
        chains.append(chain)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_never_over_capacity_and_always_closed_under_prefixes(draw: random.Random):
    cache = PrefixCache(12)
    for _ in range(40):
        chain = [draw.randrange(2) for _ in range(draw.randrange(160))]
        cache.match(raw(chain), draw.choice("abc"))
        cache.insert(raw(chain), draw.choice("abc"))
        assert len(cache) <= 12
        keys = cache._use(raw(chain), "probe")
        present = [key in cache._blocks for key in keys]
        assert present == sorted(present, reverse=True)
