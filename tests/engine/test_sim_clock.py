from __future__ import annotations

import asyncio
import time

import pytest

from turnwire.engine.sim.clock import Schedule, VirtualClock


async def test_virtual_clock_takes_no_real_time_and_wakes_in_order():
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    began = time.monotonic()
    await asyncio.gather(sleeper("a", 100, 100), sleeper("b", 150), sleeper("c", 0, 30))
    assert time.monotonic() - began < 1
    assert woken == [("c", 0), ("c", 30), ("a", 100), ("b", 150), ("a", 200)]


async def test_virtual_clock_outlives_a_cancelled_sleeper():
    clock = VirtualClock()
    nap = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    nap.cancel()
    await clock.sleep(7)
    assert clock.now() == 7


def test_schedule_is_absolute():
    schedule = Schedule(10.0, count=1001, tokens_per_second=100)
    assert [schedule.due(i) for i in (0, 1, 2)] == pytest.approx([10.0, 10.01, 10.02])
    assert schedule.due(1000) == pytest.approx(20.0)
    assert schedule.due_by(9.99, 0) == 0
    assert schedule.due_by(10.0, 0) == 1
    # A wake-up half a second late finds everything that has become due, and nothing has moved.
    assert schedule.due_by(10.5, 1) == 51
    assert schedule.due_by(1e9, 0) == 1001


def test_pause_moves_the_tokens_from_there_on():
    schedule = Schedule(0.0, count=10, tokens_per_second=10, pause_after=4, pause=2.0)
    assert schedule.due(3) == pytest.approx(0.3)
    assert schedule.due(4) == pytest.approx(2.4)
    assert schedule.due(9) == pytest.approx(2.9)


def test_coalescing_spaces_outputs_but_does_not_hold_the_last_token():
    schedule = Schedule(0.0, count=10, tokens_per_second=100, coalesce=0.04)
    assert schedule.wake(0, None) == 0.0
    assert schedule.wake(1, 0.0) == pytest.approx(0.04)
    assert schedule.due_by(0.04, 1) == 5
    assert schedule.wake(5, 0.04) == pytest.approx(0.08)
    assert schedule.wake(9, 0.08) == pytest.approx(0.09)
    assert not schedule.one_by_one


def test_jitter_is_seeded_keeps_order_and_never_adds_up():
    def plan(seed: str) -> list[float]:
        schedule = Schedule(0.0, count=500, tokens_per_second=10, jitter=0.3, seed=seed)
        return [schedule.due(i) for i in range(500)]

    one = plan("1")
    assert one == plan("1") != plan("2")
    assert one == sorted(one)
    assert one[0] == 0.0
    assert all(abs(due - i / 10) < 0.05 for i, due in enumerate(one))
