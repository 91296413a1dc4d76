"""What every engine keeps of ``engine/base.py``, through real sockets to real processes or the sim.

Adding an engine is one entry in ``SUBJECTS``. Counts are arithmetic, stop ids the vocabulary's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from engine import engine_support
from engine.contract_sglang import SglangContract
from engine.engine_support import listen
from engine.fault_proxy import Fault, FaultProxy
from engine.running_llamacpp import LlamaCppServer
from engine.running_sim import RunningSim
from oracle import vocabulary
from running import wait_for
from turnwire._core import Profile
from turnwire.engine.base import Sampling
from turnwire.engine.llamacpp import LlamaCppEngine
from turnwire.engine.llamacpp_remote import LlamaCppRemote
from turnwire.engine.remote import Waits
from turnwire.engine.sglang import SglangEngine
from turnwire.engine.vllm import COMPLETIONS, GENERATE, VllmEngine
from turnwire.errors import ContextLengthError, EngineError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from turnwire.engine.base import EngineRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = Sampling(temperature=0, seed=1)
NUMBERS = itertools.count()
EOS = 2
SPOKEN = "One, two, three, four, five, six, seven, eight, nine, ten."
SCRIPT = {
    "context_length": 8192,
    "rules": [{"when": {"contains": "story"}, "answer": {"text": "and then " * 400}}],
    "default": {"answer": {"text": SPOKEN}},
}


class Subject:
    """An engine, how to make another one, and how many requests it is sampling."""

    def __init__(
        self,
        make: Callable[[], Any],
        busy: Callable[[Any], Awaitable[int]],
        *,
        route: str | None = None,
        block: int = 16,
    ) -> None:
        self.make = make
        self.block = block
        self.engine = make()
        self._busy = busy
        self.route = route

    async def busy(self) -> int:
        return await self._busy(self.engine)


async def _busy_slots(engine: LlamaCppEngine) -> int:
    async with engine._child.client() as client, client.get("http://engine/slots") as response:
        return sum(slot["is_processing"] for slot in await response.json())


VLLM_URL = os.environ.get("TURNWIRE_TEST_VLLM_URL", "")

SUBJECTS = (
    "llamacpp",
    "llamacpp-remote",
    "vllm-generate",
    "vllm-completions",
    "sglang",
    "sglang-incremental",
    # `make vllm-cpu` sets it.
    *(("vllm-real", "vllm-real-completions") if VLLM_URL else ()),
)


@pytest.fixture(scope="module")
def smollm2() -> Profile:
    return Profile.load(str(vocabulary.smollm2_path()))


@pytest.fixture(scope="module")
def sims(smollm2):
    running: dict[bool, RunningSim] = {}

    def sim(scale_out: bool) -> RunningSim:
        if scale_out not in running:
            running[scale_out] = RunningSim(smollm2, SCRIPT, scale_out=scale_out)
        return running[scale_out]

    yield sim
    for one in running.values():
        one.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SUBJECTS)
async def subject(request, sims, smollm2) -> AsyncIterator[Subject]:
    stop = None
    if request.param == "llamacpp":
        subject = Subject(lambda: LlamaCppEngine(vocabulary.smollm2_path()), _busy_slots)
    elif request.param.startswith("vllm-real"):
        route = COMPLETIONS if request.param.endswith("completions") else GENERATE
        subject = Subject(lambda: VllmEngine(VLLM_URL), _vllm_running, route=route, block=128)
    elif request.param == "llamacpp-remote":
        server = LlamaCppServer()
        subject, stop = Subject(lambda: LlamaCppRemote(server.url), server.busy), server.stop
    elif request.param.startswith("sglang"):
        subject, stop = _sglang(request.param, smollm2)
    else:
        sim = sims(request.param == "vllm-generate")

        async def active(_: Any) -> int:
            return sim.engine.active

        route = GENERATE if request.param == "vllm-generate" else COMPLETIONS
        subject = Subject(lambda: VllmEngine(sim.url), active, route=route)
    await subject.engine.start()
    if request.param == "vllm-real-completions":
        subject.engine.route = COMPLETIONS  # this vLLM serves both
    yield subject
    await subject.engine.close()
    if stop is not None:
        stop()


async def _vllm_running(engine: VllmEngine) -> int:
    """Read vLLM's own metrics."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(engine.remote.url + "/metrics") as reply,
    ):
        text = await reply.text()
    (running,) = re.findall(r"^vllm:num_requests_running\S* (\S+)$", text, re.MULTILINE)
    return int(float(running))


