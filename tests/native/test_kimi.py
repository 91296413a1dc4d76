"""Kimi K2's native renderer against its template, run by jinja2 over the whole conversation.

Kimi's own vocabulary could not be had; ``oracle.trained`` has its control tokens.
"""

from __future__ import annotations

import json
import os
import re
from itertools import product
from typing import TYPE_CHECKING

import pytest

from looping import TOOLS, Loop, agents_loop, brought
from oracle import ranks, templates, vocabulary
from oracle.generic import Template
from talking import ASK, Talk, items_of, profile_of, sampled, spelled_otherwise
from turnwire._core import Chains, Profile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
K2 = "llama.cpp/moonshotai-Kimi-K2"
INSTRUCT, THINKING = "llama.cpp/Kimi-K2-Instruct", "llama.cpp/Kimi-K2-Thinking"
KEPT = f"{THINKING}, all kept"
NAMES = (K2, INSTRUCT, THINKING, KEPT)
_BEGIN, _ARGUMENT, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
each_name = pytest.mark.parametrize("name", NAMES)
each_trust = pytest.mark.parametrize("trust", ("strict", "compat"))


def text_of(name: str) -> str:
    """The template; llama.cpp's with ids that are given, as Kimi has published them.

    llama.cpp's count the calls, in a list to which they append. No sandbox of ``transformers`` lets
    a template do so.
    """
    text = templates.text_of(name.split(",", maxsplit=1)[0])
    if name == K2:
        return text
    counted = r"set formatted_id = .*?-%}.*?tool_call_counter.value \+ 1 -%}.*?append.*?-%}"
    text = re.sub(counted, "set formatted_id = tool_call['id'] -%}", text, flags=re.DOTALL)
    queued = r"{%- if tool_response_queue.ids -%}.*?{%- endif -%}"
    text = re.sub(queued, "{%- set tool_call_id = message.tool_call_id -%}", text, flags=re.DOTALL)
    assert "append" not in text
    assert "pop" not in text
    if name != INSTRUCT:
        found = "{%- set ns.last_non_tool_call_assistant_msg = idx -%}"
        assert found in text
        text = text.replace(found, found + "{%- break -%}")
    if name == KEPT:
        blank = "<think></think>{{render_content(message)}}"
        assert blank in text
        text = text.replace(blank, "<think>{{message.reasoning_content}}</think>" + blank[15:])
    return text


def template_of(name: str) -> Template:
    return Template(name, text_of(name), vocabulary.generic("kimi"))


class Model(Loop):
    """A loop whose model numbers its calls as the template does."""

    def sampled(self, *, calls: int) -> list[int]:
        counts = self.template.ways.counted_ids
        number = sum(item.get("type") == "function_call" for item in self.items) if counts else 0
        answer = self.answer_with(calls=calls)
        text = f"<think>{answer['reasoning']}</think>" if self.thinking else ""
        text += answer.get("text", "")
        if calls:
            called = "".join(
                f"{_BEGIN}functions.{call['name']}:{at}{_ARGUMENT}{call['arguments']}{_END}"
                for at, call in enumerate(answer["calls"], number)
            )
            text += f"<|tool_calls_section_begin|>{called}<|tool_calls_section_end|>"
        ids = sampled(self, text)
        return [*spelled_otherwise(self, ids), self.known.controls["<|im_end|>"]]


def thinks(name: str) -> bool:
    return name in (THINKING, KEPT)


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
    """History never changes but for reasoning, which an answer without calls takes out."""
    for seed in range(10 * FACTOR):
        loop = Model(template_of(name), trust, seed)
        loop.thinking = thinks(name)
        agents_loop(loop, forgets=name == THINKING)


@each_trust
@each_name
def test_what_is_cut_off_is_closed(name, trust):
    """Within text or reasoning, at a limit or by a stop token: history has the end of a message."""
    says = ["<think>why</think>Beca", "<think>why"] if thinks(name) else ["Beca"]
    for text, ending in product(says, ((), ("[EOS]",), ("[EOT]",), ("<|im_end|>",))):
        loop = Model(template_of(name), trust, "cut off")
        loop.thinking = thinks(name)
        ends = [loop.known.controls[end] for end in ending]
        loop.turn(loop.question(), [*sampled(loop, text), *ends])
        assert loop.items[-1]["type"] == ("reasoning" if text.endswith("why") else "message")
        loop.turn(loop.question(), loop.sampled(calls=0), loses=name == THINKING)


