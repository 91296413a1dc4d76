"""The store in memory: bounded, and nobody sees another's responses."""

from __future__ import annotations

from turnwire.store.base import StoredResponse
from turnwire.store.memory import MemoryStore


def stored(number: int, principal: str = "alice") -> StoredResponse[int]:
    return StoredResponse(f"resp_{number}", principal, number, b"{}")


async def test_what_was_put_is_found():
    store = MemoryStore[int](max_responses=2)
    await store.put(stored(1))
    assert await store.get("resp_1", "alice") == stored(1)
    assert await store.get("resp_2", "alice") is None


async def test_another_principal_finds_nothing():
    store = MemoryStore[int](max_responses=2)
    await store.put(stored(1))
    assert await store.get("resp_1", "bob") is None


async def test_the_least_recently_used_is_forgotten():
    store = MemoryStore[int](max_responses=2)
    await store.put(stored(1))
    await store.put(stored(2))
    await store.get("resp_1", "alice")
    await store.get("resp_2", "bob")
    await store.put(stored(3))
    assert len(store) == 2
    assert await store.get("resp_2", "alice") is None
    assert await store.get("resp_1", "alice") is not None


async def test_putting_again_replaces():
    store = MemoryStore[int](max_responses=2)
    await store.put(stored(1))
    await store.put(StoredResponse("resp_1", "alice", 7, b"[]"))
    found = await store.get("resp_1", "alice")
    assert found is not None
    assert (found.state, len(store)) == (7, 1)
