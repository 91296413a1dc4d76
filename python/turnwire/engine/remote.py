"""An engine's HTTP server somewhere else: one client, bounded waits, and whether it is there.

Every request has a connection of its own: closing it is how an engine is told to stop sampling, and
a pooled one may be closed by the other side at the very moment at which it is taken (0015).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import msgspec

from turnwire.engine.base import JsonConstraint
from turnwire.engine.events import EventReader
from turnwire.errors import (
    ContextLengthError,
    EngineError,
    OverloadedError,
    StartupError,
    TurnwireError,
    UnsupportedParameterError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.payload import Payload

    from turnwire.engine.base import Engine, EngineRequest

log = logging.getLogger(__name__)

CALM_SECONDS = 5.0
"""Between two looks at an engine that is there."""

ANXIOUS_SECONDS = 0.25
"""Between two looks at one that is not."""

LOOK_SECONDS = 5.0
"""How long a look may take. Two that take longer in a row mean that it is not there."""

MAX_REPLY_BYTES = 16 * 1024 * 1024
_REASON_CHARACTERS = 300

_JSON = {"Content-Type": "application/json"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait for an engine, in seconds."""

    start: float = 120.0
    """Until it is ready for the first time."""
    connect: float = 5.0
    """Until it accepts a connection."""
    first_token: float = 300.0
    """From there to the first token: it may queue, and read a long prompt."""
    silence: float = 60.0
    """From one token to the next."""


class Remote:
    """One HTTP server that samples."""

    def __init__(
        self, url: str, *, engine: str, api_key: str, waits: Waits, alive: str = "/health"
    ) -> None:
        """Describe it; nothing is sent yet.

        ``url`` is its root, with or without ``/v1``. ``engine`` is its name in errors, ``alive``
        the path that is asked whether it is still there.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        self.ready = False
        self.waits = waits
        self.engine = engine
        self._alive = alive
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: aiohttp.ClientSession | None = None
        self._watch: asyncio.Task[None] | None = None
        self._look_again = asyncio.Event()
        self._streams: set[aiohttp.ClientResponse] = set()

    @property
    def streams(self) -> int:
        """How many requests are being answered."""
        return len(self._streams)

    async def start(self) -> None:
        """Wait until it is healthy. Raises StartupError with what it said last."""
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.waits.connect),
            auto_decompress=False,
        )
        try:
            await self._until_healthy()
        except BaseException:
            await self.close()
            raise
        self.ready = True
        self._watch = asyncio.create_task(self._keep_looking(), name=f"{self.engine}-health")

    async def close(self) -> None:
        """End every request with EngineError. Safe to call twice, and before ``start``."""
        self.ready = False
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        for response in tuple(self._streams):
            # Whoever reads a closed client's stream would wait for ever (aiohttp 3.14).
            response.content.set_exception(aiohttp.ClientConnectionError("closed"))
            response.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def get(self, path: str, kind: type[_T]) -> _T:
        """Ask for JSON. Raises EngineError, and OverloadedError when it has no capacity."""
        return await self._ask("GET", path, None, kind)

    async def post(self, path: str, body: object, kind: type[_T]) -> _T:
        """Send and get JSON. Raises as ``get`` does, and ContextLengthError."""
        return await self._ask("POST", path, msgspec.json.encode(body), kind)

    async def status(self, path: str, body: object) -> int:
        """Post JSON and return the status of the answer. Raises EngineError."""
        async with self._request("POST", path, msgspec.json.encode(body), LOOK_SECONDS) as response:
            return response.status

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, body: Payload | bytes, headers: dict[str, str]
    ) -> AsyncIterator[EventReader]:
        """Post, and read the events of the answer. Leaving the ``with`` closes the connection.

        Raises EngineError, OverloadedError, ContextLengthError.
        """
        began = time.monotonic()
        async with self._request("POST", path, body, self.waits.first_token, headers) as response:
            if response.status != 200:
                raise self._refusal(response.status, await self._whole(response))
            self._streams.add(response)
            left = max(self.waits.first_token - (time.monotonic() - began), 0.001)
            parts = response.content.iter_any()
            try:
                yield EventReader(parts, engine=self.engine, first=left, silence=self.waits.silence)
            finally:
                self._streams.discard(response)
                response.close()

    async def _ask(self, method: str, path: str, body: bytes | None, kind: type[_T]) -> _T:
        async with self._request(method, path, body, self.waits.silence) as response:
            reply = await self._whole(response)
        if response.status != 200:
            raise self._refusal(response.status, reply)
        try:
            return msgspec.json.decode(reply, type=kind)
        except msgspec.DecodeError as error:
            message = f"{self.engine} answered {path} with what cannot be read: {error}"
            raise EngineError(message) from None

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Payload | bytes | None,
        seconds: float,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the answer's head may take ``seconds``. Failures become EngineError."""
        if self._client is None:
            raise OverloadedError("The model is not ready. Try again shortly.")
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(
                    method, self.url + path, data=body, headers={**_JSON, **(headers or {})}
                )
            yield response
        except aiohttp.ClientConnectorError as error:
            self._doubt()
            raise EngineError(f"{self.engine} cannot be reached at {self.url}: {error}") from error
        except TimeoutError as error:
            raise EngineError(f"{self.engine} did not answer in time ({path}).") from error
        except (aiohttp.ClientError, OSError) as error:
            self._look_again.set()
            message = f"The connection to {self.engine} broke: {_named(error)}"
            raise EngineError(message) from error
        finally:
            if response is not None:
                response.close()

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async with asyncio.timeout(self.waits.silence):
            async for part in response.content.iter_any():
                size += len(part)
                if size > MAX_REPLY_BYTES:
                    raise EngineError(f"{self.engine} answered more than {MAX_REPLY_BYTES} bytes.")
                parts.append(part)
        return b"".join(parts)

    def _refusal(self, status: int, body: bytes) -> TurnwireError:
        reason = reason_in(body) or f"HTTP status {status}"
        return refused(self.engine, reason, status)

    def _doubt(self) -> None:
        if self.ready:
            log.warning("%s is not there", self.engine)
        self.ready = False
        self._look_again.set()

    async def _healthy(self, path: str) -> str:
        """Look once. Return what is wrong, or nothing."""
        try:
            async with (
                asyncio.timeout(LOOK_SECONDS),
                self._request("GET", path, None, LOOK_SECONDS) as response,
            ):
                return "" if response.status == 200 else f"status {response.status} at {path}"
        except TurnwireError as error:
            return error.message
        except TimeoutError:
            return f"no answer at {path}"

    async def _until_healthy(self) -> None:
        deadline = time.monotonic() + self.waits.start
        while (wrong := await self._healthy("/health")) != "":
            if time.monotonic() > deadline:
                raise StartupError(
                    f"{self.engine} at {self.url} was not ready after {self.waits.start:g} s: "
                    f"{wrong}"
                )
            await asyncio.sleep(ANXIOUS_SECONDS)

    async def _keep_looking(self) -> None:
        misses = 0
        while True:
            pause = CALM_SECONDS if self.ready else ANXIOUS_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look_again.wait()
            self._look_again.clear()
            wrong = await self._healthy(self._alive)
            misses = misses + 1 if wrong else 0
            if not wrong and not self.ready:
                log.info("%s is there again", self.engine)
                self.ready = True
            elif misses > 1:
                self._doubt()
                self._look_again.clear()


