"""GLM's native renderer against its templates, run by jinja2 over the whole conversation.

GLM's own vocabulary could not be had; ``oracle.trained`` has its control tokens.
"""

from __future__ import annotations

from itertools import product

import pytest

from looping import SAYINGS, TOOLS, Loop, brought
from oracle import templates, vocabulary
from oracle.generic import Template
from talking import ASK, Talk, profile_of, said

pytestmark = pytest.mark.timeout(300)

NAMES = ("llama.cpp/GLM-4.7-Flash", "llama.cpp/GLM-4.6", "trl/glm4moe")
TRUSTS = ("strict", "compat")
each_name = pytest.mark.parametrize("name", NAMES)
each_trust = pytest.mark.parametrize("trust", TRUSTS)


def template_of(name: str) -> Template:
    return Template(name, templates.text_of(name), vocabulary.generic("glm"))


def opens_thinking(name: str) -> bool:
    return "4.7" in name


@each_trust
@each_name
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    cheap = 0
    for seed in range(40):
        talk = Talk(template_of(name), trust, seed)
        assert talk.profile.family == "glm"
        cheap += brought(talk, 12)
    assert cheap > 100


@each_trust
@each_name
def test_an_agents_loop_costs_what_is_new(name, trust):
    """Each answer reasons; a question takes the reasoning out, and makes no id again."""
    for seed in range(12):
        loop = Loop(template_of(name), trust, seed)
        loop.thinking = True
        for number in range(4):
            new, loses = loop.question(), number > 0
            for _ in range(loop.random.randrange(4)):
                loop.turn(new, loop.sampled(calls=loop.random.choice((1, 1, 2, 3))), loses=loses)
                new, loses = loop.outputs(), False
            loop.turn(new, loop.sampled(calls=0), loses=loses)


@each_trust
@each_name
def test_a_model_that_may_not_think_is_told_so_and_costs_as_little(name, trust):
    line = "" if opens_thinking(name) else "\n"
    loop = Loop(template_of(name), trust, "unthinking")
    loop.thinking = False
    stop = min(loop.profile.stop_token_ids)
    for text in SAYINGS:
        loop.turn(loop.question(), [*said(loop.known, line + text), stop])
        assert loop.items[-1]["content"][0]["text"] == text
    spelled = [{"type": "message", "role": "user", "content": "why? /nothink"}]
    loop.turn(spelled, [stop])


@each_trust
@each_name
def test_what_is_cut_off_is_closed_as_the_template_closes_it(name, trust):
    """Within reasoning or text, at a limit or by a stop token; then what a question makes of it."""
    for spoken, ending in product((False, True), ((), ("<|endoftext|>",), ("<|user|>",))):
        loop = Loop(template_of(name), trust, "cut off")
        loop.thinking = True
        thought = "" if opens_thinking(name) else "\n<think>"
        text = f"{thought}why</think>Beca" if spoken else f"{thought}why"
        if not opens_thinking(name):
            text = text.replace("</think>", "</think>\n")
        ids = loop.profile.encode(text, control=True).tolist()
        ends = [loop.known.controls[end] for end in ending]
        loop.turn(loop.question(), [*ids, *ends])
        assert loop.items[-1]["type"] == ("message" if spoken else "reasoning")
        late = [{"type": "message", "role": "system", "content": "Go on."}]
        loop.turn(late, loop.sampled(calls=0))
        loop.turn(loop.question(), loop.sampled(calls=0), loses=True)


@each_trust
@each_name
def test_a_conversation_that_stops_thinking_is_the_oracles_prompt(name, trust):
    """`/nothink` stands behind every question: the template has such a conversation from there on."""
    loop = Loop(template_of(name), trust, "toggled")
    for thinking in (True, False, True):
        loop.thinking = thinking
        new = loop.question()
        loop.same(loop.open(new).prompt.tolist(), loop.expected(new))
        loop.warm(new)


@each_trust
@each_name
def test_arguments_that_are_no_object_are_left_to_the_template(name, trust):
    talk = Talk(template_of(name), trust, "odd")
    talk.instructions, talk.tools = None, TOOLS
    call = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "not json"}
    output = {"type": "function_call_output", "call_id": "c", "output": ""}
    new = [*ASK, call, output]
    assert talk.expected(new) is None
    talk.refused(new)


@pytest.mark.parametrize(
    ("printed", "other"),
    [
        ("</tool_response>", "</tool_result>"),
        ("'<|observation|>'", "'<|observation|> '"),
        ("content.strip()", "content"),
        ("reasoning_content.strip()", "reasoning_content"),
        ("loop.index0 > ns.last_user_index", "loop.index0 >= 0"),
        ("<|assistant|>{{-", "<|assistant|>{{ ' ' }}{{-"),
    ],
)
@each_name
def test_a_template_that_prints_otherwise_is_not_served(name, printed, other):
    """The renderer is off, and the template has all of it."""
    text = templates.text_of(name)
    assert printed in text
    template = Template(f"{name}, {other}", text.replace(printed, other), vocabulary.generic("glm"))
    assert profile_of(template, "strict").family == "generic"
