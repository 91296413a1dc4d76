"""An engine is asked whether it means the same tokens. Its side is jinja2 and HF ``tokenizers``
behind the sim, or llama.cpp itself."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from engine.running_llamacpp import LlamaCppServer
from engine.running_sim import RunningSim
from oracle import vocabulary
from turnwire import app as turnwire_app
from turnwire._core import Profile
from turnwire.config import Config
from turnwire.engine.base import Sampling
from turnwire.engine.llamacpp_remote import LlamaCppRemote
from turnwire.engine.vllm import VllmEngine
from turnwire.errors import ConfigError, ProfileError
from turnwire.server.agreement import CALL, CONVERSATIONS, check_agreement
from turnwire.server.parts import Parts, prompts_of


def renderer(template: str | None = None):
    """What vLLM does for Qwen3: the chat template, then the tokenizer."""
    model = vocabulary.qwen3()
    if template is not None:
        model = dataclasses.replace(model, template=template)

    def render(messages, tools):
        text = model.compiled.render(messages=messages, tools=tools, add_generation_prompt=True)
        return model.encode_text(text)

    return render


@pytest.fixture
def sim(profile):
    running: list[RunningSim] = []

    def start(**options) -> RunningSim:
        running.append(RunningSim(profile, **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def qwen3_template() -> str:
    return vocabulary.qwen3().template


async def test_one_that_agrees_is_served(sim, profile):
    running = sim(render=renderer())
    engine = VllmEngine(running.url)
    app = turnwire_app(Config(), profile=profile, engine=engine)
    await app.startup()
    agreed = await check_agreement(engine, profile, prompts_of(profile))
    await app.shutdown()
    names = [one.name for one in (*CONVERSATIONS, CALL)]
    assert agreed[1:] == [f"its template, on {name}" for name in names]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # What people do: a system prompt in the template, a marker misspelt, a newline lost.
        (
            "{{- '<|im_start|>assistant\\n' }}",
            "{{- '<|im_start|>assistant\\n\\n' }}",
            r"for a question .* at token \d+, after '.*assistant'.*: the engine has 271",
        ),
        ("<tool_call>\\n", "<tool_call>", "for a tool call and its output"),
        ("<tool_response>\\n", "<tool_response>\\n\\n", "for a tool call and its output"),
    ],
)
async def test_a_planted_wrong_template_is_caught(sim, profile, old, new, words):
    wrong = qwen3_template().replace(old, new)
    assert wrong != qwen3_template()
    engine = VllmEngine(sim(render=renderer(wrong)).url)
    app = turnwire_app(Config(), profile=profile, engine=engine)
    with pytest.raises(ProfileError, match=words) as refused:
        await app.startup()
    assert "Does the engine serve this model with this chat template?" in refused.value.message
    assert not engine.ready
    assert engine.remote._client is None


async def test_one_that_only_warns(sim, profile, caplog):
    wrong = qwen3_template().replace("<tool_response>\\n", "<tool_response>")
    engine = VllmEngine(sim(render=renderer(wrong)).url)
    config = Config(engine={"disagreement": "warn"})
    app = turnwire_app(config, profile=profile, engine=engine)
    with caplog.at_level(logging.WARNING):
        await app.startup()
    await app.shutdown()
    assert "a tool call and its output" in caplog.text
    assert "Served all the same (engine.disagreement)" in caplog.text


async def test_where_both_read_one_file_a_template_only_warns(sim, profile, caplog):
    """What llama.cpp makes of a template does not matter: only its ids must be ours."""
    wrong = qwen3_template().replace("<tool_response>\\n", "<tool_response>")
    engine = VllmEngine(sim(render=renderer(wrong)).url)
    with caplog.at_level(logging.WARNING):
        await Parts(profile, engine, Sampling(), one_file=True).start()
    await engine.close()
    assert "a tool call and its output" in caplog.text
    other = Profile.load(str(vocabulary.smollm2_path()))
    with pytest.raises(ProfileError, match="the engine encodes"):
        await Parts(other, engine, Sampling(), one_file=True).start()


async def test_what_the_engine_does_not_render_is_said_not_guessed(sim, profile, caplog):
    engine = VllmEngine(sim().url)
    await engine.start()
    with caplog.at_level(logging.WARNING):
        agreed = await check_agreement(engine, profile, prompts_of(profile))
    await engine.close()
    assert len(agreed) == 1
    assert "two turns cannot be compared" in caplog.text


async def test_llama_cpps_own_template_agrees_and_a_planted_one_does_not():
    server = LlamaCppServer()
    engine = LlamaCppRemote(server.url)
    right = Profile.load(str(vocabulary.smollm2_path()))
    template = vocabulary.smollm2().template
    wrong = right.with_template(template.replace("named SmolLM", "called SmolLM"))
    try:
        await engine.start()
        assert len(await check_agreement(engine, right, prompts_of(right))) == 1 + len(
            CONVERSATIONS
        )  # its template has no place for calls
        with pytest.raises(ProfileError, match=r"' named SmolLM.*' called SmolLM"):
            await check_agreement(engine, wrong, prompts_of(wrong))
    finally:
        await engine.close()
        server.stop()


async def test_an_engine_elsewhere_needs_a_tokenizer_here():
    app = turnwire_app(Config(engine={"kind": "llamacpp", "url": "http://127.0.0.1:9"}))
    with pytest.raises(ConfigError, match="--tokenizer"):
        await app.startup()
