"""Kimi K2's native renderer against its template, run by jinja2 over the whole conversation.

Kimi's own vocabulary could not be had; ``oracle.trained`` has its control tokens.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from looping import SAYINGS, TOOLS, Loop, brought
from oracle import ranks, templates, vocabulary
from oracle.generic import Template
from talking import ASK, Talk, items_of, profile_of, said
from turnwire._core import Chains, Profile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
K2 = "llama.cpp/moonshotai-Kimi-K2"
K2_LINE = f"{K2}, with a line behind the id"
NAMES = (K2, K2_LINE)
each_name = pytest.mark.parametrize("name", NAMES)
each_trust = pytest.mark.parametrize("trust", ("strict", "compat"))


def template_of(name: str) -> Template:
    text = templates.text_of(name.split(",", maxsplit=1)[0])
    if name == K2_LINE:  # what the template means by the letters `\n`
        text = text.replace("}}\\n{{", "}}{{ '\\n' }}{{")
    return Template(name, text, vocabulary.generic("kimi"))


@each_trust
@each_name
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    cheap = 0
    for seed in range(30 * FACTOR):
        talk = Talk(template_of(name), trust, seed)
        assert talk.profile.family == "kimi"
        cheap += brought(talk, 12)
    assert cheap > 50


@each_trust
@each_name
def test_an_agents_loop_costs_what_is_new(name, trust):
    """History never changes: every turn goes on where the last one ended."""
    for seed in range(10 * FACTOR):
        loop = Loop(template_of(name), trust, seed)
        loop.thinking = False
        for _ in range(4):
            new = loop.question()
            for _ in range(loop.random.randrange(4)):
                loop.turn(new, loop.sampled(calls=loop.random.choice((1, 1, 2, 3))))
                new = loop.outputs()
            loop.turn(new, loop.sampled(calls=0))


@each_trust
def test_what_is_cut_off_is_closed(trust):
    """At a limit, or by another stop token: history has the end of a message."""
    for ending in ((), ("[EOS]",), ("[EOT]",), ("<|im_end|>",)):
        loop = Loop(template_of(K2), trust, "cut off")
        loop.thinking = False
        ends = [loop.known.controls[end] for end in ending]
        loop.turn(loop.question(), [*said(loop.known, "Beca"), *ends])
        loop.turn(loop.question(), loop.sampled(calls=0))


@each_trust
def test_arguments_that_are_no_object_are_the_templates(trust):
    talk = Talk(template_of(K2), trust, "odd")
    talk.instructions, talk.tools = None, TOOLS
    call = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "not json"}
    new = [*ASK, call, {"type": "function_call_output", "call_id": "c", "output": ""}]
    talk.same(talk.open(new).prompt.tolist(), talk.expected(new))


@pytest.mark.parametrize(
    ("printed", "other"),
    [
        ("## Return of", "# Return of"),
        ("<|im_system|>tool<|im_middle|>", "<|im_system|>tools<|im_middle|>"),
        ("loop.index0|string", "loop.index|string"),
        ("<|tool_call_end|>", "<|tool_call_end|>."),
        ("{%- if message['content'] -%}", "{%- if message['content'] == '' -%}"),
    ],
)
def test_a_template_that_prints_otherwise_is_not_served(printed, other):
    """The renderer is off, and the template has all of it."""
    template = template_of(K2)
    assert printed in template.text
    edited = Template(other, template.text.replace(printed, other), template.vocabulary)
    assert profile_of(edited, "strict").family == "generic"


# --- By hand: what the template says, read off it -------------------------------------------

_CALLS = (("read_file", '{"path": "a b.txt", "limit": 2}'), ("ls", "{}"))
_ANSWER = (
    "Let me look.<|tool_calls_section_begin|>"
    "<|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>"
    '{"path": "a b.txt", "limit": 2}<|tool_call_end|>'
    "<|tool_call_begin|>functions.ls:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|><|im_end|>"
)
_HEADER = "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
_ASKED = "<|im_user|>user<|im_middle|>\n\nhi<|im_end|><|im_assistant|>assistant<|im_middle|>"


def _returned(call_id: str, text: str) -> str:
    return f"<|im_system|>tool<|im_middle|>## Return of {call_id}\\n{text}<|im_end|>"


def sampled(talk: Talk, text: str) -> list[int]:
    """The ids of what a model says: controls as controls."""
    ids: list[int] = []
    for piece in talk.known.split(text):
        control = talk.known.controls.get(piece)
        ids += said(talk.known, piece) if control is None else [control]
    return ids


@each_trust
def test_a_tool_loop_by_hand(trust):
    """By a client and by the model, the same prompt."""
    calls = [
        {"type": "function_call", "call_id": f"c{at}", "name": called, "arguments": arguments}
        for at, (called, arguments) in enumerate(_CALLS)
    ]
    returned = [
        {"type": "function_call_output", "call_id": "c1", "output": "\n"},
        {"type": "function_call_output", "call_id": "c0", "output": " x"},
    ]
    ask = [{"role": "user", "content": "\n\nhi"}]
    talk = Talk(template_of(K2), trust, "by hand")
    talk.instructions, talk.tools = None, []
    turn = talk.open([*ask, {"role": "assistant", "content": "Let me look."}, *calls, *returned])
    opens = "<|im_assistant|>assistant<|im_middle|>"
    ends = _returned("c1", "\n") + _returned("c0", " x") + opens
    talk.same(turn.prompt.tolist(), talk.known.encode_text(_HEADER + _ASKED + _ANSWER + ends))

    talk.tools = TOOLS
    turn = talk.open(ask)
    header = len(turn.prompt) - len(talk.known.encode_text(_ASKED))
    assert talk.spell(turn.prompt.tolist()[:header]).startswith(
        '<|im_system|>tool_declare<|im_middle|>[{"type": "function"'
    )
    talk.answer(turn, ask, sampled(talk, _ANSWER))
    found = [item for item in talk.items if item.get("type") == "function_call"]
    assert [(item["name"], item["arguments"]) for item in found] == [*_CALLS]
    ids = [item["call_id"] for item in found]
    returned = [item | {"call_id": ids[at]} for at, item in zip((1, 0), returned, strict=True)]
    ends = _returned(ids[1], "\n") + _returned(ids[0], " x") + opens
    talk.same(
        talk.open(returned).prompt.tolist()[header:],
        talk.known.encode_text(_ASKED + _ANSWER + ends),
    )


_BEGIN, _ARGUMENT, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_READ = (
    # What is sampled, and what it says.
    ("Hi.\n\nYou.", [("text", "Hi.\n\nYou.")]),
    (f"{_BEGIN}functions.ls:0{_ARGUMENT}{{}}{_END}", [("ls", "{}")]),
    (f"So: {_BEGIN}functions.a.b-c:12{_ARGUMENT} {{}} {_END}", [("text", "So: "), ("a.b-c", "{}")]),
    (
        f'{_BEGIN}functions.ls:0{_ARGUMENT}{{"a": "<|"}}{_END}{_BEGIN}functions.f:1{_ARGUMENT}{{}}{_END}',
        [("ls", '{"a": "<|"}'), ("f", "{}")],
    ),
    (f'{_BEGIN}functions.ls:0{_ARGUMENT}{{"path": "a b', [("ls", '{"path": "a b')]),
    (f"{_BEGIN}functions.ls:0", [("ls", "")]),
)


@pytest.mark.parametrize(("text", "says"), _READ)
def test_calls_are_read_as_they_are_meant(text, says):
    """Whole, and token by token (law 6); cut off, what came is there."""
    talk = Talk(template_of(K2), "strict", "read")
    talk.instructions, talk.tools = None, TOOLS
    ids = sampled(talk, text)
    for size in (1, len(ids)):
        turn = talk.open(ASK)
        pieces = (ids[at : at + size] for at in range(0, len(ids), size))
        deltas = [delta for piece in pieces for delta in turn.push(piece)]
        assert [
            (item["name"], item["arguments"])
            if item["type"] == "function_call"
            else ("text", item["content"][0]["text"])
            for item in items_of(deltas + turn.finish())
        ] == says


# --- As the model's files are -----------------------------------------------------------------

_CONTROLS = ("[BOS]", "[EOS]", "[EOT]", "<|im_system|>", "<|im_user|>", "<|im_assistant|>")
_CONTROLS += ("<|im_middle|>", "<|im_end|>")
_OF_CALLS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _BEGIN, _ARGUMENT, _END)


@pytest.mark.parametrize("length", [100, 30_000])
@each_trust
def test_ranks_and_kimis_code(tmp_path: Path, trust, length):
    """Kimi cuts long texts, counting across the tokens of calls: there the template has it."""
    count = 50_000
    named = {id_: name for id_, name in enumerate((*_CONTROLS, *_OF_CALLS), count)}
    entries = {
        str(id_): {"content": name, "special": name in _CONTROLS} for id_, name in named.items()
    }
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "additional_special_tokens": [*_CONTROLS[2:]],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "added_tokens_decoder": entries,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tiktoken.model").write_text("\n".join(ranks.lines(count)) + "\n")
    (tmp_path / "chat_template.jinja").write_text(templates.text_of(K2))
    profile = Profile.from_hf(str(tmp_path), trust=trust)
    assert profile.family == "kimi"
    arguments = json.dumps({"text": "ab" * (length // 2)})
    items = [
        *ASK,
        {"type": "function_call", "call_id": "c", "name": "ls", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "cd" * (length // 2)},
    ]
    turn = Chains(profile).open(None, json.dumps(items).encode())
    prompt = turn.prompt.tolist()
    called = f"functions.ls:0{_ARGUMENT}{arguments}{_END}"
    text = (
        f"{_HEADER}<|im_user|>user<|im_middle|>x<|im_end|><|im_assistant|>assistant<|im_middle|>"
        f"<|tool_calls_section_begin|>{_BEGIN}{called}<|tool_calls_section_end|><|im_end|>"
        f"{_returned('c', 'cd' * (length // 2))}<|im_assistant|>assistant<|im_middle|>"
    )
    if trust == "compat":
        assert prompt == profile.encode_reference(text, control=True).tolist()
    assert profile.decode(prompt) == text
