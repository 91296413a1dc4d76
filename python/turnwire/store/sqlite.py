"""Stored responses in one SQLite file, which several servers of one machine may share.

The standard library's driver, in a thread of its own: every call is short, and one writer at a time
is what SQLite has.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from turnwire.errors import StartupError, StoreUnavailableError
from turnwire.store.base import (
    SWEEP_ROWS,
    Lineage,
    Store,
    StoredResponse,
    joined,
    lineage_of,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

T = TypeVar("T")

MIGRATIONS = (
    """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY NOT NULL,
        principal TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        parent_id TEXT,
        input BLOB NOT NULL,
        body BLOB NOT NULL,
        delta BLOB
    ) STRICT;
    CREATE INDEX responses_by_parent ON responses (parent_id) WHERE parent_id IS NOT NULL;
    CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL;
    """,
)
"""What leads from each version of the schema (``PRAGMA user_version``) to the next."""

BUSY_SECONDS = 5.0
"""How long a statement waits for another process's write."""

_VISIBLE = "id = ? AND principal = ? AND (expires_at IS NULL OR expires_at > ?)"

_GET = f"SELECT * FROM responses WHERE {_VISIBLE}"  # noqa: S608 -- of constants

_HOLDS = f"SELECT 1 FROM responses WHERE {_VISIBLE}"  # noqa: S608 -- of constants

_LINEAGE = f"""
    WITH RECURSIVE chain (id, parent_id, delta, depth) AS (
        SELECT id, parent_id, delta, 0 FROM responses
        WHERE {_VISIBLE} AND id NOT IN (SELECT value FROM json_each(?))
        UNION ALL
        SELECT row.id, row.parent_id, row.delta, depth + 1
        FROM chain JOIN responses AS row ON row.id = chain.parent_id
        WHERE row.id NOT IN (SELECT value FROM json_each(?))
    )
    SELECT id, parent_id, delta FROM chain ORDER BY depth
"""  # noqa: S608 -- of constants


class SqliteStore(Store):
    """The file at ``path``, made with the mode 0600 if it is not there."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Open the file and migrate it."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except (OSError, sqlite3.Error) as error:
            raise StartupError(f"The store {self._path} cannot be used: {error}") from error

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
            self._connection = None
        self._thread.shutdown(wait=False)

    async def put(self, response: StoredResponse) -> None:
        """Insert or replace the row."""
        await self._run(lambda database: self._put(database, response))

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """Select the row."""
        row = (response_id, principal, now())
        found = await self._run(lambda database: database.execute(_GET, row).fetchone())
        return None if found is None else StoredResponse(*found)

    async def holds(self, response_id: str, principal: str) -> bool:
        """Select one column."""
        row = (response_id, principal, now())
        found = await self._run(lambda database: database.execute(_HOLDS, row).fetchone())
        return found is not None

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """Walk back along the parents, in SQL."""
        if response_id in known:
            return Lineage(response_id, []) if await self.holds(response_id, principal) else None
        listed = json.dumps(list(known))
        row = (response_id, principal, now(), listed, listed)
        rows = await self._run(lambda database: database.execute(_LINEAGE, row).fetchall())
        return lineage_of(rows, known)

    async def delete(self, response_id: str, principal: str) -> bool:
        """Delete the row, and every trace of it in the file and in its log."""

        def delete(database: sqlite3.Connection) -> bool:
            row = (response_id, principal, now())
            with database:
                database.execute("BEGIN IMMEDIATE")
                if database.execute(_HOLDS, row).fetchone() is None:
                    return False
                self._forget(database, response_id)
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return True

        return await self._run(delete)

    async def sweep(self) -> int:
        """Delete expired rows, newest first."""

        def sweep(database: sqlite3.Connection) -> int:
            query = (
                "SELECT id FROM responses WHERE expires_at <= ? ORDER BY created_at DESC LIMIT ?"
            )
            with database:
                database.execute("BEGIN IMMEDIATE")
                rows = database.execute(query, (now(), SWEEP_ROWS)).fetchall()
                for (response_id,) in rows:
                    self._forget(database, response_id)
            if rows:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return len(rows)

        return await self._run(sweep)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        database = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA secure_delete = ON")
            _migrate(database)
        except BaseException:
            database.close()
            raise
        self._connection = database

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        database = self._connection
        if database is None:
            raise StoreUnavailableError(self.name)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, database)
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(self.name) from error

    @staticmethod
    def _put(database: sqlite3.Connection, response: StoredResponse) -> None:
        database.execute(
            "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, "
            "CASE WHEN ? IS NULL OR EXISTS (SELECT 1 FROM responses WHERE id = ? "
            "AND principal = ? AND delta IS NOT NULL) THEN ? END)",
            (
                response.response_id,
                response.principal,
                response.created_at,
                response.expires_at,
                response.parent_id,
                response.input,
                response.body,
                response.parent_id,
                response.parent_id,
                response.principal,
                response.delta,
            ),
        )

    @staticmethod
    def _forget(database: sqlite3.Connection, response_id: str) -> None:
        parent_id, delta = database.execute(
            "SELECT parent_id, delta FROM responses WHERE id = ?", (response_id,)
        ).fetchone()
        children = database.execute(
            "SELECT id, delta FROM responses WHERE parent_id = ?", (response_id,)
        ).fetchall()
        database.executemany(
            "UPDATE responses SET parent_id = ?, delta = ? WHERE id = ?",
            [(parent_id, joined(delta, own), child) for child, own in children],
        )
        database.execute("DELETE FROM responses WHERE id = ?", (response_id,))


def _migrate(database: sqlite3.Connection) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(  # noqa: TRY301 -- rolled back
                f"its schema is version {version}, of a newer turnwire than this "
                f"(version {len(MIGRATIONS)})"
            )
        for script in MIGRATIONS[version:]:
            for statement in filter(str.strip, script.split(";")):
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise
