"""The whole line with the vLLM adapter, against the sim behind vLLM's dialect."""

from __future__ import annotations

import pytest

from engine.running_sim import RunningSim
from oracle import vocabulary
from running import RunningServer, connect, text_of, wait_for
from turnwire import app as turnwire_app
from turnwire.config import Config
from turnwire.engine.remote import Waits
from turnwire.engine.sim.fault import WireFault
from turnwire.engine.vllm import VllmEngine
from turnwire.errors import ConfigError
from turnwire.server.parts import build

WAITS = Waits(start=10, connect=1, first_token=1, silence=0.5)


@pytest.fixture
def line(profile):
    """Call it with a fault: a sim that has it once, and a server in front of it."""
    running: list = []

    def start(fault: WireFault | None = None, script: dict | None = None):
        sim = RunningSim(profile, script, fault=fault)
        engine = VllmEngine(sim.url, waits=WAITS)
        server = RunningServer(profile, {}, instead_of_sim=engine, model={"name": "sim-qwen3"})
        running.extend([sim, server.start()])
        return sim, server

    yield start
    for one in reversed(running):
        one.stop()


async def test_turns_extend_each_other_in_the_engines_cache(line):
    sim, server = line()
    async with connect(server) as socket:
        first = await socket.response("Hello. " * 50)
        second = await socket.response("More.", previous_response_id=first["id"])
    assert "sim" in text_of(second)
    known = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached == (known - 1) // 16 * 16  # whole blocks; the last sampled id has no KV
    before, after = sim.engine.recordings
    assert after.prompt[: len(before.prompt)] == before.prompt
    assert after.prompt[len(before.prompt) :][: len(before.output)] == before.output


@pytest.mark.parametrize(
    "fault",
    [
        WireFault(kind="reset", after_tokens=3, times=1),
        WireFault(kind="half_chunk", after_tokens=3, times=1),
        WireFault(kind="cut", times=1),
        WireFault(kind="stall", after_tokens=3, times=1),
        WireFault(kind="stall", times=1),
        WireFault(kind="no_ids", after_tokens=3, times=1),
        WireFault(kind="unknown_id", after_tokens=3, times=1),
        WireFault(kind="wrong_count", times=1),
        WireFault(kind="status", status=500, times=1),
        WireFault(kind="status", status=400, times=1),
        WireFault(kind="status", status=503, times=1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.after_tokens}-{fault.status}",
)
async def test_a_faulty_turn_ends_once_and_the_next_one_works(line, fault):
    sim, server = line(fault)
    async with connect(server) as socket:
        events = await socket.turn("Hello.")
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert await socket.silent()
        assert text_of(await socket.response("Again."))
    assert server.engine.remote.streams == 0
    await wait_for(lambda: sim.engine.active == 0)
    assert server.app._service.turns.in_progress == 0


async def test_slow_tokens_are_no_fault(line):
    _, server = line(WireFault(kind="slow", ms=20))
    async with connect(server) as socket:
        assert text_of(await socket.response("Hello."))


async def test_a_cancelled_turn_stops_the_engine(line):
    script = {"tokens_per_second": 20, "default": {"answer": {"text": "word " * 500}}}
    sim, server = line(script=script)
    async with connect(server) as socket:
        await socket.create("Speak.")
        await socket.until("response.output_text.delta")
        assert sim.engine.active == 1
    await wait_for(lambda: sim.engine.active == 0, seconds=0.5)
    assert sim.engine.aborted == 1


async def test_a_warm_up_yields_to_turns(line, monkeypatch):
    sim, server = line()
    asked: list[tuple[int, int]] = []
    generate = VllmEngine.generate

    def noting(self, request):
        asked.append((request.max_tokens, request.priority))
        return generate(self, request)

    monkeypatch.setattr(VllmEngine, "generate", noting)
    async with connect(server) as socket:
        warm = await socket.response("Warm. " * 30, generate=False)
        await wait_for(lambda: sim.engine.requests == 1 and not sim.engine.active)
        after = await socket.response("Hello.", previous_response_id=warm["id"])
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > 0
    (warm_up, turn) = asked
    assert warm_up[0] == 0 < turn[0]
    assert warm_up[1] < turn[1]


async def test_the_configuration_names_the_engine(profile):
    sim = RunningSim(profile)
    try:
        url = {"kind": "vllm", "url": sim.url + "/v1/"}
        with pytest.raises(ConfigError, match=r"Set model\.tokenizer"):
            build(Config(engine=url))
        config = Config(engine=url, model={"tokenizer": vocabulary.qwen3_path()})
        app = turnwire_app(config)
        service = await app.startup()
        assert (service.engine.name, service.admission.model) == ("vllm", "sim-model")
        await app.shutdown()
    finally:
        sim.stop()


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"kind": "vllm"}, "engine.url"),
        ({"kind": "sglang"}, "engine.url"),
        ({"kind": "sim", "url": "http://x"}, "speaks vLLM's dialect"),
    ],
)
def test_a_kind_and_its_url_belong_together(engine, words):
    with pytest.raises(ConfigError, match=words):
        Config(engine=engine).check()
