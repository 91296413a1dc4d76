"""One turn, from an accepted request to its one end: steps 3 to 9 of docs/architecture.md.

Where the five strangers meet: the protocol says what to say, the core turns items into tokens and
back, the engine samples, the store remembers, policy admits. Nothing here knows a transport.

Until ``response.created`` is out, a failure is a refusal (an ``error`` event, an HTTP status).
After it, the turn ends in exactly one terminal event whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from turnwire.engine.base import (
    EngineRequest,
    JsonConstraint,
    LastItem,
    Sampling,
    ToolCallConstraint,
)
from turnwire.errors import (
    EngineError,
    InvariantError,
    RequestError,
    TurnwireError,
)
from turnwire.protocol.events import Usage
from turnwire.protocol.output import ResponseStream
from turnwire.protocol.session import Outcome
from turnwire.server.canary import Canary
from turnwire.server.exchange import ClientGoneError, Ending, Exchange, new_id
from turnwire.server.interruption import Interrupted
from turnwire.server.opening import Opening
from turnwire.server.records import TurnRecord, TurnRecords
from turnwire.server.voice import Voice
from turnwire.server.warmup import WarmUps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from turnwire._core import Chains, Delta, Node, Turn
    from turnwire.config import Config
    from turnwire.engine.base import Constraint, Engine, EngineOutput
    from turnwire.protocol.frames import CreateRequest
    from turnwire.server.admission import Admission
    from turnwire.server.recall import Recall

log = logging.getLogger(__name__)

LAST_WORD_SECONDS = 1.0
"""How long an engine may take, after a stop id, to say how many prompt tokens it had cached."""

ENGINE_RESTART_SECONDS = 30.0
"""How long a turn waits for an engine that is not ready before it fails."""

ENGINE_POLL_SECONDS = 0.05

WARM_UP_PRIORITY = -1
"""Nobody waits for a warm-up: it goes behind every turn."""


@dataclass(slots=True)
class Sampled:
    """What sampling has told so far."""

    cached_tokens: int | None = None
    cut_short: Literal["max_output_tokens"] | None = None
    first_token_at: float | None = None


@dataclass(slots=True)
class Running:
    """One turn in progress."""

    exchange: Exchange
    response_id: str
    model: str
    turn: Turn
    started_at: float
    sampled: Sampled = field(default_factory=Sampled)

    @property
    def usage(self) -> Usage:
        """Tokens so far; ``cached_tokens`` by the engine's word: our own reuse is not usage."""
        return Usage(
            input_tokens=len(self.turn.prompt),
            cached_tokens=self.sampled.cached_tokens or 0,
            output_tokens=self.turn.sampled,
            reasoning_tokens=self.turn.reasoning_tokens,
        )


def _constraint(turn: Turn, request: CreateRequest) -> Constraint | None:
    """Return what the output must be: a forced tool choice goes before the format of a text."""
    if (forced := turn.constraint) is not None:
        return ToolCallConstraint(*forced)
    return None if request.json_schema is None else JsonConstraint(request.json_schema)


