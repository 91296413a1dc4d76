"""The embedded engine: llama.cpp's server in a supervised child process, ids in and ids out."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from turnwire.engine import llamacpp_wire
from turnwire.engine.base import EngineOutput, Sampling
from turnwire.engine.events import EventReader
from turnwire.engine.llamacpp_grammar import ProbedGrammars
from turnwire.engine.llamacpp_sampled import SampledIds
from turnwire.engine.llamacpp_slots import SlotTable
from turnwire.engine.llamacpp_supervisor import ChildSettings, Supervisor
from turnwire.errors import (
    ContextLengthError,
    EngineError,
    OverloadedError,
    StartupError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from turnwire.engine.base import EngineRequest, FinishReason

log = logging.getLogger(__name__)

DEFAULT_KV_TOKENS = 16_384
SLOTS = 16
"""Slots share one KV cache, so that they cost nothing: as many chains as fit stay in it."""

_PROBE_TOKENS = 16
"""Part of the KV cache that is set aside for probing grammars."""

_URL = "http://engine"
_JSON = {"Content-Type": "application/json"}
_KNOWN_TEXTS = 1024


def require_xllamacpp() -> None:
    """Raise StartupError, with what to install, when the package is not there."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise StartupError(
            "The llamacpp engine needs the package xllamacpp: pip install 'turnwire[local]'. "
            "Without it, `--engine sim` serves scripted answers."
        )


