"""Stored responses in Redis or Valkey: one server, or one with replicas, but no cluster.

A response is a hash, ``turnwire:response:ID``; who continues it is a set, ``turnwire:children:ID``;
``turnwire:expiry`` is a sorted set of all that expire. Scripts run whole, so no row is ever seen
half written, and no key is left behind by one that goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from turnwire.errors import StartupError, StoreUnavailableError
from turnwire.store.base import SWEEP_ROWS, Lineage, Store, StoredResponse, lineage_of, now

if TYPE_CHECKING:
    from collections.abc import Collection

SCHEMA = 1
"""Version of the keys (in ``turnwire:schema``)."""

TIMEOUT_SECONDS = 10.0
"""How long a connection or a command may take."""

_FIELDS = ("principal", "created_at", "expires_at", "parent_id", "input", "body", "delta")

_KEYS = """
local function row(id) return 'turnwire:response:' .. id end
local function children(id) return 'turnwire:children:' .. id end
"""

_FORGET = (
    _KEYS
    + """
local function forget(id)
    local gone = redis.call('HMGET', row(id), 'parent_id', 'delta')
    local heirs = redis.call('SMEMBERS', children(id))
    for _, child in ipairs(heirs) do
        local own = redis.call('HGET', row(child), 'delta')
        if own and gone[2] then
            redis.call('HSET', row(child), 'delta', gone[2] .. own)
        else
            redis.call('HDEL', row(child), 'delta')
        end
        if gone[1] then
            redis.call('HSET', row(child), 'parent_id', gone[1])
            redis.call('SADD', children(gone[1]), child)
        else
            redis.call('HDEL', row(child), 'parent_id')
        end
    end
    if gone[1] then redis.call('SREM', children(gone[1]), id) end
    redis.call('DEL', row(id), children(id))
    redis.call('ZREM', 'turnwire:expiry', id)
end
"""
)

_VISIBLE = """
local function visible(id, principal, now)
    local found = redis.call('HMGET', row(id), 'principal', 'expires_at')
    return found[1] == principal and not (found[2] and tonumber(found[2]) <= tonumber(now))
end
"""

# ARGV: id, principal, parent or '', expiry or '', then the fields that there are.
_PUT = (
    _KEYS
    + """
local id, principal, parent, expires = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
redis.call('DEL', row(id))
redis.call('HSET', row(id), unpack(ARGV, 5))
if parent ~= '' then
    local found = redis.call('HMGET', row(parent), 'principal')
    if found[1] == principal and redis.call('HEXISTS', row(parent), 'delta') == 1 then
        redis.call('SADD', children(parent), id)
    else
        redis.call('HDEL', row(id), 'delta')
    end
end
if expires ~= '' then redis.call('ZADD', 'turnwire:expiry', expires, id) end
"""
)

# ARGV: id, principal, now, then the known ids.
_LINEAGE = (
    _KEYS
    + _VISIBLE
    + """
local id, found, known = ARGV[1], {}, {}
if not visible(id, ARGV[2], ARGV[3]) then return found end
for index = 4, #ARGV do known[ARGV[index]] = true end
while id and not known[id] do
    local one = redis.call('HMGET', row(id), 'parent_id', 'delta')
    found[#found + 1] = {id, one[1], one[2]}
    id = one[1]
end
return found
"""
)

_DELETE = (
    _FORGET
    + _VISIBLE
    + """
if not visible(ARGV[1], ARGV[2], ARGV[3]) then return 0 end
forget(ARGV[1])
return 1
"""
)

_SWEEP = (
    _FORGET
    + """
local expired = redis.call(
    'ZREVRANGEBYSCORE', 'turnwire:expiry', ARGV[1], '-inf', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(expired) do forget(id) end
return #expired
"""
)


class RedisStore(Store):
    """The server at ``url`` (``redis://…``, ``rediss://…`` or ``unix://…``)."""

    name = "redis"

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis: Any = None

    async def start(self) -> None:
        """Connect, and see whose keys there are."""
        try:
            self._redis = Redis.from_url(
                self._url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
            )
            await self._redis.setnx("turnwire:schema", SCHEMA)
            version = int(await self._redis.get("turnwire:schema"))
        except (RedisError, OSError, ValueError) as error:
            await self.close()
            raise StartupError(f"The store (redis) cannot be used: {error}") from error
        if version != SCHEMA:
            await self.close()
            raise StartupError(
                f"The store (redis) cannot be used: its keys are of version {version}, and this "
                f"turnwire knows version {SCHEMA}."
            )

    async def close(self) -> None:
        """Disconnect."""
        connected, self._redis = self._redis, None
        if connected is not None:
            await connected.aclose()

    async def put(self, response: StoredResponse) -> None:
        """Write the hash."""
        fields: list[str | bytes | int] = []
        for name in _FIELDS:
            value = getattr(response, name)
            if value is not None:
                fields += [name, value]
        parent, expires = response.parent_id or "", response.expires_at
        await self._eval(
            _PUT,
            response.response_id,
            response.principal,
            parent,
            "" if expires is None else expires,
            *fields,
        )

    async def get(self, response_id: str, principal: str) -> StoredResponse | None:
        """Read the hash."""
        values = await self._call("HMGET", f"turnwire:response:{response_id}", *_FIELDS)
        owner, created_at, expires_at, parent_id, given, body, delta = values
        if owner is None:
            return None
        row = StoredResponse(
            response_id=response_id,
            principal=owner.decode(),
            created_at=int(created_at),
            expires_at=None if expires_at is None else int(expires_at),
            parent_id=None if parent_id is None else parent_id.decode(),
            input=given,
            body=body,
            delta=delta,
        )
        return row if row.visible(principal) else None

    async def holds(self, response_id: str, principal: str) -> bool:
        """Read two fields."""
        key = f"turnwire:response:{response_id}"
        owner, expires_at = await self._call("HMGET", key, "principal", "expires_at")
        expired = expires_at is not None and int(expires_at) <= now()
        return owner is not None and owner.decode() == principal and not expired

    async def lineage(
        self, response_id: str, principal: str, known: Collection[str]
    ) -> Lineage | None:
        """Walk back along the parents, in the server."""
        if response_id in known:
            return Lineage(response_id, []) if await self.holds(response_id, principal) else None
        rows = await self._eval(_LINEAGE, response_id, principal, now(), *known)
        return lineage_of(
            [(name.decode(), parent and parent.decode(), delta) for name, parent, delta in rows],
            known,
        )

    async def delete(self, response_id: str, principal: str) -> bool:
        """Delete the hash."""
        return bool(await self._eval(_DELETE, response_id, principal, now()))

    async def sweep(self) -> int:
        """Delete what has expired, newest first."""
        return int(await self._eval(_SWEEP, now(), SWEEP_ROWS))

    async def _eval(self, script: str, *arguments: str | bytes | int) -> Any:  # noqa: ANN401 -- what Redis says
        return await self._call("EVAL", script, 0, *arguments)

    async def _call(self, *command: str | bytes | int) -> Any:  # noqa: ANN401 -- what Redis says
        if self._redis is None:
            raise StoreUnavailableError(self.name)
        try:
            return await self._redis.execute_command(*command)
        except ResponseError as error:
            # A full or read-only server answers; it may take the write later.
            if str(error).startswith(("OOM", "READONLY", "MISCONF", "LOADING", "NOREPLICAS")):
                raise StoreUnavailableError(self.name) from error
            raise
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(self.name) from error