class Turns:
    """Runs turns. One per server."""

    def __init__(
        self,
        *,
        chains: Chains,
        engine: Engine,
        sampling: Sampling,
        recall: Recall,
        admission: Admission,
        records: TurnRecords,
        config: Config,
    ) -> None:
        self._profile = chains.profile
        self._opening = Opening(chains=chains, engine=engine, recall=recall, config=config)
        self._engine = engine
        self._sampling = sampling
        self._all_sampling = sampling.over(engine.default_sampling)
        self._recall = recall
        self._admission = admission
        self._records = records
        self._keep_alive = config.server.keep_alive_seconds
        self._prewarm = config.engine.prewarm
        self._in_progress: set[Exchange] = set()
        self.warm_ups = WarmUps(engine)
        self.canary = Canary(chains, one_in=config.model.verify_one_in)

    @property
    def in_progress(self) -> int:
        """How many turns run now."""
        return len(self._in_progress)

    def interrupt_all(self, error: TurnwireError) -> None:
        """End every turn in ``response.failed`` with ``error``."""
        for exchange in self._in_progress:
            exchange.interruption.request(error)

    async def count_input(self, exchange: Exchange) -> int:
        """Return how many tokens the request's prompt has. Raises RequestError classes."""
        turn = await self._opening.open(exchange, None, must_fit=False)
        try:
            return len(turn.prompt)
        finally:
            turn.abort()

    async def run(self, exchange: Exchange) -> None:
        """Run one turn to its end. Raises only ClientGoneError (and cancellation)."""
        self._in_progress.add(exchange)
        try:
            await self._run(exchange)
        finally:
            self._in_progress.discard(exchange)

    async def _run(self, exchange: Exchange) -> None:
        started_at = time.perf_counter()
        response_id = new_id("resp")
        parent = exchange.begin(response_id)
        with ExitStack() as held:
            try:
                held.enter_context(self._admission.turn(exchange.principal))
                if exchange.request.stored:
                    held.enter_context(self._recall.room())
                model = self._admission.check_model(exchange.request.model)
                self.warm_ups.stop(exchange.affinity)
                turn = await self._opening.open(exchange, parent)
            except TurnwireError as error:
                await exchange.refuse(error)
                return
            except Exception as error:
                log.exception("a turn failed before it began")
                await exchange.refuse(InvariantError(str(error)))
                return
            held.callback(turn.abort)
            await self._respond(Running(exchange, response_id, model, turn, started_at))

    async def _respond(self, running: Running) -> None:
        """Do steps 5 to 9: from ``response.created`` to the terminal event."""
        exchange, turn, request = running.exchange, running.turn, running.exchange.request
        echo_instructions, echo_tools, echo_tool_choice = turn.echo
        stream = ResponseStream(
            request,
            response_id=running.response_id,
            created_at=int(time.time()),
            model=running.model,
            stream_id=exchange.stream_id,
            new_id=new_id,
            echo_tools=echo_tools,
            echo_instructions=echo_instructions,
            echo_tool_choice=echo_tool_choice,
            store=request.stored,
            temperature=self._all_sampling.temperature,
            top_p=self._all_sampling.top_p,
            has_verbosity=self._profile.knows_verbosity,
        )
        voice = Voice(stream, exchange, interval=self._keep_alive)
        node: Node | None = None
        error: TurnwireError | None = None
        try:
            await voice.open()
            async with voice.kept_alive():
                if not request.warm_up:
                    await self._sample(running, voice)
                    await voice.push(turn.finish())
                node = turn.commit()
            if running.sampled.cut_short is not None:
                outcome = Outcome.INCOMPLETE
                terminal = stream.incomplete(running.sampled.cut_short, running.usage)
            else:
                outcome = Outcome.COMPLETED
                terminal = stream.completed(running.usage, completed_at=int(time.time()))
            if request.stored:
                await self._remember(running, node, stream.response)
        except ClientGoneError:
            raise
        except Interrupted:
            error = exchange.interruption.error
            if error is None:
                outcome, terminal = Outcome.CANCELLED, stream.cancelled(running.usage)
            else:
                outcome, terminal = Outcome.FAILED, stream.failed(error)
        except Exception as fault:  # noqa: BLE001 -- logged by _explain; the turn must end once
            error, node = self._explain(running, fault), None
            outcome, terminal = Outcome.FAILED, stream.failed(error)
        self._record(running, outcome, node)
        if request.warm_up and node is not None and self._prewarm:
            self.warm_ups.start(self._engine_request(running, max_tokens=0))
        if node is not None:
            self.canary.watch(running.response_id, node)
        await exchange.end(
            Ending(
                response_id=running.response_id,
                outcome=outcome,
                terminal=terminal,
                response=stream.response,
                state=node,
                error=error,
            )
        )

    async def _sample(self, running: Running, voice: Voice) -> None:
        """Do steps 5 and 6: sample until a stop id, the limit, or an interruption."""
        turn, sampled = running.turn, running.sampled
        room = self._engine.context_length - len(turn.prompt)
        asked = running.exchange.request.max_output_tokens
        request = self._engine_request(running, max_tokens=min(asked or room, room))
        interruption = running.exchange.interruption
        with interruption:
            await self._until_ready()
        outputs = cast("AsyncGenerator[EngineOutput, None]", self._engine.generate(request))
        async with aclosing(outputs):
            while True:
                with interruption:
                    output = await anext(outputs, None)
                if output is None:
                    raise EngineError("the engine ended without a finish reason")
                if output.cached_tokens is not None:
                    sampled.cached_tokens = output.cached_tokens
                if output.token_ids:
                    if sampled.first_token_at is None:
                        sampled.first_token_at = time.perf_counter()
                    await voice.push(self._push(turn, output.token_ids))
                if turn.stopped or output.finish_reason == "stop":
                    if output.finish_reason is None:
                        await self._last_word(outputs, sampled)
                    return
                if output.finish_reason == "length":
                    sampled.cut_short = "max_output_tokens"
                    return
                if output.finish_reason == "abort":
                    raise EngineError("the engine aborted the request")

    async def _until_ready(self) -> None:
        """Wait for an engine that is starting again after a failure; its own error if it does not.

        The client sees keep-alives meanwhile, instead of a 503 that some clients take for final.
        """
        try:
            async with asyncio.timeout(ENGINE_RESTART_SECONDS):
                while not self._engine.ready:  # noqa: ASYNC110 -- engines have no event for it
                    await asyncio.sleep(ENGINE_POLL_SECONDS)
        except TimeoutError:
            log.warning("the engine has not been ready for %g s", ENGINE_RESTART_SECONDS)

    def _push(self, turn: Turn, token_ids: Sequence[int]) -> list[Delta]:
        try:
            return turn.push(token_ids)
        except RequestError as error:
            raise EngineError(f"the engine sampled what the vocabulary lacks: {error}") from error

    async def _last_word(
        self, outputs: AsyncGenerator[EngineOutput, None], sampled: Sampled
    ) -> None:
        """Hear out an engine that counts its cached tokens in an output after the stop id.

        One that does not know this stop id samples on instead: its next output ends the wait too.
        """
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                output = await anext(outputs, None)
        except TimeoutError:
            return
        if output is not None and output.cached_tokens is not None:
            sampled.cached_tokens = output.cached_tokens

    def _engine_request(self, running: Running, *, max_tokens: int) -> EngineRequest:
        turn, request = running.turn, running.exchange.request
        last_item = turn.last_item
        return EngineRequest(
            request_id=running.response_id,
            prompt=memoryview(turn.prompt),
            max_tokens=max_tokens,
            stop_token_ids=self._profile.stop_token_ids,
            sampling=Sampling(temperature=request.temperature, top_p=request.top_p).over(
                self._sampling
            ),
            constraint=_constraint(turn, request),
            affinity=running.exchange.affinity,
            last_item=LastItem(*last_item) if last_item else None,
            cache_scope=running.exchange.principal.name,
            priority=0 if max_tokens else WARM_UP_PRIORITY,
        )

    async def _remember(self, running: Running, node: Node, body: bytes) -> None:
        exchange = running.exchange
        try:
            await self._recall.put(
                running.response_id,
                exchange.principal.name,
                node,
                parent_id=exchange.request.previous_response_id,
                given=bytes(memoryview(exchange.request.input_json)),
                body=body,
            )
        except Exception:
            # The answer is whole and its connection can continue it: worth more than the copy.
            log.exception("%s could not be stored", running.response_id)

    def _explain(self, running: Running, error: Exception) -> TurnwireError:
        """Log a failure under its response id; return what the client may read."""
        if isinstance(error, TurnwireError):
            log.error("%s failed: %s: %s", running.response_id, type(error).__name__, error)
            return error
        log.error("%s failed", running.response_id, exc_info=error)
        return InvariantError(str(error))

    def _record(self, running: Running, outcome: Outcome, node: Node | None) -> None:
        turn, sampled, now = running.turn, running.sampled, time.perf_counter()
        first = sampled.first_token_at
        self._records.add(
            TurnRecord(
                response_id=running.response_id,
                previous_response_id=running.exchange.request.previous_response_id,
                kind=turn.kind,
                outcome=outcome.value,
                prompt_tokens=len(turn.prompt),
                reused_tokens=turn.prefix_len,
                rendered_tokens=turn.rendered,
                sampled_tokens=turn.sampled,
                cached_tokens=sampled.cached_tokens,
                reencoded_tokens=turn.reencoded,
                open_micros=turn.open_micros,
                first_token_ms=None if first is None else 1000 * (first - running.started_at),
                total_ms=1000 * (now - running.started_at),
            ),
            owner=running.exchange.principal.name,
            node=node,
        )
