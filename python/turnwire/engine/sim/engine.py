"""``SimEngine``: scripted answers on a token clock. No model; it never claims to be one."""

from __future__ import annotations

import json
import logging
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from turnwire.engine.base import EngineOutput, JsonConstraint, Sampling
from turnwire.engine.sim.clock import Clock, Schedule, WallClock
from turnwire.engine.sim.minimal import minimal_value
from turnwire.engine.sim.places import Places
from turnwire.engine.sim.prefix import PrefixCache
from turnwire.engine.sim.script import Act, Answer, Call, Fault, Playbook, Script
from turnwire.errors import (
    ContextLengthError,
    EngineError,
    InvalidValueError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from turnwire.engine.base import Constraint, EngineRequest, FinishReason, OutputEncoder

log = logging.getLogger(__name__)

_LONGEST_SLEEP = 0.1
"""Seconds after which a sleeping sequence looks whether the engine has died under it."""

_BURST = 64
"""Outputs that may leave without letting other tasks run, when the clock is behind."""

_KNOWN_AFFINITIES = 4096


@dataclass(slots=True)
class Recording:
    """One request as the engine saw it (only with ``record=True``)."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    output: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """One sequence being played. Ids leave in order, up to the fault if there is one."""

    ids: tuple[int, ...]
    finish_reason: FinishReason
    fault: Fault | None
    cached: int
    schedule: Schedule
    recording: Recording | None
    sent: int = 0
    last_output: float | None = None
    burst: int = 0
    over: bool = False

    @property
    def stop_at(self) -> int:
        return len(self.ids) if self.fault is None else min(self.fault.after_tokens, len(self.ids))

    def wait_until(self, now: float) -> float | None:
        """Say when the next output may leave; None: now, without letting other tasks run."""
        wake = self.schedule.wake(self.sent, self.last_output)
        if wake <= now and self.burst < _BURST:
            return None
        self.burst = 0
        return wake

    def next_output(self, now: float) -> EngineOutput:
        """Hand out what is due, at least one token."""
        first = self.sent
        if self.schedule.one_by_one:
            self.sent += 1
        else:
            due = max(self.schedule.due_by(now, self.sent), self.sent + 1)
            self.sent = min(due, self.stop_at)
        self.burst += 1
        self.last_output = now
        new = self.ids[first : self.sent]
        if self.recording is not None:
            self.recording.output.extend(new)
        self.over = self.sent == len(self.ids) and self.fault is None
        return EngineOutput(
            token_ids=new,
            finish_reason=self.finish_reason if self.over else None,
            cached_tokens=self.cached if first == 0 else None,
        )


class SimEngine:
    """Plays a :class:`Script`. See docs/engines.md for what is modelled and what is not."""

    name = "sim"

    def __init__(
        self,
        script: Script,
        encoder: OutputEncoder,
        *,
        model: str = "sim",
        clock: Clock | None = None,
        record: bool = False,
        recordings: int = 256,
    ) -> None:
        """Set the stage.

        ``encoder`` turns scripted answers into ids. ``record`` keeps the last ``recordings``
        prompts and outputs in memory, which is for tests only: they are the users' content.
        """
        self.model = model
        self.requests = 0
        self.active = 0
        self.aborted = 0
        self._settings = script.settings
        self._playbook = Playbook(script)
        self._encoder = encoder
        self._clock = clock or WallClock()
        self._cache = PrefixCache(script.settings.cache_blocks)
        self._places = Places(script.settings.max_sequences)
        self._turns: dict[str, int] = {}
        self._recordings: deque[Recording] | None = deque(maxlen=recordings) if record else None
        self._started = False
        self._lives = 0
        self._dead_until = float("-inf")

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""
        return self._settings.context_length

    @property
    def default_sampling(self) -> Sampling:
        """Nothing: a script is played, whatever a request says about sampling."""
        return Sampling()

    @property
    def ready(self) -> bool:
        """False before ``start``, after ``close`` and while a scripted death lasts."""
        return self._started and self._clock.now() >= self._dead_until

    @property
    def recordings(self) -> Sequence[Recording]:
        """The latest requests, oldest first; empty without ``record``."""
        return tuple(self._recordings or ())

    @property
    def prompts(self) -> list[list[int]]:
        """The latest requests' prompt ids, oldest first; empty without ``record``."""
        return [recording.prompt for recording in self.recordings]

    async def start(self) -> None:
        """Nothing to load."""
        self._started = True
        log.info("sim engine ready: scripted answers on a token clock, no model")

    async def close(self) -> None:
        """End every running sequence with EngineError."""
        self._started = False
        self._lives += 1

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Play the answer that the script has for this request; see :class:`Engine`."""
        return self.play(request)

    async def play(
        self, request: EngineRequest, act: Act | None = None, *, cached: int | None = None
    ) -> AsyncGenerator[EngineOutput, None]:
        """Play ``act`` (None: what ``choose`` says).

        ``cached`` says how many prompt tokens need no prefill, instead of the prefix cache.
        """
        self.check(request)
        act = act or self.choose(request)
        ids, finish_reason = self._plan(request, act)
        recording = self._record(request)
        life = self._lives
        prompt = bytes(request.prompt)
        run: _Run | None = None
        self.requests += 1
        self.active += 1
        failed = False
        try:
            async with self._places.hold(request.priority):
                if cached is None:
                    cached = self._cache.match(prompt, request.cache_scope)
                schedule = self._schedule(act, len(request.prompt) - cached, len(ids))
                await self._sleep_until(schedule.due(0), life)
                run = _Run(ids, finish_reason, act.fault, cached, schedule, recording)
                while run.sent < run.stop_at:
                    now = self._clock.now()
                    wake = run.wait_until(now)
                    if wake is not None:
                        await self._sleep_until(wake, life)
                        now = self._clock.now()
                    yield run.next_output(now)
                if run.fault is not None:
                    await self._break(run.fault, life)
                elif not ids:
                    yield EngineOutput(finish_reason=finish_reason, cached_tokens=cached)
                run.over = True
        except EngineError:
            failed = True
            raise
        finally:
            self.active -= 1
            if not failed and (run is None or not run.over):
                self.aborted += 1
            if run is not None and life == self._lives:
                # The last sampled token has not been evaluated yet: no block may contain it.
                sampled = array("I", ids[: max(run.sent - 1, 0)]).tobytes()
                self._cache.insert(prompt + sampled, request.cache_scope)

    def check(self, request: EngineRequest) -> None:
        """Raise OverloadedError or ContextLengthError for what cannot be played now."""
        if not self.ready:
            raise OverloadedError("The sim engine is not ready. Try again shortly.")
        if len(request.prompt) >= self.context_length:
            raise ContextLengthError(
                f"The prompt has {len(request.prompt)} tokens; the context holds "
                f"{self.context_length} and must have room for one more.",
                param="input",
            )

    def choose(self, request: EngineRequest) -> Act:
        """Take the script's act for this request, and count it as its connection's next turn."""
        if request.max_tokens == 0:
            return Act()
        turn = self._turns.pop(request.affinity, 0) + 1
        self._turns[request.affinity] = turn
        if len(self._turns) > _KNOWN_AFFINITIES:
            del self._turns[next(iter(self._turns))]
        return self._playbook.choose(request.last_item, turn)

    def _plan(self, request: EngineRequest, act: Act) -> tuple[tuple[int, ...], FinishReason]:
        """Decide on the ids to sample, and why they end."""
        room = min(request.max_tokens, self.context_length - len(request.prompt))
        if room == 0:
            return (), "length"
        answer = act.answer
        if answer.ids is not None:
            ids = answer.ids
            if request.stop_token_ids.isdisjoint(ids):
                ids = (*ids, *self._stop_id(request.stop_token_ids))
        else:
            if request.constraint is not None:
                answer = _constrained(answer, request.constraint)
            ids = self._encode(answer.encoder_input())
        for i, token in enumerate(ids):
            if token in request.stop_token_ids:
                ids = ids[: i + 1]
                break
        if len(ids) > room:
            return ids[:room], "length"
        return ids, "stop"

    def _encode(self, output: bytes) -> tuple[int, ...]:
        try:
            return tuple(self._encoder.encode_output(output))
        except InvalidValueError as error:
            # The script is at fault, not the client whose turn plays it.
            raise EngineError(f"The sim cannot play its answer: {error.message}") from error

    def _stop_id(self, stop_token_ids: frozenset[int]) -> tuple[int, ...]:
        """Find the id that ends this family's answers; a vocabulary may have several stop ids."""
        ids = self._encode(b'{"text":""}')
        if ids and ids[-1] in stop_token_ids:
            return ids[-1:]
        return tuple(sorted(stop_token_ids)[:1])

    def _schedule(self, act: Act, uncached: int, count: int) -> Schedule:
        settings = self._settings
        prefill = (settings.prefill_overhead_ms + act.delay.first_token_ms) / 1000
        prefill += uncached / settings.prefill_tokens_per_second
        return Schedule(
            self._clock.now() + prefill,
            count=count,
            tokens_per_second=settings.tokens_per_second,
            coalesce=settings.coalesce_ms / 1000,
            pause_after=act.delay.after_tokens,
            pause=act.delay.ms / 1000,
            jitter=settings.jitter,
            seed=f"{settings.seed}/{self.requests}",
        )

    def _record(self, request: EngineRequest) -> Recording | None:
        if self._recordings is None:
            return None
        recording = Recording(
            request.request_id, request.prompt.tolist(), request.max_tokens, request.sampling
        )
        self._recordings.append(recording)
        return recording

    async def _sleep_until(self, moment: float, life: int) -> None:
        """Wait; raises EngineError when the engine dies or closes meanwhile."""
        while True:
            now = self._clock.now()
            await self._clock.sleep(min(moment - now, _LONGEST_SLEEP))
            if life != self._lives:
                raise EngineError("The sim engine died.")
            if moment - now <= _LONGEST_SLEEP:
                return

    async def _break(self, fault: Fault, life: int) -> None:
        match fault.kind:
            case "fail":
                raise EngineError("The sim's script makes this request fail.")
            case "die":
                self._lives += 1
                self._cache.clear()
                self._dead_until = self._clock.now() + fault.restart_ms / 1000
                raise EngineError("The sim's script makes the engine die.")
            case "stall":
                await self._sleep_until(float("inf"), life)
            case "cut":
                pass


def _constrained(answer: Answer, constraint: Constraint) -> Answer:
    """Keep what a constrained model could say: calls of the allowed tools and no more.

    Instead of a text that is no JSON, it says the smallest value that the schema accepts. Without
    such a call in the script, the first allowed tool is called with the smallest
    arguments that its schema accepts. Raises EngineError when the sim cannot find any.
    """
    if isinstance(constraint, JsonConstraint):
        try:
            msgspec.json.decode(answer.text or "")
        except msgspec.DecodeError:
            value = minimal_value(msgspec.json.decode(constraint.schema))
            return Answer(text=json.dumps(value, ensure_ascii=False))
        return Answer(text=answer.text)
    schemas = dict(constraint.tools)
    calls = tuple(call for call in answer.calls if call.name in schemas)
    if not calls:
        name, schema = constraint.tools[0]
        arguments = minimal_value(msgspec.json.decode(schema or b"{}"))
        calls = (Call(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),)
    return Answer(calls=calls if constraint.many else calls[:1])
