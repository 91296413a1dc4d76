"""One reply of ``turnwire sim``: its events, the faults in it, and the client who leaves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response

from turnwire.engine.base import EngineOutput
from turnwire.engine.sim.fault import UNKNOWN_ID
from turnwire.engine.sim.wire import SSE_END, Usage, error_body
from turnwire.errors import ContextLengthError, TurnwireError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request
    from starlette.types import Send

    from turnwire.engine.base import EngineRequest
    from turnwire.engine.sim.fault import WireFault

ABORT_EXTENSION = "turnwire.abort"
"""Where the server that runs the app may lend it a way to reset the connection."""


class TokenEvents(Protocol):
    """One dialect's events for sampled ids."""

    def chunk(self, output: EngineOutput, ids: Sequence[int] | None) -> bytes:
        """Write one event of a stream."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Write the event that counts."""
        ...

    def whole(self, output: EngineOutput, usage: Usage) -> bytes:
        """Write the reply to a request that does not stream."""
        ...


class _ResetError(Exception):
    """The connection is to be reset in the middle."""


class _CutError(Exception):
    """The stream is to end in good order, before its time."""


@dataclass(frozen=True, slots=True)
class TokenReply:
    """One reply in the making."""

    request: Request
    send: Send
    sampled: EngineRequest
    events: TokenEvents
    usage: bool
    fault: WireFault | None

    async def stream(self, outputs: AsyncGenerator[EngineOutput, None]) -> None:
        """Answer in events, as the outputs come."""
        send, fault = self.send, self.fault
        await begin_events(send)
        sent = cached = 0
        finished = False
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    cached = output.cached_tokens or cached
                    ids: Sequence[int] | None = output.token_ids
                    if fault is not None and sent >= fault.after_tokens:
                        ids = await self._spoil(fault, output)
                    await send_part(send, self.events.chunk(output, ids))
                    sent += len(output.token_ids)
                    finished = output.finish_reason is not None
        except TurnwireError as error:
            body = error_body(said(error), kind="InternalServerError", status=500)
            await send_part(send, b"data: " + body + b"\n\n" + SSE_END, last=True)
        except _CutError:
            await send_part(send, b"", last=True)
        else:
            await send_part(send, self._end(sent, cached) if finished else b"", last=True)

    def _end(self, sent: int, cached: int) -> bytes:
        lie = self.fault is not None and self.fault.kind == "wrong_count"
        counted = Usage(len(self.sampled.prompt) + lie, sent, cached)
        return (self.events.usage(counted) if self.usage else b"") + SSE_END

    async def _spoil(self, fault: WireFault, output: EngineOutput) -> Sequence[int] | None:
        """Do what the fault says; return the ids to send all the same, None for none."""
        match fault.kind:
            case "slow":
                await asyncio.sleep(fault.ms / 1000)
            case "stall":
                await asyncio.Event().wait()
            case "cut":
                raise _CutError
            case "reset":
                raise _ResetError
            case "half_chunk":
                event = self.events.chunk(output, output.token_ids)
                await send_part(self.send, event[: len(event) // 2])
                raise _CutError
            case "no_ids":
                return None
            case "unknown_id":
                return [UNKNOWN_ID] * len(output.token_ids)
        return output.token_ids

    async def whole(self, outputs: AsyncGenerator[EngineOutput, None]) -> None:
        """Answer in one piece."""
        ids: list[int] = []
        cached, reason = 0, None
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    ids += output.token_ids
                    cached = output.cached_tokens or cached
                    reason = output.finish_reason
        except TurnwireError as error:
            body = error_body(said(error), kind="InternalServerError", status=500)
            await send_whole(self.request, self.send, 500, body)
            return
        usage = Usage(len(self.sampled.prompt), len(ids), cached)
        body = self.events.whole(EngineOutput(ids, reason), usage)
        await send_whole(self.request, self.send, 200, body)


def said(error: TurnwireError) -> str:
    """Say what is wrong in the words of vLLM."""
    if isinstance(error, ContextLengthError):
        return f"This model's maximum context length is exceeded. {error.message}"
    return error.message


async def begin_events(send: Send) -> None:
    """Begin a reply that is a stream of events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"server", b"sim")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_part(send: Send, body: bytes, *, last: bool = False) -> None:
    """Send a piece of the body."""
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def send_whole(request: Request, send: Send, status: int, body: bytes) -> None:
    """Send a JSON reply."""
    response = Response(body, status, {"server": "sim"}, "application/json")
    await response(request.scope, request.receive, send)


async def until_gone(request: Request, answering: Any) -> None:  # noqa: ANN401 -- a coroutine
    """Answer until it is done or the client has gone, whichever is first."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()
    except _ResetError:
        abort = request.scope.get("extensions", {}).get(ABORT_EXTENSION, {}).get("abort")
        if abort is None:
            raise
        abort()
    finally:
        for task in (answer, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
