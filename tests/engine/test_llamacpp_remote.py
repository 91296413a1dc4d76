"""llama.cpp's own server, in a process that is not ours to supervise."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio

from engine.engine_support import listen, request
from engine.running_llamacpp import LlamaCppServer
from engine.test_llamacpp import GREEDY, WEATHER, forced
from oracle import vocabulary
from turnwire._core import Profile
from turnwire.engine.llamacpp_remote import LlamaCppRemote
from turnwire.errors import StartupError, UnsupportedParameterError

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def smollm2() -> Profile:
    return Profile.load(str(vocabulary.smollm2_path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    server = LlamaCppServer()
    engine = LlamaCppRemote(server.url + "/v1")
    await engine.start()
    yield engine
    await engine.close()
    server.stop()


async def test_it_says_what_it_serves(engine):
    assert engine.model == vocabulary.smollm2_path().stem
    assert engine.context_length == 8192
    assert (engine.default_sampling.temperature, engine.default_sampling.top_p) == (0.8, 0.95)


async def test_a_forced_call_is_a_call(engine, smollm2):
    text = "<|im_start|>user\nHow warm is it in Rome?<|im_end|>\n<|im_start|>assistant\n"
    prompt = smollm2.encode(text, control=True).tolist()
    asked = request(prompt, max_tokens=64, sampling=GREEDY, constraint=forced(("weather", WEATHER)))
    heard = await listen(engine, asked)
    said = smollm2.decode(heard.ids).removeprefix("<tool_call>\n").removesuffix("<|im_end|>")
    call = json.loads(said.removesuffix("\n</tool_call>"))
    assert call["name"] == "weather"
    assert set(call["arguments"]) == {"city", "unit"}


async def test_a_schema_that_cannot_be_enforced_is_refused(engine):
    with pytest.raises(UnsupportedParameterError, match="tool"):
        await listen(engine, request(constraint=forced(("f", {"not": {"type": "string"}}))))


async def test_a_split_character_keeps_all_its_ids(engine, smollm2):
    ids = smollm2.encode("😀").tolist()
    assert len(ids) > 1
    text = "<|im_start|>user\nRepeat: 😀 😀 😀 😀<|im_end|>\n<|im_start|>assistant\n😀 😀 😀"
    prompt = smollm2.encode(text, control=True).tolist()
    heard = await listen(engine, request(prompt, max_tokens=12, sampling=GREEDY))
    said = smollm2.decode(heard.ids)
    assert "😀" in said
    assert "\ufffd" not in said
    # At most half a character is missing, where the limit cut one.
    assert len(heard.ids) > 12 - len(ids)


async def test_it_renders_as_its_template_does(engine, smollm2):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    expected = vocabulary.smollm2().tokenizer.encode(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
        "<|im_start|>assistant\n",
        add_special_tokens=False,
    )
    assert await engine.render(messages, ()) == expected.ids


async def test_what_is_no_llama_cpp_does_not_start(profile):
    from engine.running_sim import RunningSim  # noqa: PLC0415

    sim = RunningSim(profile)
    engine = LlamaCppRemote(sim.url)
    with pytest.raises(StartupError, match=r"llama\.cpp does not tell its settings"):
        await engine.start()
    sim.stop()
