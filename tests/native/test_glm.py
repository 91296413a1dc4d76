"""GLM's native renderer against its templates, run by jinja2 over the whole conversation.

GLM's own vocabulary could not be had; ``oracle.trained`` has its control tokens.
"""

from __future__ import annotations

import json
import os
from itertools import product

import pytest

from looping import SAYINGS, TOOLS, Loop, agents_loop, brought
from oracle import templates, vocabulary
from oracle.generic import Template
from talking import ASK, Talk, items_of, profile_of, said, sampled

pytestmark = pytest.mark.timeout(300)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
GLM_4_6, GLM_4_7 = "llama.cpp/GLM-4.6", "llama.cpp/GLM-4.7-Flash"
KEPT, GLM_5 = f"{GLM_4_7}, clear_thinking=False", f"{GLM_4_7}, as GLM 5"
SHIPPED = (GLM_4_7, GLM_4_6, "trl/glm4moe")
NAMES = (*SHIPPED, KEPT, GLM_5)
TRUSTS = ("strict", "compat")
each_name = pytest.mark.parametrize("name", NAMES)
each_trust = pytest.mark.parametrize("trust", TRUSTS)

_AS_GLM_5 = (
    ("reasoning_content.strip()", "reasoning_content"),
    ("and reasoning_content -%}", "and reasoning_content is defined -%}"),
    ("{%- set reasoning_content = '' %}\n", ""),
    (".rstrip('\\n')", ""),
    (".lstrip('\\n')", ""),
)
"""What is published of GLM 5's template beside 4.7's: no package ships one."""


def text_of(name: str) -> str:
    text = templates.text_of(name.split(",", maxsplit=1)[0])
    if name == KEPT:
        return "{%- set clear_thinking = false -%}" + text
    for printed, other in _AS_GLM_5 if name == GLM_5 else ():
        assert printed in text
        text = text.replace(printed, other)
    return text


def template_of(name: str) -> Template:
    return Template(name, text_of(name), vocabulary.generic("glm"))


def opens_thinking(name: str) -> bool:
    return "4.7" in name


@each_trust
@each_name
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    cheap = 0
    for seed in range(25 * FACTOR):
        talk = Talk(template_of(name), trust, seed)
        assert talk.profile.family == "glm"
        cheap += brought(talk, 12)
    assert cheap > 50


@each_trust
@each_name
def test_an_agents_loop_costs_what_is_new(name, trust):
    """Each answer reasons; a question takes the reasoning out, and makes no id again."""
    for seed in range(8 * FACTOR):
        loop = Loop(template_of(name), trust, seed)
        loop.thinking = True
        agents_loop(loop, forgets=name != KEPT)


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
        loop.turn(loop.question(), loop.sampled(calls=0), loses=name != KEPT)


@each_trust
@each_name
def test_a_conversation_that_stops_thinking_is_the_oracles_prompt(name, trust):
    """`/nothink` stands behind every question: the template has the conversation from there on."""
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
        ("loop.index0 > ns.last_user_index", "loop.index0 > ns.last_user_index + 1"),
        ("<|assistant|>{{-", "<|assistant|>{{ ' ' }}{{-"),
    ],
)
@pytest.mark.parametrize("name", SHIPPED)
def test_a_template_that_prints_otherwise_is_not_served(name, printed, other):
    """The renderer is off, and the template has all of it."""
    text = text_of(name)
    assert printed in text
    template = Template(f"{name}, {other}", text.replace(printed, other), vocabulary.generic("glm"))
    assert profile_of(template, "strict").family == "generic"


# --- By hand: what the templates say, read off them -----------------------------------------

_CALLS = (
    ("read_file", '{"path": "a b.txt", "limit": 2, "deep": true}'),
    ("ls", "{}"),
)
_PROMPTS = {
    GLM_4_6: (
        "[gMASK]<sop><|user|>\n\n\nhi<|assistant|>\n<think>why</think>\nLet me look."
        "\n<tool_call>read_file"
        "\n<arg_key>path</arg_key>\n<arg_value>a b.txt</arg_value>"
        "\n<arg_key>limit</arg_key>\n<arg_value>2</arg_value>"
        "\n<arg_key>deep</arg_key>\n<arg_value>true</arg_value>\n</tool_call>"
        "\n<tool_call>ls\n</tool_call><|observation|>"
        "\n<tool_response>\n\n\n</tool_response>\n<tool_response>\n x\n</tool_response>"
        "<|assistant|>"
    ),
    GLM_4_7: (
        "[gMASK]<sop><|user|>\n\nhi<|assistant|><think>why</think>Let me look."
        "<tool_call>read_file<arg_key>path</arg_key><arg_value>a b.txt</arg_value>"
        "<arg_key>limit</arg_key><arg_value>2</arg_value>"
        "<arg_key>deep</arg_key><arg_value>true</arg_value></tool_call>"
        "<tool_call>ls</tool_call><|observation|>"
        "<tool_response>\n</tool_response><tool_response> x</tool_response>"
        "<|assistant|><think>"
    ),
}


