"""Keeps one llama.cpp child process alive: start, wait until it serves, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from turnwire.errors import EngineError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

CHILD_SCRIPT = Path(__file__).with_name("llamacpp_child.py")

FIRST_BACKOFF = 0.25
LAST_BACKOFF = 10.0
GOOD_RUN = 60.0
"""Seconds a child must have lived for the next restart to be a first one again."""

_SOCKET = "engine.sock"
_POLL = 0.05
_TERM_GRACE = 2.0
_KEPT_LINES = 40

# "0.00.364.889 I cmn init: …". Continuation lines have no such head and may quote a grammar,
# which is the user's content: those are dropped.
_LOG_LINE = re.compile(r"^\d+(?:\.\d+)+ [A-Z] (?P<text>.*)")

_WARNING, _INFO = 2, 3  # llama.cpp's verbosity


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """How the child serves. Sizes are in tokens."""

    model: Path
    kv_tokens: int
    slots: int
    threads: int
    batch_tokens: int


class Supervisor:
    """One supervised child, and clients that talk to it."""

    def __init__(
        self,
        settings: ChildSettings,
        *,
        start_timeout: float,
        silence_timeout: float,
        on_exit: Callable[[], None],
    ) -> None:
        """Describe the child; times are in seconds.

        Clients give up on a child that says nothing for ``silence_timeout``. ``on_exit`` is called
        each time a child that was ready has ended unbidden.
        """
        self._settings = settings
        self._start_timeout = start_timeout
        self._silence_timeout = silence_timeout
        self._on_exit = on_exit
        self._directory: Path | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._supervisor: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self.ready = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id while there is a child."""
        return self._child.pid if self._child is not None else None

    def client(self) -> aiohttp.ClientSession:
        """Open a client for one request; the caller closes it. Raises EngineError.

        Not one client for all: aiohttp leaves whoever reads a stream waiting for ever when the
        client is closed under it. So requests end because the child does. And no keep-alive:
        llama.cpp closes idle connections when it likes. A local connection costs 0.2 ms.
        """
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.slot_directory / _SOCKET), force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._silence_timeout, sock_read=self._silence_timeout
            ),
        )

    @property
    def slot_directory(self) -> Path:
        """Where the child saves slots."""
        if self._directory is None:
            raise EngineError("llama.cpp is not running.")
        return self._directory

    async def start(self) -> None:
        """Start the child and wait until it serves. Raises StartupError with its last words."""
        self._directory = _private_directory()
        try:
            await self._launch()
        except BaseException:
            await self.close()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="llamacpp-supervisor")

    async def close(self) -> None:
        """End the child and remove its files. Safe to call twice, and before ``start``."""
        self.ready = False
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        await self._end_child()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """End a child that hangs; it is restarted like one that has crashed."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    async def _launch(self) -> None:
        """Start one child and wait until it serves."""
        socket = self.slot_directory / _SOCKET
        socket.unlink(missing_ok=True)  # llama.cpp refuses a path that exists
        self._tail.clear()
        self._child = await asyncio.create_subprocess_exec(
            # -P: the script's folder must not shadow modules that the child imports.
            *(sys.executable, "-P", str(CHILD_SCRIPT)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Its own session: Ctrl-C in the terminal reaches the gateway, which drains first.
            start_new_session=True,
        )
        self._readers = [asyncio.create_task(self._read_log(self._child), name="llamacpp-log")]
        verbosity = _INFO if log.isEnabledFor(logging.DEBUG) else _WARNING
        settings = {
            "model": str(self._settings.model),
            "socket": str(socket),
            "slot_directory": f"{self.slot_directory}/",
            "kv_tokens": self._settings.kv_tokens,
            "slots": self._settings.slots,
            "threads": self._settings.threads,
            "batch_tokens": self._settings.batch_tokens,
            "verbosity": verbosity,
        }
        stdin = self._child.stdin
        assert stdin is not None
        stdin.write(json.dumps(settings).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await stdin.drain()
        await self._wait_until_healthy(self._child)
        self._tail.clear()  # from here on, last words are about how it ended
        self.ready = True
        log.info("llama.cpp serves %s (pid %d)", self._settings.model.name, self._child.pid)

    async def _wait_until_healthy(self, child: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + self._start_timeout
        while True:
            if child.returncode is not None:
                await asyncio.gather(*self._readers)
                raise StartupError(
                    f"llama.cpp ended with status {child.returncode} while loading "
                    f"{self._settings.model.name}. {self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise StartupError(
                    f"llama.cpp was not ready after {self._start_timeout:g} s. {self._last_words()}"
                )
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=5.0)
                async with (
                    self.client() as client,
                    client.get("http://engine/health", timeout=timeout) as response,
                ):
                    if response.status == 200:  # 503 while it loads the model
                        return
            await asyncio.sleep(_POLL)

    async def _supervise(self) -> None:
        """Restart the child whenever it ends, until cancelled by ``close``."""
        backoff = FIRST_BACKOFF
        while True:
            child = self._child
            if child is not None:
                began = time.monotonic()
                status = await child.wait()
                if self.ready:
                    self.ready = False
                    log.error("llama.cpp ended with status %s. %s", status, self._last_words())
                    self._on_exit()
                if time.monotonic() - began > GOOD_RUN:
                    backoff = FIRST_BACKOFF
                await self._end_child()
            log.warning("restarting llama.cpp in %.2f s", backoff)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)
            try:
                await self._launch()
                self.restarts += 1
            except (StartupError, EngineError, OSError) as error:
                log.error("llama.cpp did not restart: %s", error)  # noqa: TRY400 -- no bug of ours
                await self._end_child()

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdin is not None:
            child.stdin.close()
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                await asyncio.wait_for(child.wait(), _TERM_GRACE)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = []

    async def _read_log(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while True:
            try:
                raw = await child.stdout.readline()
            except ValueError:  # a line longer than the reader's buffer: its rest is dropped
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip()
            entry = _LOG_LINE.match(line)
            if entry is not None:
                self._tail.append(entry["text"])
                log.debug("llama.cpp: %s", entry["text"])
            elif line and not self.ready:
                self._tail.append(line)

    def _last_words(self) -> str:
        return "Its last words: " + " / ".join(list(self._tail)[-6:]) if self._tail else ""


def _private_directory() -> Path:
    """Make a directory that only this user can enter, with a path short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="turnwire-"))
    if len(os.fsencode(directory)) > 80:  # sun_path holds 108 bytes
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="turnwire-", dir="/tmp"))
    return directory
