"""Only the marked await ends, and a cancellation from elsewhere keeps its meaning."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from turnwire.errors import OverloadedError
from turnwire.server.interruption import Interrupted, Interruption


async def test_it_ends_the_await_and_not_the_task():
    interruption = Interruption()
    log = []

    async def work() -> str:
        try:
            with interruption:
                await asyncio.sleep(10)
        except Interrupted:
            log.append("interrupted")
        await asyncio.sleep(0)
        return "done"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    interruption.request()
    assert await task == "done"
    assert log == ["interrupted"]
    assert task.cancelling() == 0


async def test_a_request_before_the_block_is_remembered():
    interruption = Interruption()
    interruption.request(OverloadedError("x"))
    interruption.request(OverloadedError("y"))
    assert str(interruption.error) == "x"
    with pytest.raises(Interrupted), interruption:
        pytest.fail("the block was entered")


async def test_a_request_outside_the_block_waits_for_the_next_one():
    interruption = Interruption()
    reached = []

    async def work() -> None:
        with interruption:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        reached.append("after")
        with interruption:
            reached.append("never")

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    interruption.request()
    with pytest.raises(Interrupted):
        await task
    assert reached == ["after"]


async def test_a_cancellation_from_elsewhere_stays_one():
    interruption = Interruption()

    async def work() -> None:
        with interruption:
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    interruption.request()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_block_that_swallows_the_cancellation_leaves_none_pending():
    interruption = Interruption()

    async def work() -> int:
        with interruption, suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        return task.cancelling()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    interruption.request()
    assert await task == 0