def _sglang(name: str, profile: Profile) -> tuple[Subject, Callable[[], None]]:
    spoken = profile.encode(SPOKEN).tolist()
    contract = SglangContract(spoken, EOS, incremental=name.endswith("incremental"))

    async def active(_: Any) -> int:
        return len(contract.active)

    return Subject(lambda: SglangEngine(contract.url), active), contract.stop


def chat(profile: Profile, *said: str) -> list[int]:
    text = "".join(
        f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{words}<|im_end|>\n"
        for i, words in enumerate(said)
    )
    return profile.encode(text + "<|im_start|>assistant\n", control=True).tolist()


def request(prompt: list[int], **fields) -> EngineRequest:
    """As in a server, no two requests have the same id."""
    return engine_support.request(prompt, request_id=f"resp_{next(NUMBERS)}", **fields)


async def ask(subject: Subject, prompt: list[int], **fields):
    fields.setdefault("max_tokens", 12)
    fields.setdefault("sampling", GREEDY)
    return await listen(subject.engine, request(prompt, **fields))


async def test_it_knows_its_model(subject):
    assert subject.engine.model
    assert subject.engine.context_length == 8192
    if subject.route is not None:
        assert subject.engine.route == subject.route


async def test_an_answer_ends_in_its_stop_id_once(subject, smollm2):
    heard = await ask(subject, chat(smollm2, "What is 2+2?"), max_tokens=64)
    assert heard.finish_reason == "stop"
    (stop,) = [token for token in heard.ids if token in smollm2.stop_token_ids]
    assert heard.ids[-1] == stop
    assert all(output.finish_reason is None for output in heard.outputs[:-1])


async def test_max_tokens_is_exact(subject, smollm2):
    heard = await ask(subject, chat(smollm2, "Count to twenty."), max_tokens=5)
    assert (len(heard.ids), heard.finish_reason) == (5, "length")


async def test_no_tokens_are_sampled_when_none_are_wanted(subject, smollm2):
    heard = await ask(subject, chat(smollm2, "Only warm this up."), max_tokens=0)
    assert (heard.ids, heard.finish_reason) == ([], "length")


async def test_a_stop_id_of_the_request_ends_it(subject, smollm2):
    prompt = chat(smollm2, "Count to ten.")
    free = await ask(subject, prompt)
    stop = free.ids[4]
    stopped = await ask(subject, prompt, stop_token_ids=smollm2.stop_token_ids | {stop})
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


async def test_the_next_turn_finds_the_last_one_cached(subject, smollm2):
    first = chat(smollm2, "The sea is deep and cold. " * 30)
    await ask(subject, first, affinity="sea", cache_scope="me")
    again = await ask(subject, first, affinity="sea", cache_scope="me")
    # Whole blocks, and never the last token.
    assert again.cached_tokens >= (len(first) - 1) // subject.block * subject.block > 0
    other = await ask(subject, first, affinity="sea2", cache_scope="me")
    assert other.cached_tokens is not None


async def test_four_at_once_do_not_mix(subject, smollm2):
    prompts = [chat(smollm2, f"Say the number {number}.") for number in range(4)]
    alone = [(await ask(subject, prompt, max_tokens=6)).ids for prompt in prompts]
    heard = await asyncio.gather(*(ask(subject, prompt, max_tokens=6) for prompt in prompts))
    assert all(one.finish_reason in {"stop", "length"} for one in heard)
    assert [len(one.ids) for one in heard] == [len(ids) for ids in alone]


async def test_who_stops_listening_stops_the_sampling(subject, smollm2):
    asked = request(chat(smollm2, "Tell me a long story."), max_tokens=2000, sampling=GREEDY)
    outputs = subject.engine.generate(asked)
    async with aclosing(outputs):
        await anext(outputs)
        assert await subject.busy() == 1
    left = time.monotonic()
    while await subject.busy():
        assert time.monotonic() - left < 0.5
        await asyncio.sleep(0.005)


async def test_who_is_cancelled_while_it_waits_stops_the_sampling(subject, smollm2):
    task = asyncio.create_task(
        ask(subject, chat(smollm2, "Tell me a long story."), max_tokens=2000)
    )
    began = time.monotonic()
    while not await subject.busy():
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = time.monotonic()
    while await subject.busy():
        assert time.monotonic() - left < 0.5
        await asyncio.sleep(0.005)


async def test_a_prompt_that_fills_the_context_is_refused(subject):
    for length in (8192, 9000):
        with pytest.raises(ContextLengthError) as refused:
            await ask(subject, [100] * length)
        assert refused.value.param == "input"
    assert await subject.busy() == 0


