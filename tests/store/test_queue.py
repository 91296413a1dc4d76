"""Writes beside turns: found at once, kept in order, waiting for a database that is down."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from databases import Redis
from store.rows import row as dated
from turnwire.errors import OverloadedError, StoreUnavailableError
from turnwire.store.base import Lineage
from turnwire.store.memory import MemoryStore
from turnwire.store.queue import WriteQueue
from turnwire.store.redis import RedisStore
from turnwire.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from turnwire.store.base import StoredResponse


@pytest.fixture
def server() -> Iterator[Redis]:
    """A Redis of this test's own, which it may stop."""
    made = Redis()
    made.start()
    yield made
    made.close()


@pytest.fixture
async def queue(server: Redis) -> AsyncIterator[WriteQueue]:
    made = WriteQueue(RedisStore(server.url), max_responses=4, max_bytes=100_000)
    await made.start()
    yield made
    await made.close(0)


def row(parent: StoredResponse | None = None, **fields) -> StoredResponse:
    return dated(parent, **{"expires_at": None, **fields})


async def written(queue: WriteQueue) -> None:
    async with asyncio.timeout(10):
        while len(queue):  # noqa: ASYNC110 -- nobody is told
            await asyncio.sleep(0.01)


def family() -> tuple[StoredResponse, StoredResponse, StoredResponse]:
    a = row()
    b = row(a)
    return a, b, row(b)


async def test_what_is_put_is_found_before_and_after_it_is_written(queue):
    a, b, c = family()
    for one in (a, b, c):
        await queue.put(one)
    for _ in range(2):
        assert await queue.get(b.response_id, "alice") == b
        assert await queue.get(b.response_id, "bob") is None
        assert await queue.holds(c.response_id, "alice")
        assert not await queue.holds(c.response_id, "bob")
        found = await queue.lineage(c.response_id, "alice", ())
        assert found is not None
        assert [name for name, _ in found.deltas] == [a.response_id, b.response_id, c.response_id]
        known = (b.response_id,)
        pairs = [(c.response_id, c.delta)]
        assert await queue.lineage(c.response_id, "alice", known) == Lineage(b.response_id, pairs)
        assert await queue.lineage(c.response_id, "bob", known) is None
        await written(queue)


async def test_while_the_database_is_down_writes_wait_and_are_found(server, queue, caplog):
    a, b, c = family()
    await queue.put(a)
    await written(queue)
    server.stop()
    with caplog.at_level(logging.WARNING):
        await queue.put(b)
        await queue.put(c)
        await asyncio.sleep(0.5)
        assert len(queue) == 2
        assert await queue.get(c.response_id, "alice") == c
        with pytest.raises(StoreUnavailableError, match="redis"):
            await queue.get(a.response_id, "alice")
        server.start()
        await written(queue)
    assert "the store (redis) is down" in caplog.text
    assert "is up again" in caplog.text
    assert c.body.decode() not in caplog.text
    lineage = await queue.lineage(c.response_id, "alice", ())
    assert lineage is not None
    assert len(lineage.deltas) == 3


async def test_beyond_the_bound_nobody_is_let_in(server, queue):
    server.stop()
    for _ in range(3):
        with queue.room():
            await queue.put(row())
    with queue.room(), pytest.raises(OverloadedError, match=r"redis.*'store': false"):
        queue.room().__enter__()
    with queue.room():
        await queue.put(row())
    with pytest.raises(OverloadedError), queue.room():
        pass
    server.start()
    await written(queue)
    with queue.room():
        pass


async def test_bytes_are_bounded_too(server, queue):
    server.stop()
    await queue.put(row(body=b"x" * 99_000))
    with queue.room():
        pass
    await queue.put(row(body=b"x" * 1_000))
    with pytest.raises(OverloadedError), queue.room():
        pass


async def test_closing_writes_what_waits(tmp_path):
    path = tmp_path / "responses.sqlite3"
    queue = WriteQueue(SqliteStore(path), max_responses=1000, max_bytes=10**9)
    await queue.start()
    rows = [row() for _ in range(200)]
    for one in rows:
        await queue.put(one)
    await queue.close(10)
    store = SqliteStore(path)
    await store.start()
    assert [await store.get(one.response_id, "alice") for one in rows] == rows
    await store.close()


async def test_closing_does_not_wait_for_ever(server, queue, caplog):
    server.stop()
    await queue.put(row())
    async with asyncio.timeout(2):
        await queue.close(0.1)
    assert "1 responses were not written to the store (redis)" in caplog.text


async def test_a_deletion_lets_what_waits_be_written_first(queue):
    a, b, c = family()
    for one in (a, b, c):
        await queue.put(one)
    assert not await queue.delete(b.response_id, "bob")
    assert await queue.delete(b.response_id, "alice")
    assert await queue.get(b.response_id, "alice") is None
    lineage = await queue.lineage(c.response_id, "alice", ())
    assert lineage is not None
    assert lineage.deltas[-1] == (c.response_id, (b.delta or b"") + (c.delta or b""))


async def test_a_row_that_cannot_be_written_stops_no_other(caplog):
    class Picky(MemoryStore):
        async def put(self, response: StoredResponse) -> None:
            if response.body == b"bad":
                raise ValueError("no")
            await super().put(response)

    store = Picky(max_responses=10)
    queue = WriteQueue(store, max_responses=10, max_bytes=10**6)
    await queue.start()
    bad, good = row(body=b"bad"), row()
    await queue.put(bad)
    await queue.put(good)
    await queue.close(5)
    assert await store.get(good.response_id, "alice") == good
    assert f"{bad.response_id} could not be stored" in caplog.text
