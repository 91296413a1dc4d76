"""``turnwire sim``: the simulated engine behind vLLM's HTTP dialect, for benchmarks and tests.

An ASGI app. It answers ``/inference/v1/generate`` and ``/v1/completions`` in ids, and for peers
that speak text ``/v1/chat/completions`` and ``/v1/responses``, all by one clock. A request's header
``X-Sim-Fault`` (a kind or JSON, see :class:`WireFault`) spoils that request, ``X-Session-ID`` says
whose turn it is (``when.turn`` of a script). It calls itself ``sim`` wherever it shows.
"""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from starlette.requests import ClientDisconnect, Request

from turnwire.engine.base import EngineRequest, LastItem
from turnwire.engine.sim.chat import ChatBody, ResponsesBody
from turnwire.engine.sim.fault import WireFault
from turnwire.engine.sim.reply import (
    TokenEvents,
    TokenReply,
    begin_events,
    said,
    send_part,
    send_whole,
    until_gone,
)
from turnwire.engine.sim.wire import (
    CompletionBody,
    CompletionEvents,
    GenerateBody,
    GenerateEvents,
    SamplingParams,
    TokenizeBody,
    Usage,
    error_body,
    native_ids,
)
from turnwire.errors import (
    ConfigError,
    OverloadedError,
    RequestError,
    TurnwireError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from turnwire.engine.sim.engine import SimEngine
    from turnwire.engine.sim.wire import TextCodec

LAST_ITEM_TOKENS = 4096
"""How far back a prompt is read for what it ends with."""

COMPLETION_TOKENS = 16
"""What a completion may sample when it does not say, as with OpenAI and vLLM."""

NO_LIMIT = 1 << 20

TextCache: TypeAlias = Literal["all", "none"]
"""Which part of a text peer's prompt counts as cached: all but its last item, or nothing."""

Render: TypeAlias = "Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], list[int]]"
"""Messages and tools to a prompt's ids."""


class SimApp:
    """Serves one :class:`SimEngine`."""

    def __init__(
        self,
        engine: SimEngine,
        codec: TextCodec,
        *,
        fault: WireFault | None = None,
        text_cache: TextCache = "all",
        scale_out: bool = True,
        priorities: bool = False,
        render: Render | None = None,
    ) -> None:
        """Serve ``engine``.

        ``fault`` spoils every request, or the first ``times`` of them. Without ``scale_out``,
        ``/inference/v1/generate`` is refused as vLLM refuses it; without ``priorities``, so is any
        priority but 0. ``render`` answers ``/tokenize`` for conversations.
        """
        self.engine = engine
        self._codec = codec
        self._fault = fault
        self._struck = 0
        self._text_cache = text_cache
        self._scale_out = scale_out
        self._priorities = priorities
        self._render = render
        self._routes: dict[tuple[str, str], Callable[[Request, Send], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/inference/v1/generate"): self._generate,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/responses"): self._responses,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the lifespan, or one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.engine.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.engine.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        route = self._routes.get((scope["method"], scope["path"]))
        try:
            if route is None:
                await send_whole(request, send, 404, error_body(
                    "Not Found", kind="NotFoundError", status=404
                ))  # fmt: skip
            else:
                await route(request, send)
        except (msgspec.DecodeError, OverflowError, ConfigError) as error:
            await send_whole(request, send, 400, error_body(
                str(error), kind="BadRequestError", status=400
            ))  # fmt: skip
        except TurnwireError as error:
            status = 503 if isinstance(error, OverloadedError) else error.status
            kind = "BadRequestError" if isinstance(error, RequestError) else "InternalServerError"
            await send_whole(request, send, status, error_body(
                said(error), kind=kind, status=status, param=error.param
            ))  # fmt: skip
        except ClientDisconnect:
            pass

    # What an engine is asked besides

    async def _health(self, request: Request, send: Send) -> None:
        await send_whole(request, send, 200 if self.engine.ready else 503, b"")

    async def _models(self, request: Request, send: Send) -> None:
        card = {
            "id": self.engine.model,
            "object": "model",
            "created": 0,
            "owned_by": self.engine.name,
            "max_model_len": self.engine.context_length,
        }
        await send_whole(
            request, send, 200, msgspec.json.encode({"object": "list", "data": [card]})
        )

    async def _tokenize(self, request: Request, send: Send) -> None:
        asked = msgspec.json.decode(await request.body(), type=TokenizeBody)
        if asked.messages is not None and self._render is not None:
            ids = self._render(asked.messages, asked.tools)
        elif asked.prompt is not None:
            ids = self._codec.encode(asked.prompt, control=True).tolist()
        else:
            raise ConfigError("The sim renders no conversations.", param="messages")
        reply = {"count": len(ids), "max_model_len": self.engine.context_length, "tokens": ids}
        await send_whole(request, send, 200, msgspec.json.encode(reply))

    # Ids in, ids out

    async def _generate(self, request: Request, send: Send) -> None:
        if not self._scale_out:
            message = (
                "Scale-out endpoints are disabled. Restart vllm serve with "
                "--enable-scale-out to enable them."
            )
            body = error_body(message, kind="PermissionDeniedError", status=403)
            await send_whole(request, send, 403, body)
            return
        asked = msgspec.json.decode(await request.body(), type=GenerateBody)
        sampled = self._request(request, asked, asked.token_ids, asked.sampling_params, NO_LIMIT)
        events = GenerateEvents(sampled.request_id, _own_stops(asked.sampling_params))
        await self._answer(request, send, sampled, events, stream=asked.stream, usage=asked.counted)

    async def _completions(self, request: Request, send: Send) -> None:
        asked = msgspec.json.decode(await request.body(), type=CompletionBody)
        params = msgspec.json.decode(await request.body(), type=SamplingParams)
        prompt = asked.prompt
        if isinstance(prompt, str):
            prompt = self._codec.encode(prompt, control=True).tolist()
        sampled = self._request(request, asked, prompt, params, COMPLETION_TOKENS)
        events = CompletionEvents(
            sampled.request_id,
            _own_stops(params),
            model=self.engine.model,
            codec=self._codec,
            prompt=prompt if asked.return_token_ids else None,
        )
        await self._answer(request, send, sampled, events, stream=asked.stream, usage=asked.counted)

    def _request(
        self,
        request: Request,
        asked: GenerateBody | CompletionBody,
        prompt: list[int],
        params: SamplingParams,
        max_tokens: int,
    ) -> EngineRequest:
        if asked.model not in {None, self.engine.model}:
            message = f"The model `{asked.model}` does not exist."
            raise ConfigError(message, param="model")
        if asked.priority and not self._priorities:
            message = "Got priority but priority scheduling is not enabled."
            raise ConfigError(message, param="priority")
        model_stops = frozenset() if params.ignore_eos else self._codec.stop_token_ids
        return EngineRequest(
            request_id=asked.request_id or uuid.uuid4().hex,
            prompt=native_ids(prompt),
            max_tokens=params.max_tokens or max_tokens,
            stop_token_ids=model_stops | _own_stops(params),
            sampling=params.sampling,
            affinity=request.headers.get("x-session-id", ""),
            last_item=self._last_item(prompt),
            cache_scope=asked.cache_salt or "",
            priority=-asked.priority,  # vLLM: lower is earlier
        )

    def _last_item(self, prompt: list[int]) -> LastItem:
        """Read what a prompt ends with: the text between its last two stop ids."""
        tail = prompt[-LAST_ITEM_TOKENS:]
        stops = [i for i, token in enumerate(tail) if token in self._codec.stop_token_ids]
        if stops:
            tail = tail[stops[-2] + 1 if len(stops) > 1 else 0 : stops[-1]]
        text = self._codec.decode(tail)
        kind = "function_call_output" if "<tool_response>" in text else "message"
        return LastItem(kind, text)

    async def _answer(
        self,
        request: Request,
        send: Send,
        sampled: EngineRequest,
        events: TokenEvents,
        *,
        stream: bool,
        usage: bool,
    ) -> None:
        fault = self._fault_of(request)
        if fault is not None and fault.kind == "status":
            await send_whole(request, send, fault.status, error_body(
                "The sim was asked for this status.", kind="SimulatedError", status=fault.status
            ))  # fmt: skip
            return
        self.engine.check(sampled)
        reply = TokenReply(request, send, sampled, events, usage, fault)
        outputs = self.engine.generate(sampled)
        await until_gone(request, reply.stream(outputs) if stream else reply.whole(outputs))

    # Text, for peers

    async def _chat(self, request: Request, send: Send) -> None:
        asked = msgspec.json.decode(await request.body(), type=ChatBody)
        await self._speak(request, send, asked)

    async def _responses(self, request: Request, send: Send) -> None:
        asked = msgspec.json.decode(await request.body(), type=ResponsesBody)
        await self._speak(request, send, asked)

    async def _speak(self, request: Request, send: Send, asked: ChatBody | ResponsesBody) -> None:
        whole, new = asked.sizes()
        sampled = EngineRequest(
            request_id=uuid.uuid4().hex,
            prompt=native_ids([0] * max(whole, 1)),
            max_tokens=asked.limit or NO_LIMIT,
            stop_token_ids=self._codec.stop_token_ids,
            affinity=request.headers.get("x-session-id", ""),
            last_item=asked.last_item(),
        )
        self.engine.check(sampled)
        act = self.engine.choose(sampled)
        cached = max(whole - new, 0) if self._text_cache == "all" else 0
        outputs = self.engine.play(sampled, act, cached=cached)
        total = len(self._codec.encode_output(act.answer.encoder_input()))
        voice = asked.voice(self.engine.model, act.answer, total)

        async def speak() -> None:
            if asked.stream:
                await begin_events(send)
            count, reason = 0, "stop"
            async with aclosing(outputs):
                async for output in outputs:
                    count += len(output.token_ids)
                    reason = output.finish_reason or reason
                    said = voice.said(count)
                    if asked.stream and said:
                        await send_part(send, said)
            usage = Usage(whole, count, cached)
            if asked.stream:
                await send_part(send, voice.end(reason, usage), last=True)
            else:
                await send_whole(request, send, 200, voice.whole(reason, usage))

        await until_gone(request, speak())

    def _fault_of(self, request: Request) -> WireFault | None:
        asked = request.headers.get("x-sim-fault")
        if asked is not None:
            return WireFault.parse(asked)
        if self._fault is None or self._struck == self._fault.times:
            return None
        self._struck += 1
        return self._fault


def _own_stops(params: SamplingParams) -> frozenset[int]:
    return frozenset(params.stop_token_ids or ())