@each_trust
def test_an_answer_that_goes_on_to_call_is_the_templates(trust):
    """What an answer took out of history is there again once it turns out to be none."""
    talk = Talk(template_of(THINKING), trust, "goes on")
    talk.instructions, talk.tools = None, TOOLS

    def call(at: int) -> dict[str, str]:
        called = {"call_id": f"c{at}", "name": "ls", "arguments": "{}"}
        return {"type": "function_call"} | called

    def output(at: int) -> dict[str, str]:
        return {"type": "function_call_output", "call_id": f"c{at}", "output": "x"}

    part = {"type": "reasoning_text", "text": "why"}
    thought = {"type": "reasoning", "summary": [], "content": [part]}
    text = {"type": "message", "role": "assistant", "content": "So."}
    talk.warm([*ASK, thought, call(0), output(0), text])
    assert "why" not in talk.spell(talk.node.tokens().tolist() if talk.node else [])
    new = [call(1), output(1)]
    talk.same(talk.open(new).prompt.tolist(), talk.expected(new))
    assert "why" in talk.spell(talk.open(new).prompt.tolist())


@pytest.mark.parametrize("name", [INSTRUCT, THINKING])
def test_a_template_that_counts_the_calls_itself_has_no_tools(name):
    """It appends to a list, which no sandbox lets it do: all of it is the template's, as text."""
    text = templates.text_of(name)
    template = Template(f"{name}, as it is", text, vocabulary.generic("kimi"))
    assert not template.ways.tools
    assert profile_of(template, "strict").family == "generic"


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


def test_reasoning_by_hand():
    """A tool loop keeps it, with the calls numbered through; the answer takes all of it out."""
    talk = Talk(template_of(THINKING), "strict", "by hand")
    talk.thinking, talk.instructions, talk.tools = True, None, TOOLS
    section = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|><|im_end|>"
    opens = "<|im_assistant|>assistant<|im_middle|>"
    said_, printed = [], ""
    new = [*ASK]
    for number in range(3):
        turn = talk.open(new)
        if number == 0:
            header = talk.spell(turn.prompt.tolist()).split("<|im_user|>")[0]
            printed = f"<|im_user|>user<|im_middle|>x<|im_end|>{opens}"
        assert talk.spell(turn.prompt.tolist()) == header + printed
        if number == 2:
            talk.answer(turn, new, sampled(talk, "<think>so</think>Done.<|im_end|>"))
            break
        call = f"{_BEGIN}functions.ls:{number}{_ARGUMENT}{{}}{_END}"
        said_.append(f"<think>why {number}</think>" + section.format(call))
        talk.answer(turn, new, sampled(talk, said_[-1]))
        call_id = talk.items[-1]["call_id"]
        new = [{"type": "function_call_output", "call_id": call_id, "output": "y"}]
        returned = f"## Return of functions.ls:{number}\ny"
        printed += f"{said_[-1]}<|im_system|>ls<|im_middle|>{returned}<|im_end|>{opens}"
    for number in range(2):
        printed = printed.replace(f"<think>why {number}</think>", "<think></think>")
    asked = f"<|im_user|>user<|im_middle|>x<|im_end|>{opens}"
    printed += f"<think></think>Done.<|im_end|>{asked}"
    last = talk.open([*ASK])
    assert last.kind == "rewind"
    talk.same(last.prompt.tolist(), talk.known.encode_text(header + printed))


_SECOND = f"{_BEGIN}functions.f:1{_ARGUMENT}{{}}{_END}"
_READ = (
    # What is sampled, and what it says.
    ("Hi.\n\nYou.", [("text", "Hi.\n\nYou.")]),
    (f"{_BEGIN}functions.ls:0{_ARGUMENT}{{}}{_END}", [("ls", "{}")]),
    (f"So: {_BEGIN}functions.a.b-c:12{_ARGUMENT} {{}} {_END}", [("text", "So: "), ("a.b-c", "{}")]),
    (
        f'{_BEGIN}functions.ls:0{_ARGUMENT}{{"a": "<|"}}{_END}{_SECOND}',
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
    named = dict(enumerate((*_CONTROLS, *_OF_CALLS), count))
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
    profile = Profile.load(str(tmp_path), trust=trust)
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