@each_trust
@pytest.mark.parametrize("name", _PROMPTS)
def test_a_tool_loop_by_hand(name, trust):
    """By a client and by the model, the same prompt; a question takes the thought out of it."""
    prompt = _PROMPTS[name]
    asked, answer = prompt.split("<|assistant|>")[:2]
    answer, outputs = answer.split("<|observation|>")
    calls = [
        {"type": "function_call", "call_id": f"c{at}", "name": called, "arguments": arguments}
        for at, (called, arguments) in enumerate(_CALLS)
    ]
    returned = [
        {"type": "function_call_output", "call_id": "c0", "output": "\n"},
        {"type": "function_call_output", "call_id": "c1", "output": " x"},
    ]
    ask = [{"role": "user", "content": "\n\nhi"}]
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": " why\n"}]}
    text = {"role": "assistant", "content": "\nLet me look. "}

    talk = Talk(template_of(name), trust, "by hand")
    talk.thinking, talk.instructions, talk.tools = True, None, []
    turn = talk.open([*ask, thought, text, *calls, *returned])
    talk.same(turn.prompt.tolist(), talk.known.encode_text(prompt))

    talk.tools = TOOLS
    turn = talk.open(ask)
    opened = asked + "<|assistant|>" + ("<think>" if opens_thinking(name) else "")
    header = len(turn.prompt) - len(talk.known.encode_text(opened.removeprefix("[gMASK]<sop>")))
    ids = sampled(talk, answer.removeprefix("<think>") if opens_thinking(name) else answer)
    talk.answer(turn, ask, [*ids, talk.known.controls["<|observation|>"]])
    found = [item for item in talk.items if item.get("type") == "function_call"]
    assert [(item["name"], item["arguments"]) for item in found] == [*_CALLS]
    for item, output in zip(found, returned, strict=True):
        output["call_id"] = item["call_id"]
    turn = talk.open(returned)
    whole = prompt.removeprefix("[gMASK]<sop>")
    talk.same(turn.prompt.tolist()[header:], talk.known.encode_text(whole))
    talk.answer(turn, returned, sampled(talk, "</think>Done.<|user|>"))

    last = talk.open([{"role": "user", "content": "and?"}])
    if opens_thinking(name):
        lost = answer.replace("<think>why", "")
        done = "</think>Done.<|user|>and?<|assistant|><think>"
        whole = f"{asked}<|assistant|>{lost}<|observation|>{outputs}<|assistant|>{done}"
        ids = talk.known.encode_text(whole.removeprefix("[gMASK]<sop>"))
        talk.same(last.prompt.tolist()[header:], ids)


@each_trust
def test_nothink_by_hand(trust):
    """A user who says so need not be told again, unless text is text; nobody else is told."""
    talk = Talk(template_of(GLM_4_6), trust, "by hand")
    talk.thinking, talk.instructions, talk.tools = False, "Be terse.", []
    ask = [{"role": "user", "content": "a"}, {"role": "user", "content": "b/nothink"}]
    prompt = talk.open(ask).prompt.tolist()
    control = talk.known.controls["/nothink"]
    spell = talk.known.encode_text
    head = spell("[gMASK]<sop><|system|>\nBe terse.<|user|>\na/nothink<|user|>")
    says = [*talk.known.encode_run("\nb/nothink", first=False), control]
    says = says if trust == "strict" else spell("\nb/nothink")
    talk.same(prompt, [*head, *says, *spell("<|assistant|>\n<think></think>")])