async def test_before_start_and_after_close_it_is_not_ready(subject, smollm2):
    engine = subject.make()
    await engine.close()
    assert not engine.ready
    with pytest.raises(OverloadedError):
        await listen(engine, request(chat(smollm2, "Hello?")))


async def test_nothing_is_left_behind(subject, smollm2):
    before = {task.get_name() for task in asyncio.all_tasks()}
    for max_tokens in (1, 0, 3):
        await ask(subject, chat(smollm2, "Hi."), max_tokens=max_tokens)
    outputs = subject.engine.generate(request(chat(smollm2, "A story."), max_tokens=500))
    async with aclosing(outputs):
        await anext(outputs)
    await asyncio.sleep(0.05)
    assert {task.get_name() for task in asyncio.all_tasks()} <= before
    if hasattr(subject.engine, "remote"):
        assert subject.engine.remote.streams == 0


# --- Faults between adapter and engine --------------------------------------------------------

PATIENCE = Waits(start=5, connect=1, first_token=1, silence=0.6)

REMOTES = ("vllm-generate", "vllm-completions", "sglang")


class Behind:
    """An engine behind a proxy."""

    def __init__(self, engine: Any, proxy: FaultProxy) -> None:
        self.engine = engine
        self.proxy = proxy

    async def hear(self, profile: Profile, fault: Fault, words: str = "Count."):
        self.proxy.fault = fault
        asked = request(chat(profile, words), max_tokens=12, stop_token_ids=profile.stop_token_ids)
        return await listen(self.engine, asked)


@pytest_asyncio.fixture(loop_scope="module", params=REMOTES)
async def behind(request, sims, smollm2) -> AsyncIterator[Behind]:
    if request.param == "sglang":
        contract = SglangContract(smollm2.encode(SPOKEN).tolist(), EOS)
        proxy = await FaultProxy(contract.port).start()
        engine: Any = SglangEngine(proxy.url, waits=PATIENCE)
    else:
        contract = None
        sim = sims(request.param != "vllm-completions")
        proxy = await FaultProxy(sim.port).start()
        engine = VllmEngine(proxy.url, waits=PATIENCE)
    await engine.start()
    yield Behind(engine, proxy)
    await engine.close()
    await wait_for(lambda: proxy.open == 0)
    await wait_for(lambda: not (sim.engine.active if contract is None else contract.active))
    await proxy.stop()
    if contract is not None:
        contract.stop()


@pytest.mark.parametrize("kind", ["delay", "throttle", "one_byte"])
async def test_slow_bytes_change_nothing(behind, smollm2, kind):
    plain = await behind.hear(smollm2, Fault("none"))
    slow = await behind.hear(smollm2, Fault(kind))
    assert slow.ids == plain.ids == smollm2.encode(SPOKEN).tolist()[:12]
    assert slow.finish_reason == plain.finish_reason == "length"


@pytest.mark.parametrize("kind", ["reset", "half_close", "black_hole"])
@pytest.mark.parametrize("after", [0, 60, 700])
async def test_a_broken_connection_is_one_clear_error(behind, smollm2, kind, after):
    name = behind.engine.name
    began = time.monotonic()
    with pytest.raises(EngineError, match=rf"(?i){name}.* (broke|in time|nothing for|ended)"):
        await behind.hear(smollm2, Fault(kind, after))
    assert time.monotonic() - began < PATIENCE.first_token + PATIENCE.silence
    assert behind.engine.remote.streams == 0
    await wait_for(lambda: behind.engine.ready)
    assert (await behind.hear(smollm2, Fault("none"))).finish_reason == "length"


async def test_an_engine_that_is_gone_is_not_ready_and_comes_back(behind, smollm2):
    await behind.proxy.stop()
    with pytest.raises(EngineError, match="cannot be reached"):
        await behind.hear(smollm2, Fault("none"))
    assert not behind.engine.ready
    with pytest.raises(OverloadedError):
        await behind.hear(smollm2, Fault("none"))
    await behind.proxy.start()
    await wait_for(lambda: behind.engine.ready)
    assert (await behind.hear(smollm2, Fault("none"))).finish_reason == "length"


async def test_closing_the_engine_ends_what_is_in_flight(behind, smollm2):
    task = asyncio.create_task(behind.hear(smollm2, Fault("black_hole", 700)))
    await wait_for(lambda: behind.engine.remote.streams == 1)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await behind.engine.close()
    with pytest.raises(EngineError):
        await task
    assert time.monotonic() - began < 0.3
