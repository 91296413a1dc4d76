"""What every store promises, on real servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from store.rows import START, YEAR, row
from turnwire.store import base
from turnwire.store.base import Lineage

if TYPE_CHECKING:
    from turnwire.store.base import Store, StoredResponse


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> list[int]:
    """The time that stores see: change its one element."""
    moment = [START]
    for module in ("base", "memory", "sqlite", "postgres", "redis"):
        monkeypatch.setattr(f"turnwire.store.{module}.now", lambda: moment[0])
    return moment


async def chain(store: Store, length: int) -> list[StoredResponse]:
    rows: list[StoredResponse] = []
    for _ in range(length):
        rows.append(row(rows[-1] if rows else None))
        await store.put(rows[-1])
    return rows


def pairs(rows: list[StoredResponse]) -> list[tuple[str, bytes]]:
    return [(one.response_id, one.delta or b"") for one in rows]


async def test_what_was_put_is_found(store):
    kept = row()
    await store.put(kept)
    assert await store.get(kept.response_id, "alice") == kept
    assert await store.holds(kept.response_id, "alice")
    forever = row(expires_at=None, delta=None, input=b"", body=b"x" * 3_000_000)
    await store.put(forever)
    assert await store.get(forever.response_id, "alice") == forever


async def test_putting_again_replaces(store):
    kept = row()
    await store.put(kept)
    other = replace(kept, body=b"other", delta=None)
    await store.put(other)
    assert await store.get(kept.response_id, "alice") == other


async def test_a_stranger_finds_and_deletes_nothing(store):
    kept = row()
    await store.put(kept)
    for name, who in ((kept.response_id, "bob"), (kept.response_id, ""), ("resp_x", "alice")):
        assert await store.get(name, who) is None
        assert not await store.holds(name, who)
        assert await store.lineage(name, who, ()) is None
        assert await store.lineage(name, who, (name,)) is None
        assert not await store.delete(name, who)
    assert await store.get(kept.response_id, "alice") == kept


async def test_names_are_no_code(store):
    odd = "a' OR '1'='1"
    kept = row(principal=odd)
    await store.put(kept)
    assert await store.get(kept.response_id, odd) == kept
    assert await store.get(odd, odd) is None
    assert await store.lineage("%", odd, ()) is None


async def test_a_lineage_goes_back_to_what_is_known(store):
    rows = await chain(store, 5)
    tip = rows[-1].response_id
    assert await store.lineage(tip, "alice", ()) == Lineage(None, pairs(rows))
    known = (rows[0].response_id, rows[2].response_id, "resp_other")
    assert await store.lineage(tip, "alice", known) == Lineage(rows[2].response_id, pairs(rows[3:]))
    assert await store.lineage(tip, "alice", (tip,)) == Lineage(tip, [])
    long = await chain(store, 300)
    found = await store.lineage(long[-1].response_id, "alice", ())
    assert found is not None
    assert list(found.deltas) == pairs(long)


async def test_a_child_of_what_is_not_stored_cannot_be_continued(store):
    """And none of its delta is kept, which may hold what its parent said."""
    orphan = row(row())
    await store.put(orphan)
    assert await store.get(orphan.response_id, "alice") == replace(orphan, delta=None)
    assert await store.lineage(orphan.response_id, "alice", ()) is None
    grandchild = row(orphan)
    await store.put(grandchild)
    assert await store.lineage(grandchild.response_id, "alice", ()) is None
    stranger = row(principal="bob")
    await store.put(stranger)
    stolen = row(stranger)
    await store.put(stolen)
    assert await store.lineage(stolen.response_id, "alice", ()) is None


async def test_what_is_deleted_is_gone_and_its_children_go_on(store):
    a, b, c = await chain(store, 3)
    fork = row(b)
    await store.put(fork)
    assert await store.delete(b.response_id, "alice")
    assert await store.get(b.response_id, "alice") is None
    assert await store.lineage(b.response_id, "alice", ()) is None
    assert not await store.delete(b.response_id, "alice")
    for child in (c, fork):
        inherited = (b.delta or b"") + (child.delta or b"")
        whole = [*pairs([a]), (child.response_id, inherited)]
        assert await store.lineage(child.response_id, "alice", ()) == Lineage(None, whole)
    assert await store.delete(a.response_id, "alice")
    found = await store.lineage(c.response_id, "alice", ())
    assert found == Lineage(
        None, [(c.response_id, (a.delta or b"") + (b.delta or b"") + (c.delta or b""))]
    )


async def test_what_has_expired_is_gone_at_once_and_swept_later(store, clock):
    rows = await chain(store, 3)
    young = row(rows[-1], expires_at=START + 2 * YEAR)
    await store.put(young)
    clock[0] = START + YEAR - 1
    assert await store.holds(rows[0].response_id, "alice")
    assert await store.sweep() == 0
    clock[0] += 1
    for old in rows:
        assert await store.get(old.response_id, "alice") is None
        assert not await store.holds(old.response_id, "alice")
        assert not await store.delete(old.response_id, "alice")
        assert await store.lineage(old.response_id, "alice", ()) is None
    before = await store.lineage(young.response_id, "alice", ())
    assert before == Lineage(None, pairs([*rows, young]))
    while await store.sweep():
        pass
    whole = b"".join(one.delta or b"" for one in [*rows, young])
    assert await store.lineage(young.response_id, "alice", ()) == Lineage(
        None, [(young.response_id, whole)]
    )
    clock[0] = START
    assert await store.get(rows[0].response_id, "alice") is None


async def test_concurrent_writes_are_all_there(store):
    rows = [row() for _ in range(50)]
    await asyncio.gather(*(store.put(one) for one in rows))
    found = await asyncio.gather(*(store.get(one.response_id, "alice") for one in rows))
    assert found == rows


async def test_closing_twice_is_safe(store):
    await store.close()
    await store.close()


def test_joined_deltas_are_lost_together():
    assert base.joined(b"a", b"b") == b"ab"
    assert base.joined(None, b"b") is base.joined(b"a", None) is None