class LlamaCppEngine:
    """Serves one GGUF with the ``xllamacpp`` wheel. See docs/engines.md."""

    name = "llamacpp"

    def __init__(
        self,
        gguf: Path,
        *,
        model: str | None = None,
        context_length: int | None = None,
        kv_tokens: int | None = None,
        parallel: int = 4,
        threads: int | None = None,
        batch_tokens: int | None = None,
        start_timeout: float = 120.0,
        silence_timeout: float = 300.0,
    ) -> None:
        """Describe the child; nothing starts yet.

        ``context_length`` is what one request may hold (None: what the model was trained for, but
        at most ``kv_tokens``), ``kv_tokens`` what all requests together may (default 16,384, or
        twice the context length if that is more). At most ``parallel`` requests are sampled at
        once. ``threads`` and ``batch_tokens`` default to what suits the machine. Timeouts are in
        seconds; a child that is silent for ``silence_timeout`` (one batch takes less) is killed.
        """
        cores = len(os.sched_getaffinity(0))
        # OpenMP spins while it waits: two threads on two busy cores are slower than one.
        threads = threads or (1 if cores <= 2 else cores // 2)
        self.model = model or gguf.stem
        self._gguf = gguf
        self._wanted_context = context_length
        self._kv_tokens = kv_tokens or max(DEFAULT_KV_TOKENS, 2 * (context_length or 0))
        self._context_length = min(context_length or self._kv_tokens, self._kv_tokens)
        self._default_sampling = Sampling()
        self._slots = SlotTable(slots=SLOTS, parallel=parallel, kv_tokens=self._kv_tokens)
        self._child = Supervisor(
            ChildSettings(
                model=gguf,
                kv_tokens=self._kv_tokens + _PROBE_TOKENS,
                slots=SLOTS + 1,
                threads=threads,
                # A batch cannot be interrupted. Small ones keep an abort in the middle of a long
                # prompt under half a second, and one thread is no slower with them.
                batch_tokens=batch_tokens or min(64 * threads, 512),
            ),
            start_timeout=start_timeout,
            silence_timeout=silence_timeout,
            on_exit=self._slots.reset,
        )
        self._texts: dict[str, list[int]] = {}
        self._grammars = ProbedGrammars(functools.partial(self._post, "completion"), slot=SLOTS)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together; final once the engine has started."""
        return self._context_length

    @property
    def default_sampling(self) -> Sampling:
        """What llama.cpp uses where a request leaves a choice open, by its own word."""
        return self._default_sampling

    @property
    def ready(self) -> bool:
        """False before ``start``, after ``close`` and while the child restarts."""
        return self._child.ready

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._child.pid

    @property
    def restarts(self) -> int:
        """How often the child has been restarted."""
        return self._child.restarts

    async def start(self) -> None:
        """Start the child and wait until it serves. Raises StartupError when it cannot."""
        require_xllamacpp()
        if not self._gguf.is_file():
            raise StartupError(f"There is no model file {self._gguf}.")
        await self._child.start()
        try:
            async with self._child.client() as client, client.get(f"{_URL}/props") as response:
                props = await response.json()
            largest, self._default_sampling = llamacpp_wire.read_settings(props)
        except (aiohttp.ClientError, KeyError, TypeError, ValueError) as error:
            await self.close()
            raise StartupError(f"llama.cpp does not tell its settings: {error}") from error
        if self._wanted_context is not None and self._wanted_context > largest:
            log.warning(
                "%s was trained for %d tokens of context, less than the %d asked for",
                self.model,
                largest,
                self._wanted_context,
            )
        self._context_length = min(self._context_length, largest)

    async def close(self) -> None:
        """End the child. Running requests raise EngineError."""
        await self._child.close()
        self._slots.reset()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Sample; see :class:`turnwire.engine.base.Engine`."""
        prompt = bytes(request.prompt)
        count = len(request.prompt)
        self._check(count)
        max_tokens = min(request.max_tokens, self._context_length - count)
        rules = await self._grammars.of(request)
        lease = await self._slots.acquire(
            prompt, count + max(max_tokens, 1), affinity=request.affinity, scope=request.cache_scope
        )
        sampled = SampledIds(
            count,
            tokenize=self._encode,
            sequence=functools.partial(self._sequence, lease.slot.id),
        )
        body = llamacpp_wire.completion_body(
            request, slot=lease.slot.id, share=lease.share, max_tokens=max_tokens, grammar=rules
        )
        began = over = False
        try:
            for victim in lease.erase:
                await self._erase(victim)
            async with (
                self._child.client() as client,
                client.post(f"{_URL}/completion", data=body, headers=_JSON) as response,
            ):
                if response.status != 200:
                    raise llamacpp_wire.read_refusal(response.status, await response.read())
                began = True
                parts = response.content.iter_any()
                # The client's own timeout bounds the waits: then the child hangs, and is killed.
                events = EventReader(parts, engine="llama.cpp", first=None, silence=None)
                reader = llamacpp_wire.ChunkReader(events)
                cached: int | None = None
                reason: FinishReason | None = None
                while reason is None:
                    chunk = await reader.next()
                    if chunk.prompt_progress is not None:  # its token is no token
                        cached = chunk.prompt_progress.cache
                        continue
                    ids, reason = await sampled.read(chunk, request, leave=response.close)
                    if ids or reason is not None:
                        over = reason is not None
                        yield EngineOutput(ids, reason, cached)
                        cached = None
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error
        finally:
            held = prompt + llamacpp_wire.native(sampled.ids[:-1]) if began else lease.previous
            self._slots.release(lease, held, aborted=began and not over)

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text as llama.cpp does, for comparing tokenizers; ``special`` reads tokens' names.

        Raises EngineError.
        """
        body = {"content": text, "add_special": False, "parse_special": special}
        reply = await self._post("tokenize", body)
        return msgspec.json.decode(reply, type=dict[str, list[int]])["tokens"]

    async def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> list[int]:
        """Render chat messages by the GGUF's template, as llama.cpp does. Raises EngineError."""
        prompt = llamacpp_wire.read_prompt(
            await self._post("apply-template", llamacpp_wire.template_body(messages, tools))
        )
        reply = await self._post("tokenize", llamacpp_wire.chat_tokens_body(prompt))
        return msgspec.json.decode(reply, type=dict[str, list[int]])["tokens"]

    def _check(self, count: int) -> None:
        if not self.ready:
            raise OverloadedError("The model is not ready. Try again shortly.")
        if count >= self._context_length:
            raise ContextLengthError(
                f"The prompt has {count} tokens; the model's context holds "
                f"{self._context_length} and must have room for one more.",
                param="input",
            )

    async def _erase(self, slot: int) -> None:
        with suppress(EngineError):  # at worst llama.cpp makes room itself
            await self._post(f"slots/{slot}?action=erase", {})

    async def _post(self, path: str, body: object) -> bytes:
        try:
            async with (
                self._child.client() as client,
                client.post(
                    f"{_URL}/{path}", data=msgspec.json.encode(body), headers=_JSON
                ) as response,
            ):
                reply = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error
        if response.status != 200:
            raise llamacpp_wire.read_refusal(response.status, reply)
        return reply

    def _broken(self, error: Exception) -> EngineError:
        if isinstance(error, TimeoutError):
            self._child.kill()
            return EngineError("llama.cpp hung and is being restarted.")
        return EngineError(f"The connection to llama.cpp broke: {error}")

    async def _encode(self, text: str) -> list[int]:
        """Encode a short text that occurs again and again (a character of several tokens)."""
        ids = self._texts.get(text)
        if ids is None:
            ids = await self.tokenize(text)
            if len(self._texts) >= _KNOWN_TEXTS:
                self._texts.clear()
            self._texts[text] = ids
        return ids

    async def _sequence(self, slot: int) -> list[int]:
        """Tell which ids a slot holds, once it is idle."""
        name = f"slot-{slot}"
        await self._post(f"slots/{slot}?action=save", {"filename": name})
        path = self._child.slot_directory / name
        try:
            return llamacpp_wire.read_saved_tokens(path)
        except OSError as error:
            raise EngineError(f"llama.cpp did not save a slot: {error}") from error
        finally:
            path.unlink(missing_ok=True)