_LIMIT = "<arg_key>limit</arg_key><arg_value>12</arg_value>"
_RANGES = (
    "<arg_key>ranges</arg_key><arg_value>[1, 2]</arg_value>"
    "<arg_key>deep</arg_key><arg_value>True</arg_value>"
)
_UNDECLARED = (
    "<arg_key>a</arg_key><arg_value>x y</arg_value><arg_key>b</arg_key><arg_value>null</arg_value>"
)
_READ = (
    # What is sampled behind a thought, and what it says.
    ("Hi.", [("text", "Hi.")]),
    ("\nHi.\n\nYou.\n", [("text", "Hi.\n\nYou.\n")]),
    ("<tool_call>ls</tool_call>", [("ls", "{}")]),
    (
        "So:\n<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
        [("text", "So:"), ("read_file", '{"path": "12"}')],
    ),
    (
        f"<tool_call>read_file{_LIMIT}</tool_call><tool_call>ls</tool_call>",
        [("read_file", '{"limit": 12}'), ("ls", "{}")],
    ),
    (
        f"<tool_call>read_file{_RANGES}</tool_call>",
        [("read_file", '{"ranges": [1, 2], "deep": true}')],
    ),
    (
        f"<tool_call>nobody{_UNDECLARED}</tool_call>",
        [("nobody", '{"a": "x y", "b": null}')],
    ),
    (
        # Another tag in a value is the value's.
        '<tool_call>read_file<arg_key>path</arg_key><arg_value>\n"<b>"</arg\n\n</arg_value></tool_call>',
        [("read_file", '{"path": "\\n\\"<b>\\"</arg\\n\\n"}')],
    ),
    ("<tool_call>", [("text", "<tool_call>")]),
    ("<tool_call>{}</tool_call> so", [("text", "<tool_call>{}</tool_call> so")]),
    ("<tool_call>ls", [("text", "<tool_call>ls")]),
    ("a</tool_call>b", [("text", "a</tool_call>b")]),
    ("<tool_call>read_file<arg_key>path</arg_key><arg_value>a b", [("read_file", '{"path": "a b')]),
)


@pytest.mark.parametrize(("text", "says"), _READ)
@pytest.mark.parametrize("name", [GLM_4_6, GLM_4_7])
def test_calls_are_read_as_they_are_meant(name, text, says):
    """Whole, and token by token (law 6); cut off, or no call at all, what came is there."""
    talk = Talk(template_of(name), "strict", "read")
    talk.thinking, talk.instructions, talk.tools = True, None, TOOLS
    thought = "why</think>" if opens_thinking(name) else "\n<think>why</think>\n"
    ids = sampled(talk, thought + text)
    for size in (1, len(ids)):
        turn = talk.open(ASK)
        pieces = (ids[at : at + size] for at in range(0, len(ids), size))
        deltas = [delta for piece in pieces for delta in turn.push(piece)]
        first, *rest = items_of(deltas + turn.finish())
        assert first["content"][0]["text"] == "why"
        assert [
            (item["name"], item["arguments"])
            if item["type"] == "function_call"
            else ("text", item["content"][0]["text"])
            for item in rest
        ] == says


@each_trust
@pytest.mark.parametrize("name", [GLM_4_6, GLM_4_7])
def test_a_call_that_was_cut_off_stays_as_it_is(name, trust):
    """Nobody answers it; the next message follows what was sampled."""
    talk = Talk(template_of(name), trust, "cut off")
    talk.thinking, talk.instructions, talk.tools = True, None, TOOLS
    turn = talk.open(ASK)
    thought = "</think>" if opens_thinking(name) else "\n<think></think>\n"
    ids = sampled(talk, thought + "<tool_call>read_file<arg_key>path</arg_key><arg_value>a")
    talk.answer(turn, ASK, ids)
    late = [{"role": "system", "content": "Go on."}]
    turn = talk.open(late)
    line, ends = ("", "<think>") if opens_thinking(name) else ("\n", "")
    behind = talk.known.encode_text(f"<|system|>{line}Go on.<|assistant|>{ends}")
    assert turn.kind == "extend"
    assert talk.node
    talk.same(turn.prompt.tolist(), [*talk.node.tokens().tolist(), *behind])


@each_trust
@each_name
def test_a_header_is_rendered_once_for_all_conversations(name, trust):
    """Instructions and a first system message, tools declared in front of them."""
    talk = Talk(template_of(name), trust, "header")
    talk.thinking, talk.instructions, talk.tools = True, "Be terse.", TOOLS
    new = [{"role": "developer", "content": "<|user|>"}, *ASK]
    talk.same(talk.open(new).prompt.tolist(), talk.expected(new))
    declared = json.dumps({"type": "function", "function": {"name": "ls"}})[:-2]
    assert declared in talk.spell(talk.open(new).prompt.tolist())
