"""What is particular to SGLang, against its contract as transcribed from its source."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from engine.contract_sglang import SglangContract
from engine.engine_support import listen, request
from engine.test_vllm import Recorded, sse
from turnwire.engine.base import Sampling
from turnwire.engine.served import NEUTRAL
from turnwire.engine.sglang import SglangEngine
from turnwire.errors import ContextLengthError, EngineError, OverloadedError, StartupError

ANSWER = [10, 11, 12, 13, 14, 15]


@pytest.fixture
def sglang():
    running: list[SglangContract] = []

    def start(**options) -> SglangContract:
        running.append(SglangContract(ANSWER, 2, **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


async def attached(contract, **options) -> SglangEngine:
    engine = SglangEngine(contract.url, **options)
    await engine.start()
    return engine


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(("limit", "expected"), [(50, [*ANSWER, 2]), (3, ANSWER[:3]), (1, [10])])
async def test_cumulative_and_incremental_streams_give_the_same(
    sglang, incremental, limit, expected
):
    engine = await attached(sglang(incremental=incremental))
    heard = await listen(engine, request(max_tokens=limit))
    await engine.close()
    assert heard.ids == expected
    assert heard.finish_reason == ("stop" if limit == 50 else "length")


async def test_the_body(sglang):
    contract = sglang()
    engine = await attached(contract, salt=b"s")
    sampling = Sampling(temperature=0.5, top_k=0, min_p=0.1, seed=7)
    await listen(engine, request(sampling=sampling, max_tokens=9, affinity="c", cache_scope="a"))
    await engine.close()
    (body,) = contract.bodies
    assert len(body.pop("cache_salt")) == 64
    assert body == {
        "rid": "resp_1",
        "stream": True,
        "session_id": "c",
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "max_new_tokens": 9,
            "stop_token_ids": [2],
            "temperature": 0.5,
            "top_k": -1,
            "min_p": 0.1,
            "sampling_seed": 7,
        },
    }


@pytest.mark.parametrize(("low_first", "sent"), [(False, [3, -1]), (True, [-3, 1])])
async def test_priorities_have_the_servers_sense(sglang, low_first, sent):
    contract = sglang(priorities=True, low_first=low_first)
    engine = await attached(contract, priorities=True)
    for priority in (3, -1):
        await listen(engine, request(priority=priority))
    await engine.close()
    assert [body["priority"] for body in contract.bodies] == sent


async def test_priorities_that_the_server_ignores_are_refused(sglang):
    with pytest.raises(StartupError, match="--enable-priority-scheduling"):
        await attached(sglang(), priorities=True)


@pytest.mark.parametrize(
    ("preferred", "expected"),
    [
        (None, NEUTRAL),
        ({"temperature": 0.6, "top_k": -1}, Sampling(temperature=0.6).over(NEUTRAL)),
        ('{"top_p": 0.9}', Sampling(top_p=0.9).over(NEUTRAL)),
    ],
)
async def test_it_says_how_it_samples(sglang, preferred, expected):
    engine = await attached(sglang(preferred=preferred))
    await engine.close()
    assert engine.default_sampling == expected


async def test_leaving_aborts_at_once_not_when_the_lost_connection_is_noticed(sglang):
    contract = sglang(per_second=20)
    engine = await attached(contract)
    outputs = engine.generate(request())
    await anext(outputs)
    assert contract.active
    left = time.monotonic()
    await outputs.aclose()
    while contract.active:
        assert time.monotonic() - left < 0.5
        await asyncio.sleep(0.005)
    await engine.close()


def event(ids, completion, *, finish=None, prompt=3) -> dict:
    meta = {
        "finish_reason": finish,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": 0,
    }
    return {"text": "", "output_ids": ids, "meta_info": meta}


STOP = {"type": "stop", "matched": 2}
BUSY = {"type": "abort", "message": "queue is full", "status_code": 503}
ABORT = {"type": "abort", "message": "Abort"}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (sse(event([1], 5)), EngineError, "1 ids after 0, and counts 5"),
        (sse(event([1], 1), event([2], 3)), EngineError, "1 ids after 1, and counts 3"),
        (sse(event([1], 1, prompt=4)), EngineError, "counted 4 prompt tokens of 3"),
        (sse(event([1], 1)), EngineError, "without a finish reason"),
        (sse(event([], 0, finish=BUSY)), OverloadedError, "no capacity"),
        (sse({"error": {"message": "bad", "code": 400}}), EngineError, "refused: bad"),
        (
            sse({"error": {"message": "is longer than the model's context length"}}),
            ContextLengthError,
            "longer than",
        ),
        (web.json_response({"error": "no such field"}, status=400), EngineError, "no such field"),
        (sse(event([1], 1, finish={"type": "magic"})), EngineError, "'magic'"),
    ],
)
async def test_what_goes_wrong_has_a_name(answer, error, words):
    recorded = Recorded()
    recorded.answers = [answer, web.Response()]
    async with recorded.serving() as url:
        engine = SglangEngine(url)
        await _start(engine, recorded)
        with pytest.raises(error, match=words):
            await listen(engine, request())
        await engine.close()


async def test_an_abort_from_elsewhere_is_said():
    recorded = Recorded()
    recorded.answers = [sse(event([1], 1), event([1], 1, finish=ABORT))]
    async with recorded.serving() as url:
        engine = SglangEngine(url)
        await _start(engine, recorded)
        heard = await listen(engine, request())
        await engine.close()
    assert (heard.ids, heard.finish_reason) == ([1], "abort")


async def _start(engine: SglangEngine, recorded: Recorded) -> None:
    recorded.replies["/model_info"] = {}
    await engine.start()
