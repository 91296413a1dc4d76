"""The whole line with a real model: SmolLM2 on llama.cpp."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise

import pytest

from oracle import vocabulary
from running import RunningServer, answer_to, calls_of, connect, wait_for
from turnwire import app as turnwire_app
from turnwire._core import Profile
from turnwire.config import Config
from turnwire.engine.llamacpp import LlamaCppEngine
from turnwire.errors import ProfileError

TOOL = {
    "type": "function",
    "name": "word_count",
    "description": "Count the words of a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "enum": ["harbour.txt", "kitchen.txt"]}},
        "required": ["path"],
    },
}
NAMED = {"type": "function", "name": "word_count"}


@pytest.fixture(scope="module")
def server():
    path = vocabulary.smollm2_path()
    engine = LlamaCppEngine(path, model="sim-qwen3")  # the name that the client asks for
    running = RunningServer(Profile.load(str(path)), {}, instead_of_sim=engine).start()
    yield running
    running.stop()


async def test_an_engine_with_another_tokenizer_is_not_served(profile):
    """Qwen3's vocabulary for SmolLM2's engine: no turn would be right, so none is taken."""
    engine = LlamaCppEngine(vocabulary.smollm2_path())
    app = turnwire_app(Config(), profile=profile, engine=engine)
    with pytest.raises(ProfileError, match=r"the engine encodes .Hello, world!"):
        await app.startup()
    assert engine.pid is None


async def test_every_turn_finds_all_of_its_parent_in_the_engines_cache(server):
    """Five turns; the second is sampled under a grammar, so its tokens are not canonical."""
    request = {"tools": [TOOL], "store": False, "temperature": 0, "max_output_tokens": 24}
    async with connect(server) as socket:
        parent = await socket.response("Say hello.", **request)
        forced = await socket.response(
            "Count the words of harbour.txt.",
            previous_response_id=parent["id"],
            tool_choice=NAMED,
            **{**request, "max_output_tokens": 64},
        )
        assert calls_of(forced)
        for call in calls_of(forced):
            assert call["name"] == "word_count"
            assert json.loads(call["arguments"])["path"] in {"harbour.txt", "kitchen.txt"}
        chain = [parent, forced]
        for _ in range(3):
            last = chain[-1]
            outputs = [answer_to(call, "12") for call in calls_of(last)]
            new = [*outputs, {"role": "user", "content": "And now?"}]
            chain.append(await socket.response(new, previous_response_id=last["id"], **request))
    assert len(chain) == 5
    for earlier, later in pairwise(chain):
        known = earlier["usage"]["input_tokens"] + earlier["usage"]["output_tokens"]
        assert later["usage"]["input_tokens_details"]["cached_tokens"] >= known - 1


async def test_a_warm_up_is_found_in_the_cache(server):
    async with connect(server) as socket:
        warm = await socket.response("The sea is deep and cold. " * 20, generate=False)
        await wait_for(lambda: not server.app._service.turns.warm_ups.running, seconds=30)
        after = await socket.response([], previous_response_id=warm["id"], max_output_tokens=2)
    cached = after["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached >= warm["usage"]["input_tokens"] - 1


async def test_a_response_names_the_sampling_in_effect(server):
    async with connect(server) as socket:
        default = await socket.response("Hi.", max_output_tokens=1)
        asked = await socket.response("Hi.", max_output_tokens=1, temperature=0.3)
    assert (default["temperature"], default["top_p"]) == (0.8, 0.95)
    assert (asked["temperature"], asked["top_p"]) == (0.3, 0.95)


async def test_when_the_child_dies_the_next_turn_works(server):
    async with connect(server) as socket:
        parent = await socket.response("Say hello.", max_output_tokens=4)
        await socket.create("Write a long story.", previous_response_id=parent["id"])
        await socket.until("response.output_text.delta")
        os.kill(server.engine.pid, signal.SIGKILL)
        last = (await socket.events(30))[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert await socket.silent()
        await socket.create("Again.", previous_response_id=parent["id"], max_output_tokens=4)
        again = (await socket.events(30))[-1]
    assert again["type"] in {"response.completed", "response.incomplete"}
    assert server.engine.restarts == 1
