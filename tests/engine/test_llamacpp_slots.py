"""Placement and admission, without llama.cpp: the table is plain arithmetic."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.engine.llamacpp_slots import Lease, SlotTable, common_prefix
from turnwire.errors import EngineError

if TYPE_CHECKING:
    import random


def raw(ids) -> bytes:
    return array("I", ids).tobytes()


async def run(
    table: SlotTable, prompt, output=(), *, affinity="", scope="", aborted=False
) -> Lease:
    """One request from start to end; its slot then holds prompt and output."""
    size = len(prompt) + len(output) + 1
    lease = await table.acquire(raw(prompt), size, affinity=affinity, scope=scope)
    table.release(lease, raw([*prompt, *output]), aborted=aborted)
    return lease


async def slot(table: SlotTable, prompt, output=(), **options) -> int:
    return (await run(table, prompt, output, **options)).slot.id


def table(slots=4, parallel=4, kv_tokens=10_000) -> SlotTable:
    return SlotTable(slots=slots, parallel=parallel, kv_tokens=kv_tokens)


HEADER = list(range(100))


async def test_a_chain_stays_in_its_slot():
    chains = table()
    a, b = [*HEADER, 1], [*HEADER, 2]
    first = await slot(chains, a, [7, 8], affinity="a")
    other = await slot(chains, b, [7, 8], affinity="b")
    assert first != other
    for turn in range(5):
        a = [*a, 7, 8, turn]
        b = [*b, 7, 8, turn]
        assert await slot(chains, a, [7, 8], affinity="a") == first
        assert await slot(chains, b, [7, 8], affinity="b") == other


async def test_a_chain_is_found_again_by_its_tokens_from_another_connection():
    chains = table()
    first = await slot(chains, HEADER, [7], affinity="a")
    await slot(chains, [5, 5], affinity="b")
    assert await slot(chains, [*HEADER, 7, 9], affinity="after a reconnect") == first


async def test_the_longest_known_beginning_wins():
    chains = table()
    await slot(chains, HEADER[:50])
    long = await slot(chains, [*range(1, 90)])
    assert long != await slot(chains, HEADER[:60], affinity="x")
    assert await slot(chains, [*range(1, 95)]) == long


async def test_a_branch_of_the_same_connection_takes_over_when_little_is_lost():
    chains = table()
    first = await slot(chains, HEADER, [7] * 10, affinity="a")
    assert await slot(chains, [*HEADER, 1, 1], affinity="b") != first
    assert await slot(chains, [*HEADER, 2, 2], [7], affinity="a") == first
    # Much would be lost: the new branch goes elsewhere.
    grown = await slot(chains, [*HEADER, 2, 2, 7, *range(900)], affinity="a")
    assert grown == first
    assert await slot(chains, [*HEADER, 3, 3], affinity="a") != first


async def test_the_same_turn_once_more_takes_over():
    chains = table()
    first = await slot(chains, HEADER, [7] * 90, affinity="a")
    assert await slot(chains, HEADER, [8] * 90, affinity="a") == first


async def test_what_was_aborted_is_overwritten():
    chains = table()
    first = await slot(chains, HEADER, [7] * 500, affinity="a", aborted=True)
    assert await slot(chains, [*HEADER, 1], affinity="a") == first


async def test_two_branches_that_both_live_overwrite_each_other_once_only():
    chains = table()
    a = HEADER
    first = await slot(chains, a, [7] * 10, affinity="a")
    b = [*HEADER, 1, 1]
    assert await slot(chains, b, [7] * 10, affinity="a") == first
    a = [*a, *[7] * 10, 5]
    second = await slot(chains, a, [7] * 10, affinity="a")
    assert second != first
    for turn in range(3):
        b = [*b, *[7] * 10, turn]
        a = [*a, *[7] * 10, turn]
        assert await slot(chains, b, [7] * 10, affinity="a") == first
        assert await slot(chains, a, [7] * 10, affinity="a") == second


async def test_the_least_recently_used_slot_goes_first():
    chains = table(slots=3)
    order = [await slot(chains, [n] * 10, affinity=str(n)) for n in range(3)]
    assert sorted(order) == [0, 1, 2]
    await slot(chains, [*[0] * 10, 1], affinity="0")
    assert await slot(chains, [9] * 10, affinity="9") == order[1]


async def test_scopes_share_nothing():
    chains = table(slots=1)
    await run(chains, HEADER, scope="alice")
    lease = await run(chains, [*HEADER, 1], scope="bob")
    assert not lease.share
    lease = await run(chains, [*HEADER, 1, 2], scope="bob")
    assert lease.share


async def test_requests_wait_their_turn_for_room():
    chains = table(kv_tokens=100)
    order: list[str] = []

    async def ask(name: str, size: int, hold: asyncio.Event) -> None:
        lease = await chains.acquire(raw([ord(name)]), size, affinity=name, scope="")
        order.append(name)
        await hold.wait()
        chains.release(lease, raw([ord(name)] * size))

    holds = {name: asyncio.Event() for name in "abcd"}
    tasks = []
    for name, size in zip("abcd", (60, 60, 30, 30), strict=True):
        tasks.append(asyncio.create_task(ask(name, size, holds[name])))
        await asyncio.sleep(0)
    assert order == ["a"]  # `c` would fit, but `b` came first
    holds["a"].set()
    await asyncio.sleep(0.01)
    assert order == ["a", "b", "c"]
    for hold in holds.values():
        hold.set()
    await asyncio.gather(*tasks)
    assert order == list("abcd")


async def test_no_more_than_parallel_run():
    chains = table(parallel=2)
    leases = [await chains.acquire(raw([n]), 5, affinity="", scope="") for n in range(2)]
    waiting = asyncio.create_task(chains.acquire(raw([9]), 5, affinity="", scope=""))
    await asyncio.sleep(0)
    assert not waiting.done()
    chains.release(leases[0], b"")
    assert (await waiting).slot.id != leases[1].slot.id


async def test_room_is_made_oldest_first():
    chains = table(kv_tokens=100)
    old = await slot(chains, [1] * 40, affinity="1")
    new = await slot(chains, [2] * 40, affinity="2")
    lease = await run(chains, [3] * 50, affinity="3")
    assert lease.erase == (old,)
    assert await slot(chains, [*[2] * 40, 5], affinity="2") == new


async def test_a_request_that_is_cancelled_leaves_the_queue_and_its_slot():
    chains = table(slots=1)
    lease = await chains.acquire(raw([1] * 10), 11, affinity="", scope="")
    waiting = [
        asyncio.create_task(chains.acquire(raw([n]), 5, affinity="", scope="")) for n in range(3)
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    chains.release(lease, raw([1] * 10))
    waiting[1].cancel()  # it has been granted the slot and does not know it yet
    granted = await asyncio.wait_for(waiting[2], 1)
    chains.release(granted, b"")
    assert all(task.cancelled() for task in waiting[:2])


async def test_when_the_child_ends_nobody_waits_and_nothing_is_remembered():
    chains = table(slots=2, parallel=1)
    await run(chains, HEADER)
    lease = await chains.acquire(raw([1]), 5, affinity="", scope="")
    waiting = asyncio.create_task(chains.acquire(raw([2]), 5, affinity="", scope=""))
    await asyncio.sleep(0)
    chains.reset()
    with pytest.raises(EngineError):
        await waiting
    chains.release(lease, raw(HEADER))
    assert (await run(chains, [*HEADER, 5])).previous == b""


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix(left, right):
    expected = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        expected += 1
    assert common_prefix(raw(left), raw(right)) == expected


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_never_more_than_fits(draw: random.Random):
    async def play() -> None:
        chains = SlotTable(slots=5, parallel=3, kv_tokens=200)
        running: list[tuple[Lease, int]] = []
        tasks: list[asyncio.Task[Lease]] = []
        sizes: dict[asyncio.Task[Lease], int] = {}
        for _ in range(60):
            if draw.random() < 0.6:
                size = draw.randrange(1, 201)
                prompt = raw([draw.randrange(2) for _ in range(draw.randrange(size))])
                scope = draw.choice("xy")
                task = asyncio.create_task(
                    chains.acquire(prompt, size, affinity=draw.choice("ab"), scope=scope)
                )
                tasks.append(task)
                sizes[task] = size
            elif tasks and draw.random() < 0.3:
                draw.choice(tasks).cancel()
            elif running:
                lease, size = running.pop(draw.randrange(len(running)))
                chains.release(lease, raw([1] * draw.randrange(size)), aborted=draw.random() < 0.3)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled():
                    running.append((task.result(), sizes[task]))
            assert len(running) <= 3
            assert len({lease.slot.id for lease, _ in running}) == len(running)
            assert sum(size for _, size in running) <= 200
            assert sum(slot.size for slot in chains._slots) <= 200
            assert {s.id for s in chains._slots if s.busy} == {r[0].slot.id for r in running}
        while running or tasks:
            for lease, _ in running:
                chains.release(lease, b"")
            running = []
            await asyncio.sleep(0)
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled():
                    running.append((task.result(), 0))
        assert not any(slot.busy for slot in chains._slots)

    asyncio.run(play())
