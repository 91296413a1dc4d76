"""The store that the configuration names, and what recalls its responses."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from turnwire.errors import ConfigError
from turnwire.server.recall import Recall
from turnwire.store.memory import MemoryStore
from turnwire.store.queue import WriteQueue
from turnwire.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from turnwire._core import Chains
    from turnwire.config import Config
    from turnwire.store.base import Store

log = logging.getLogger(__name__)


async def open_recall(chains: Chains, config: Config) -> Recall:
    """Start the store. Raises StartupError classes."""
    section = config.store
    store = store_of(config)
    queue = WriteQueue(store, max_responses=section.queue, max_bytes=section.queue_bytes)
    await queue.start()
    if store.name == "memory":
        log.info("stored responses are kept in memory only: a restart forgets them")
    return Recall(queue, chains, nodes=section.nodes, ttl_seconds=section.ttl_seconds)


def store_of(config: Config) -> Store:
    """Return the store, not yet started. Raises ConfigError."""
    section = config.store
    kind = section.kind or "memory"
    if kind == "memory":
        return MemoryStore(max_responses=section.max_responses)
    if kind == "sqlite":
        return SqliteStore(section.path or default_path())
    if section.url is None:
        raise ConfigError(f"store.kind is '{kind}', and store.url is not set.", param="store.url")
    url = section.url.get_secret_value()
    try:
        if kind == "postgres":
            from turnwire.store.postgres import PostgresStore  # noqa: PLC0415 -- an extra

            return PostgresStore(url)
        from turnwire.store.redis import RedisStore  # noqa: PLC0415 -- an extra

        return RedisStore(url)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"store.kind is '{kind}', which needs a driver: pip install 'turnwire[{kind}]'",
            param="store.kind",
        ) from error


def default_path() -> Path:
    """Say where ``sqlite`` keeps its file: in the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / (
        "turnwire/responses.sqlite3"
    )