def check_request(request: EngineRequest, engine: Engine, *, forces_calls: bool = False) -> None:
    """Raise for what ``engine`` cannot serve, before anything is sent."""
    if not engine.ready:
        raise OverloadedError("The model is not ready. Try again shortly.")
    if request.constraint is not None and not forces_calls:
        is_json = isinstance(request.constraint, JsonConstraint)
        what = "An answer in JSON" if is_json else "A forced tool_choice"
        raise UnsupportedParameterError(
            f"{what} cannot be enforced by this engine ({engine.name}).",
            param="text.format" if is_json else "tool_choice",
        )
    if len(request.prompt) >= engine.context_length:
        raise ContextLengthError(
            f"The prompt has {len(request.prompt)} tokens; the model's context holds "
            f"{engine.context_length} and must have room for one more.",
            param="input",
        )


def refused(engine: str, reason: str, status: int = 500) -> TurnwireError:
    """Turn what an engine says into the error to raise."""
    reason = reason[:_REASON_CHARACTERS]
    if "context length" in reason or "longer than the model" in reason:
        return ContextLengthError(f"The model's context is too short: {reason}", param="input")
    if status in {429, 503}:
        log.warning("%s has no capacity: %s", engine, reason)
        return OverloadedError("The model has no capacity now. Try again shortly.")
    if status in {401, 403}:
        return EngineError(f"{engine} refuses our key (engine.api_key): {reason}")
    return EngineError(f"{engine} refused: {reason}")


def reason_in(body: bytes) -> str:
    """Find the reason in an error's JSON: OpenAI's form, FastAPI's, or a bare one."""
    try:
        found: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return found if isinstance(found, str) else ""


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
