"""``history = retain``: reasoning stays, by each template's own switch.

The switches are written down here by hand, from the templates' texts; what is printed is jinja2's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from looping import Loop, agents_loop
from oracle import templates, vocabulary
from oracle.generic import Template
from talking import Talk, base, profile_of
from turnwire.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.timeout(300)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
SWITCHES: Mapping[str, tuple[str, bool]] = {
    "trl/qwen3_6": ("preserve_thinking", True),
    "trl/qwen3_8": ("preserve_thinking", True),
    "llama.cpp/GLM-4.7-Flash": ("clear_thinking", False),
    "llama.cpp/deepseek-ai-DeepSeek-V4": ("drop_thinking", False),
    "llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731": ("drop_thinking", False),
    "trl/nemotron_3_nano": ("truncate_history_thinking", False),
    "llama.cpp/LFM2.5-8B-A1B": ("preserve_thinking", True),
}
NATIVE = tuple(SWITCHES)[:5]
DROPPING = ("trl/qwen3_6", "llama.cpp/GLM-4.7-Flash", "llama.cpp/deepseek-ai-DeepSeek-V4")
WITHOUT = (
    "trl/qwen3",
    "llama.cpp/GLM-4.6",
    "llama.cpp/deepseek-ai-DeepSeek-V3.2",
    "llama.cpp/openai-gpt-oss-120b",
    "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
)
each_trust = pytest.mark.parametrize("trust", ["strict", "compat"])


def template_of(name: str, *, retains: bool = True) -> Template:
    known = "glm" if "GLM" in name else templates.vocabulary_of(name)
    switches: tuple[tuple[str, Any], ...] = (SWITCHES[name],) if retains else ()
    return Template(name, templates.text_of(name), vocabulary.generic(known), switches)


def told(name: str) -> dict[str, Any]:
    """What makes a model think that does not by itself."""
    thinks = "DeepSeek" not in name
    return {} if thinks else {"effort": "medium", "told": {"thinking": True}}


@each_trust
@pytest.mark.parametrize("name", SWITCHES)
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    template = template_of(name)
    assert (profile_of(template, trust).family != "generic") == (name in NATIVE)
    for seed in range(6 * FACTOR):
        talk = Talk(template, trust, seed, **told(name))
        talk.thinking = True
        for _ in range(6):
            step = talk.step()
            for generate in (True, False):
                if (expected := talk.expected(step.items, generate=generate)) is not None:
                    turn = talk.open(step.items, generate=generate)
                    talk.same(turn.prompt.tolist(), expected)
                    turn.abort()
            if talk.expected(step.items, generate=False) is not None:
                talk.warm(step.items)


@each_trust
@pytest.mark.parametrize("name", NATIVE)
def test_no_question_rewrites_the_prompt(name, trust):
    """Each answer reasons, and every turn extends the last one."""
    for seed in range(5 * FACTOR):
        loop = Loop(template_of(name), trust, seed, **told(name))
        loop.thinking = True
        agents_loop(loop, forgets=False)


@pytest.mark.parametrize("name", DROPPING)
def test_left_to_itself_the_template_rewrites_it(name):
    loop = Loop(template_of(name, retains=False), "strict", 1, **told(name))
    loop.thinking, loop.tools = True, []
    for number in range(2):
        loop.turn(loop.question(), loop.sampled(calls=0), loses=number > 0)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_template_without_a_switch_is_refused(name):
    profile = base("glm" if "GLM" in name else templates.vocabulary_of(name))
    with pytest.raises(ProfileError, match="history is 'retain'"):
        profile.with_template(templates.text_of(name), history="retain")
    with pytest.raises(ProfileError, match="'template' or 'retain', not 'all'"):
        profile.with_template(templates.text_of(name), history="all")  # type: ignore[arg-type]


def test_where_nothing_is_taken_out_there_is_nothing_to_switch():
    assert base("qwen3").with_template(templates.text_of("trl/qwen2_5"), history="retain")


def test_profiles_that_keep_otherwise_are_told_apart():
    text = templates.text_of("trl/qwen3_6")
    plain, retaining = (
        base("qwen3").with_template(text, history=history) for history in ("template", "retain")
    )
    assert plain.fingerprint != retaining.fingerprint
