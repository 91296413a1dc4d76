"""Every store on its real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from databases import Postgres, Redis
from turnwire.store.memory import MemoryStore
from turnwire.store.postgres import PostgresStore
from turnwire.store.redis import RedisStore
from turnwire.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from turnwire.store.base import Store

KINDS = ("memory", "sqlite", "postgres", "redis")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    server = Redis()
    server.start()
    yield server
    server.close()


def make(kind: str, tmp_path, request) -> Store:
    if kind == "memory":
        return MemoryStore(max_responses=10_000)
    if kind == "sqlite":
        return SqliteStore(tmp_path / "sub" / "responses.sqlite3")
    server = request.getfixturevalue(kind)
    return PostgresStore(server.url) if kind == "postgres" else RedisStore(server.url)


@pytest.fixture(params=KINDS)
async def store(request, tmp_path) -> AsyncIterator[Store]:
    made = make(request.param, tmp_path, request)
    await made.start()
    yield made
    await made.close()
