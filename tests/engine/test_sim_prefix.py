from __future__ import annotations

import time
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
    cache.insert(raw(old))
    cache.insert(raw(new))
    assert cache.match(raw([*old, 0])) == 64
    cache.insert(raw([3] * 16))
    assert len(cache) <= 8
    assert cache.match(raw([*old, 0])) == 64
    assert cache.match(raw([*new, 0])) in (32, 48)


def test_scopes_do_not_see_each_other():
    cache = PrefixCache(100)
    cache.insert(raw(range(64)), "alice")
    assert cache.match(raw(range(80)), "bob") == 0
    assert cache.match(raw(range(80)), "alice") == 64


def test_clear_forgets():
    cache = PrefixCache(8)
    cache.insert(raw([1] * 64))
    cache.clear()
    assert len(cache) == 0
    assert cache.match(raw([1] * 64)) == 0


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_same_count_as_a_naive_cache(draw: random.Random):
    """Against a set of whole prefixes."""
    cache = PrefixCache(10_000)
    known: set[tuple[int, ...]] = set()
    chains: list[list[int]] = [[]]
    for _ in range(30):
        chain = list(draw.choice(chains))
        del chain[draw.randrange(len(chain) + 1) :]
        chain += [draw.randrange(3) for _ in range(draw.randrange(50))]
        whole = [tuple(chain[:end]) for end in range(16, len(chain) + 1, 16)]
        expected = 0
        for block in whole:
            if block not in known or len(block) >= len(chain):
                break
            expected = len(block)
        assert cache.match(raw(chain)) == expected
        cache.insert(raw(chain))
        known.update(whole)
        chains.append(chain)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_evicted_is_the_least_recently_used(draw: random.Random):
    """Against a table of every block's last use, of which the same are dropped at the same time."""
    cache = PrefixCache(12)
    used: dict[tuple[int, ...], tuple[int, int]] = {}
    for tick in range(40):
        chain = [draw.randrange(2) for _ in range(draw.randrange(20) * 8)]
        blocks = [tuple(chain[:end]) for end in range(16, len(chain) + 1, 16)]
        held = [block for block in blocks if block in used]
        assert cache.match(raw([*chain, 7])) == len(held) * 16
        used.update((block, (tick, -len(block))) for block in held)
        cache.insert(raw(chain))
        used.update((block, (tick, -len(block))) for block in blocks)
        if len(used) > 12:
            oldest_last = sorted(used, key=lambda block: used[block], reverse=True)
            used = {block: used[block] for block in oldest_last[:11]}
        assert len(cache) == len(used)


def test_a_long_prompt_costs_little():
    """Ten times the two milliseconds for which nothing may hold the event loop."""
    cache = PrefixCache(100_000)
    prompts = [raw([*range(200_000 - number), *range(number)]) for number in range(5)]
    started = time.perf_counter()
    for prompt in prompts:
        cache.match(prompt)
        cache.insert(prompt)
    assert time.perf_counter() - started < 5 * 0.020
