"""``reasoning.effort`` and ``text.verbosity``: what templates are told for them, and print then.

What a template should be told is written down here by hand, from the templates' own texts; what it
prints is jinja2's.
"""

from __future__ import annotations

from typing import Any

import pytest

from oracle import generic, templates
from oracle.generic import Template
from talking import ASK, NOW, base, profile_of, raw
from turnwire import _core
from turnwire.errors import InvalidValueError, UnsupportedParameterError

Told = dict[str, Any]

EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
TOOLS = [{"type": "function", "name": "ls", "description": "d", "parameters": {"type": "object"}}]


def all_told(thinking: bool | None = None, **words: str) -> dict[str | None, Told]:
    """For every effort but ``none``: whether to think, and the word for it."""
    return {effort: {"thinking": thinking, "effort": words.get(effort)} for effort in EFFORTS[2:]}


OFF: Told = {"thinking": False}
UNTOLD: Told = {}
TOLD: dict[str, dict[str | None, Told]] = {
    # Off and on; on by default.
    "trl/qwen3": {None: UNTOLD, "none": OFF} | all_told(),
    "llama.cpp/Qwen3.5-4B": {None: UNTOLD, "none": OFF} | all_told(),
    "llama.cpp/GLM-4.6": {None: UNTOLD, "none": OFF} | all_told(),
    # Off by default.
    "trl/qwen3_5_nothink": {None: UNTOLD, "none": OFF} | all_told(thinking=True),
    "llama.cpp/deepseek-ai-DeepSeek-V3.1": {None: UNTOLD, "none": OFF} | all_told(thinking=True),
    # Three words, the others refused.
    "trl/qwen3_8": {None: UNTOLD, "none": OFF}
    | all_told(minimal="low", low="low", medium="medium", high="xhigh", xhigh="xhigh", max="xhigh"),
    # Three words, any printed; it cannot be off.
    "llama.cpp/openai-gpt-oss-120b": {None: UNTOLD}
    | all_told(minimal="low", low="low", medium="medium", high="high", xhigh="high", max="high"),
    # No knob at all.
    "llama.cpp/Qwen-Qwen2.5-7B-Instruct": {None: UNTOLD, "none": UNTOLD} | all_told(),
}

each_effort = pytest.mark.parametrize(
    ("name", "effort"), [(name, effort) for name, told in TOLD.items() for effort in told]
)


def prompt(chains: _core.Chains, parent: _core.Node | None, effort: str | None) -> _core.Turn:
    return chains.open(parent, raw(ASK), tools=raw(TOOLS), effort=effort, now=NOW)


@each_effort
def test_the_template_is_told_the_effort(name, effort):
    template = templates.template(name)
    chains = _core.Chains(profile_of(template, "strict"))
    expected = generic.encode(template, ASK, None, TOOLS, trust="strict", **TOLD[name][effort])
    assert prompt(chains, None, effort).prompt.tolist() == expected


@each_effort
def test_another_effort_reads_the_same_conversation_anew(name, effort):
    """The header may say how much to think; so may what asks for an answer."""
    template = templates.template(name)
    chains = _core.Chains(profile_of(template, "strict"))
    turn = chains.open(None, raw(ASK), tools=raw(TOOLS), now=NOW, generate=False)
    turn.finish()
    node = turn.commit()
    items = [*ASK, *ASK]
    expected = generic.encode(template, items, None, TOOLS, trust="strict", **TOLD[name][effort])
    assert prompt(chains, node, effort).prompt.tolist() == expected
    back = generic.encode(template, items, None, TOOLS, trust="strict")
    assert prompt(chains, node, None).prompt.tolist() == back


def test_a_model_that_always_reasons_cannot_be_asked_not_to():
    name = "llama.cpp/openai-gpt-oss-120b"
    chains = _core.Chains(profile_of(templates.template(name), "strict"))
    with pytest.raises(UnsupportedParameterError) as error:
        prompt(chains, None, "none")
    assert error.value.param == "reasoning.effort"


def test_a_word_that_is_no_effort_is_refused():
    with pytest.raises(InvalidValueError) as error:
        prompt(_core.Chains(base("qwen3")), None, "probe")
    assert error.value.param == "reasoning.effort"


# --- Verbosity: no template that could be had has a knob for it, so two are given one.

SAYS_VERBOSITY = (
    "{% if verbosity is defined %}<|im_start|>system\nSay: {{ verbosity }}<|im_end|>\n{% endif %}"
)
ASKS_FOR_VERBOSITY = "{% if verbosity is defined %}{{ verbosity }}{% endif %}"


def with_knob(place: str, verbosity: str | None) -> Template:
    shipped = templates.template("trl/qwen2_5")
    text = SAYS_VERBOSITY + shipped.text if place == "header" else shipped.text + ASKS_FOR_VERBOSITY
    switches = () if verbosity is None else (("verbosity", verbosity),)
    return Template(f"qwen2_5, verbosity in the {place}", text, shipped.vocabulary, switches)


@pytest.mark.parametrize("place", ["header", "prompt"])
def test_verbosity_is_the_templates_and_pinned_in_the_chain(place):
    profile = profile_of(with_knob(place, None), "strict")
    assert profile.knows_verbosity
    assert profile.family == "chatml"
    chains, node, items = _core.Chains(profile), None, []
    for verbosity in (None, "low", "low", "high", None):
        items += ASK
        expected = generic.encode(with_knob(place, verbosity), items, None, TOOLS, trust="strict")
        turn = chains.open(node, raw(ASK), tools=raw(TOOLS), verbosity=verbosity, now=NOW)
        assert turn.prompt.tolist() == expected
        turn.abort()
        warm = chains.open(
            node, raw(ASK), tools=raw(TOOLS), verbosity=verbosity, now=NOW, generate=False
        )
        node = warm.commit()


def test_a_template_without_the_knob_is_not_told():
    template = templates.template("trl/qwen2_5")
    profile = profile_of(template, "strict")
    assert not profile.knows_verbosity
    turn = _core.Chains(profile).open(None, raw(ASK), verbosity="low", now=NOW)
    assert turn.prompt.tolist() == generic.encode(template, ASK, trust="strict")
