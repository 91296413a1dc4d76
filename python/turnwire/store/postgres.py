"""Stored responses in PostgreSQL, which any number of servers may share."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from turnwire.errors import StartupError, StoreUnavailableError
from turnwire.store.base import SWEEP_ROWS, Lineage, Store, StoredResponse, lineage_of, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

MIGRATIONS = (
    """
    CREATE TABLE turnwire_responses (
        id text PRIMARY KEY,
        principal text NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint,
        parent_id text,
        input bytea NOT NULL,
        body bytea NOT NULL,
        delta bytea
    );
    CREATE INDEX turnwire_responses_by_parent ON turnwire_responses (parent_id)
        WHERE parent_id IS NOT NULL;
    CREATE INDEX turnwire_responses_by_expiry ON turnwire_responses (expires_at)
        WHERE expires_at IS NOT NULL;
    """,
)
"""What leads from each version of the schema (in ``turnwire_schema``) to the next."""

SCHEMA_LOCK = 0x7477
"""Advisory lock: servers that start together migrate one after the other."""

POOL = 8
"""Connections at most."""

TIMEOUT_SECONDS = 10.0
"""How long a connection or a statement may take."""

_VISIBLE = "id = $1 AND principal = $2 AND (expires_at IS NULL OR expires_at > $3)"

_LINEAGE = f"""
    WITH RECURSIVE chain AS (
        SELECT id, parent_id, delta, 0 AS depth FROM turnwire_responses
        WHERE {_VISIBLE} AND id <> ALL ($4::text[])
        UNION ALL
        SELECT row.id, row.parent_id, row.delta, depth + 1
        FROM chain JOIN turnwire_responses AS row ON row.id = chain.parent_id
        WHERE row.id <> ALL ($4::text[])
    )
    SELECT id, parent_id, delta FROM chain ORDER BY depth
"""  # noqa: S608 -- of constants

_DOWN = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)
_FULL = (
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
)


class PostgresStore(Store):
    """The database at ``url`` (``postgresql://…``)."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None

    async def start(self) -> None:
        """Connect and migrate."""
        try:
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=POOL,
                timeout=TIMEOUT_SECONDS,
                command_timeout=TIMEOUT_SECONDS,
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await _migrate(connection)
        except (*_DOWN, asyncpg.PostgresError, ValueError) as error:
            await self.close()
            raise StartupError(f"The store (postgres) cannot be used: {error}") from error

    async def close(self) -> None:
        """Disconnect."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def put(self, response: StoredResponse) -> None:
        """Insert or replace the row."""
        delta = response.delta
        async with self._connection() as connection, connection.transaction():
            if response.parent_id is not None:
                # Locked, so that a parent which is deleted meanwhile leaves its delta to this row.
                parent = await connection.fetchrow(
                    "SELECT delta IS NOT NULL FROM turnwire_responses "
                    "WHERE id = $1 AND principal = $2 FOR SHARE",
                    response.parent_id,
                    response.principal,
                )
                if parent is None or not parent[0]:
                    delta = None
            await connection.execute(
                "INSERT INTO turnwire_responses VALUES ($1, $2, $3, $4, $5, $6, $7, $8) "
                "ON CONFLICT (id) DO UPDATE SET (principal, created_at, expires_at, parent_id, "
                "input, body, delta) = ROW (excluded.principal, excluded.created_at, "
                "excluded.expires_at, excluded.parent_id, excluded.input, excluded.body, "
                "excluded.delta)",
                response.response_id,
                response.principal,
                response.created_at,
                response.expires_at,
                response.parent_id,
                response.input,
                response.body,
                delta,
            )

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """Select the row."""
        query = f"SELECT * FROM turnwire_responses WHERE {_VISIBLE}"  # noqa: S608 -- a constant
        async with self._connection() as connection:
            row = await connection.fetchrow(query, response_id, principal, now())
        return None if row is None else StoredResponse(*row)

    async def holds(self, response_id: str, principal: str) -> bool:
        """Select one column."""
        query = f"SELECT 1 FROM turnwire_responses WHERE {_VISIBLE}"  # noqa: S608 -- a constant
        async with self._connection() as connection:
            return await connection.fetchval(query, response_id, principal, now()) is not None

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """Walk back along the parents, in SQL."""
        if response_id in known:
            return Lineage(response_id, []) if await self.holds(response_id, principal) else None
        async with self._connection() as connection:
            rows = await connection.fetch(_LINEAGE, response_id, principal, now(), list(known))
        return lineage_of([tuple(row) for row in rows], known)

    async def delete(self, response_id: str, principal: str) -> bool:
        """Delete the row."""
        query = f"SELECT 1 FROM turnwire_responses WHERE {_VISIBLE} FOR UPDATE"  # noqa: S608
        async with self._connection() as connection, connection.transaction():
            if await connection.fetchval(query, response_id, principal, now()) is None:
                return False
            await _forget(connection, response_id)
        return True

    async def sweep(self) -> int:
        """Delete expired rows, newest first."""
        async with self._connection() as connection, connection.transaction():
            rows = await connection.fetch(
                "SELECT id FROM turnwire_responses WHERE expires_at <= $1 "
                "ORDER BY created_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED",
                now(),
                SWEEP_ROWS,
            )
            for row in rows:
                await _forget(connection, row[0])
        return len(rows)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreUnavailableError(self.name)
        try:
            async with self._pool.acquire(timeout=TIMEOUT_SECONDS) as connection:
                yield connection
        except (*_DOWN, *_FULL) as error:
            raise StoreUnavailableError(self.name) from error


async def _forget(connection: asyncpg.Connection, response_id: str) -> None:
    await connection.execute(
        "UPDATE turnwire_responses AS child SET delta = gone.delta || child.delta, "
        "parent_id = gone.parent_id FROM turnwire_responses AS gone "
        "WHERE gone.id = $1 AND child.parent_id = gone.id",
        response_id,
    )
    await connection.execute("DELETE FROM turnwire_responses WHERE id = $1", response_id)


async def _migrate(connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
    await connection.execute("CREATE TABLE IF NOT EXISTS turnwire_schema (version int NOT NULL)")
    version = await connection.fetchval("SELECT max(version) FROM turnwire_schema") or 0
    if version > len(MIGRATIONS):
        raise ValueError(
            f"its schema is version {version}, of a newer turnwire than this "
            f"(version {len(MIGRATIONS)})"
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        await connection.execute(script)
        await connection.execute("INSERT INTO turnwire_schema VALUES ($1)", number)
