"""The generic path: every chat template that could be had, against jinja2 and HF ``tokenizers``.

A conversation grows through the wall, by what a client brings or by what a model samples, and every
prompt on the way must be what ``oracle.generic`` makes of the whole. What the template refuses must
be refused. The conversations are random by the template's name: each run sees the same.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from oracle import generic, templates, trained, vocabulary
from oracle.generic import RefusedError, Template
from talking import ASK, Talk, base, common, profile_of, said
from turnwire.errors import ProfileError

if TYPE_CHECKING:
    from oracle.naive import Trust

pytestmark = pytest.mark.timeout(300)

STEPS = 12
TRUSTS: tuple[Trust, ...] = ("strict", "compat")
each_template = pytest.mark.parametrize("name", templates.names())
each_trust = pytest.mark.parametrize("trust", TRUSTS)


@each_trust
@each_template
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    talk = Talk(templates.template(name), trust, "brought")
    committed: list[int] = []
    while talk.opens < 2 * STEPS:
        step = talk.step()
        prompts = [talk.expected(step.items, generate=generate) for generate in (False, True)]
        for generate, expected in zip((False, True), prompts, strict=True):
            if expected is None:
                talk.refused(step.items, generate=generate)
                continue
            turn = talk.open(step.items, generate=generate)
            talk.same(turn.prompt.tolist(), expected)
            # A native renderer leaves a conversation to the template in one full render.
            through = talk.profile.family == "generic" and trust == "strict"
            if through and goes_on(talk, committed, expected):
                assert turn.rendered <= len(expected) - len(committed) // 2
            turn.abort()
        if None not in prompts:
            talk.warm(step.items)
            committed = talk.node.tokens().tolist()


def goes_on(talk: Talk, committed: list[int], prompt: list[int]) -> bool:
    """Whether a prompt goes on where one ended, behind a control and at most a newline.

    Under compat trust the control may be a client's; then this says nothing about the template.
    """
    closed = bool(talk.known.skeleton(committed[-2:]))
    return closed and common(committed, prompt) == len(committed)


STEERING = ("</think>", "a</think>b", "<think>a", "/think /no_think", "<tool_response>a")


@each_trust
@each_template
def test_a_text_that_templates_look_into_is_the_oracles_prompt(name, trust):
    """Under strict trust it must not steer; under compat it must steer as in jinja2."""
    talk = Talk(templates.template(name), trust, "steered")
    talk.instructions, talk.tools = None, []
    for text in STEERING:
        answer = {"role": "assistant", "content": [{"type": "output_text", "text": text}]}
        new = [{"role": "user", "content": text}, answer, *ASK]
        if talk.expected(new) is None:
            talk.refused(new)
        else:
            talk.same(talk.open(new).prompt.tolist(), talk.expected(new))


SAYINGS = (
    "Hello there.",
    "Two\nlines, and \u00e9 \u4e2d\u6587 \U0001f642",
    "def f(x):\n    return x + 1",
    "1. one\n\n2. two: 12 345",
    "I'll say it's {\"a\": 1}",
)


@each_trust
@each_template
def test_what_is_sampled_reads_as_the_oracle_writes_it(name, trust):
    """Law 5 around sampled spans: the same text, and the same controls in the same order."""
    talk = Talk(templates.template(name), trust, "sampled")
    calm = talk.grow(plain=True)
    for turns in range(STEPS):
        steps = [calm.user() if turns % 3 else calm.any() for _ in range(8)] + [calm.user()]
        new = next((s.items for s in steps if talk.expected(s.items) is not None), None)
        if new is None:
            assert turns, "the template takes no such conversation"
            return
        turn = talk.open(new)
        talk.reads_as(turn.prompt.tolist(), talk.expected(new))
        ids = said(talk.known, talk.random.choice(SAYINGS))
        talk.answer(turn, new, talk.saying(ids))


FITTING = {
    "qwen3": "llama.cpp/Qwen3.5-4B",
    "gpt-oss": "llama.cpp/openai-gpt-oss-120b",
    "deepseek-v4": "llama.cpp/deepseek-ai-DeepSeek-V4",
    "mistral-v0.1": "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407",
    "gemma3": "trl/gemma3",
    "llama3.1": "llama.cpp/meta-llama-Llama-3.1-8B-Instruct",
    "tekken": "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506",
}
RUNS = ("a", " ", "\n", "\u4e2d", "\u2581", "ab ")


@pytest.mark.parametrize(
    ("name", "run", "trust"),
    [
        (name, run, trust)
        for trust, shift in zip(TRUSTS, (0, 3), strict=True)
        for (name, run) in zip(FITTING, cycle(RUNS[shift:] + RUNS[:shift]), strict=False)
    ],
)
def test_a_long_run_is_encoded_as_the_oracle_encodes_it(name, run, trust):
    talk = Talk(templates.template(FITTING[name]), trust, "long")
    talk.instructions, talk.tools = None, []
    long = run * (400_000 // len(run))
    new = [{"type": "message", "role": "user", "content": f"x{long}y"}]
    # Not by openai-harmony, which takes minutes for such a run: a user's message is the template's.
    thinking = None if talk.thinking else False
    expected = generic.encode(talk.template, new, thinking=thinking, trust=trust)
    talk.same(talk.open(new).prompt.tolist(), expected)


@each_trust
@pytest.mark.parametrize("name", templates.KNOWN_DIFFERENCES)
def test_what_is_known_to_differ_differs(name, trust):
    """Such a template's tools and calls are left out above; not any longer once they are right."""
    talk = Talk(templates.template(name), trust, "differs")
    talk.instructions = None
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    talk.tools = [{"type": "function", "name": "f", "description": "d", "parameters": parameters}]
    assert talk.open(ASK).prompt.tolist() != talk.expected(ASK)


@each_trust
@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "{% for message in messages %}{{ message.role }}{% endfor %}",
        "{{ raise_exception('never') }}",
        "{% for message in messages %}{{ 'x' if message.content else '' }}{% endfor %}",
    ],
)
def test_a_template_that_prints_no_users_message_is_refused(text, trust):
    template = Template("mute", text, vocabulary.generic("llama3.1"))
    with pytest.raises(RefusedError):
        generic.encode(template, ASK, trust=trust)
    with pytest.raises(ProfileError):
        base("llama3.1").with_template(text, trust=trust)


@pytest.mark.parametrize("name", templates.REFUSED)
@each_trust
def test_a_template_that_takes_no_conversation_is_refused(name, trust):
    template = templates.template(name)
    with pytest.raises(RefusedError):
        generic.encode(template, ASK)
    with pytest.raises(ProfileError):
        profile_of(template, trust)


def test_every_vocabulary_is_used():
    assert set(FITTING) == set(vocabulary.GENERIC)
    used = {templates.vocabulary_of(name) for name in templates.names()}
    assert set(FITTING) <= used
    # The others are made of these, or trained: no real one could be had.
    assert used - set(FITTING) <= {*vocabulary.RENAMED, *trained.NAMES}
