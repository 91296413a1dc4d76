"""SGLang's ``/generate``, transcribed from its source (0.5.23): what the adapter is tested against.

SGLang itself needs a GPU. Each rule here names the place that it was read from; the model behind it
says one fixed answer.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiohttp import web

LOST_CONNECTION_SECONDS = 2.0
"""``tokenizer_manager.create_abort_task``: a client that has left is noticed only then."""


class SglangContract:
    """Serves on a free port, in a thread of its own."""

    def __init__(
        self,
        answer: list[int],
        eos: int,
        *,
        incremental: bool = False,
        context_length: int = 8192,
        preferred: Any = None,
        priorities: bool = False,
        low_first: bool = False,
        per_second: float = 2000,
    ) -> None:
        self.answer, self.eos = answer, eos
        self.incremental = incremental
        self.context_length = context_length
        self.facts = {
            "enable_priority_scheduling": priorities,
            "schedule_low_priority_values_first": low_first,
        }
        self.preferred = preferred
        self.interval = 1 / per_second
        self.bodies: list[dict[str, Any]] = []
        self.active: dict[str, asyncio.Event] = {}
        self.cached: dict[str, list[list[int]]] = {}
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._serving = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._serving.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/generate", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._serving.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"preferred_sampling_params": self.preferred})

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.facts)

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "m", "object": "model", "max_model_len": self.context_length}
        return web.json_response({"object": "list", "data": [card]})

    async def _abort(self, asked: web.Request) -> web.Response:
        rid = (await asked.json())["rid"]
        if rid in self.active:
            self.active[rid].set()
        return web.Response()

    async def _generate(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        self.bodies.append(body)
        prompt, params = body["input_ids"], body["sampling_params"]
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(asked)
        wrong = self._wrong(prompt, params)
        if wrong:  # http_server.stream_results: errors are events, behind status 200
            error = {"message": wrong, "type": "invalid_request_error", "code": 400}
            await self._event(reply, {"error": error})
        else:
            await self._sample(reply, body["rid"], prompt, params, body.get("cache_salt") or "")
        await reply.write(b"data: [DONE]\n\n")
        return reply

    def _wrong(self, prompt: list[int], params: dict[str, Any]) -> str:
        if len(prompt) >= self.context_length:  # tokenizer_manager._validate_one_request
            return (
                f"The input ({len(prompt)} tokens) is longer than the model's context length "
                f"({self.context_length} tokens)."
            )
        if params.get("top_k", -1) < 1 and params.get("top_k", -1) != -1:  # SamplingParams.verify
            return f"top_k must be -1 (disable) or at least 1, got {params['top_k']}."
        return ""

    async def _sample(
        self,
        reply: web.StreamResponse,
        rid: str,
        prompt: list[int],
        params: dict[str, Any],
        salt: str,
    ) -> None:
        aborted = self.active[rid] = asyncio.Event()
        known = self.cached.setdefault(salt, [])
        cached = max((_common(one, prompt) for one in known), default=0)
        sampled: list[int] = []
        stops = {self.eos, *params.get("stop_token_ids", ())}
        try:
            for token in [*self.answer, self.eos]:
                finish: dict[str, Any] | None = None
                await asyncio.sleep(self.interval)
                sampled.append(token)  # Req.output_ids_through_stop keeps the stop id
                if token in stops:
                    finish = {"type": "stop", "matched": token}
                elif len(sampled) == params["max_new_tokens"]:
                    finish = {"type": "length", "length": len(sampled)}
                ids = [token] if self.incremental else sampled
                if aborted.is_set():  # _handle_abort_req: the last id once more
                    finish = {"type": "abort", "message": "Abort"}
                    ids = sampled[-1:] if self.incremental else sampled
                meta = {
                    "id": rid,
                    "finish_reason": finish,
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(sampled),
                    "cached_tokens": min(cached, len(prompt) - 1),
                }
                await self._event(reply, {"text": None, "output_ids": ids, "meta_info": meta})
                if finish is not None:
                    break
        except (asyncio.CancelledError, ConnectionError):
            try:
                async with asyncio.timeout(LOST_CONNECTION_SECONDS):
                    await aborted.wait()
            except TimeoutError:
                pass
            raise
        finally:
            known.append(prompt + sampled[:-1])
            del self.active[rid]

    async def _event(self, reply: web.StreamResponse, event: dict[str, Any]) -> None:
        await reply.write(b"data: " + web.json_response(event).body + b"\n\n")


def _common(left: list[int], right: list[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
