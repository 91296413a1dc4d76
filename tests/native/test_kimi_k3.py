"""Kimi K3's native renderer against its template, run by jinja2 over the whole conversation.

Kimi's own vocabulary could not be had; ``oracle.trained`` has its control tokens.
"""

from __future__ import annotations

import json
import os
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from looping import TOOLS, Loop, agents_loop, brought
from oracle import templates
from oracle.generic import Template
from talking import ASK, Talk, items_of, outputs_for, profile_of, sampled, spelled_otherwise
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(300)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
NAME = "llama.cpp/Kimi-K3"
each_trust = pytest.mark.parametrize("trust", ("strict", "compat"))


def _open(tag: str) -> str:
    return f"<|open|>{tag}<|sep|>"


def _close(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


_ANSWER = _close("think") + _open("response")
_ENDS = _close("response") + _close("message") + "<|end_of_msg|>"
_CALLED = _close("call") + _close("tools") + _close("message") + "<|end_of_msg|>"


def _called(name: str, index: int) -> str:
    return _open(f'call tool="{name}" index="{index}"')


def _argument(key: str, kind: str, value: str) -> str:
    return _open(f'argument key="{key}" type="{kind}"') + value + _close("argument")


class Model(Loop):
    """A loop whose stop token stands behind the end of its message."""


def _talk(trust: str, seed: object, *, thinking: bool = True) -> Talk:
    talk = Talk(templates.template(NAME), trust, seed)
    talk.thinking, talk.instructions, talk.tools = thinking, None, TOOLS
    return talk


@each_trust
def test_what_a_client_brings_is_the_oracles_prompt(trust):
    cheap = 0
    for seed in range(20 * FACTOR):
        talk = Talk(templates.template(NAME), trust, seed)
        assert talk.profile.family == "kimi-k3"
        cheap += brought(talk, 12)
    assert cheap > 50


@each_trust
def test_an_agents_loop_costs_what_is_new(trust):
    """Nothing is ever taken out of history."""
    for seed in range(10 * FACTOR):
        agents_loop(Model(templates.template(NAME), trust, seed), forgets=False)


@each_trust
@pytest.mark.parametrize("effort", ["low", "medium", "max"])
def test_an_effort_is_the_headers(trust, effort):
    """Medium is high: the template takes no other word."""
    told = {"thinking": True, "effort": {"medium": "high"}.get(effort, effort)}
    talk = Talk(templates.template(NAME), trust, effort, effort=effort, told=told)
    talk.thinking = True
    talk.same(talk.open(ASK).prompt.tolist(), talk.expected(ASK))
    assert f"thinking_effort={told['effort']}" in talk.spell(talk.open(ASK).prompt.tolist())


@each_trust
def test_thinking_that_is_switched_is_the_templates(trust):
    """It stands in every message, or in none."""
    loop = Model(templates.template(NAME), trust, "switched")
    loop.thinking = True
    loop.turn(loop.question(), loop.sampled(calls=0))
    loop.thinking = False
    new = loop.question()
    loop.reads_as(loop.open(new).prompt.tolist(), loop.expected(new))


@each_trust
def test_what_is_cut_off_is_closed(trust):
    """At a limit or by a stop token: history has the ends of all that was open."""
    says = ["why", f"why{_ANSWER}Beca", f"why{_ANSWER}Because.{_close('response')}", _ANSWER + "x"]
    for text, ending in product(says, ((), ("[EOS]",), ("<|end_of_msg|>",))):
        loop = Model(templates.template(NAME), trust, "cut off")
        loop.thinking = True
        ends = [loop.known.controls[end] for end in ending]
        loop.turn(loop.question(), [*sampled(loop, text), *ends])
        assert loop.items[-1]["type"] == ("reasoning" if text == "why" else "message")
        loop.turn(loop.question(), loop.sampled(calls=0))


_PARTS = (
    # What is sampled of a call, and what history has behind it.
    (_called("ls", 1), _CALLED),
    (_called("ls", 1) + _argument("a", "number", "1"), _CALLED),
    (
        _called("ls", 1) + _open('argument key="a" type="string"') + "x",
        _close("argument") + _CALLED,
    ),
    (_called("ls", 1) + _open('json type="object"') + "{", _close("json") + _CALLED),
    (_called("ls", 1) + _close("call"), _CALLED.removeprefix(_close("call"))),
)


@pytest.mark.parametrize(("part", "ends"), _PARTS)
def test_a_call_that_is_cut_off_is_closed(part, ends):
    talk = _talk("strict", "cut off")
    opened = _ANSWER + _close("response") + _open("tools") + part
    for ending in ((), ("[EOS]",)):
        talk.node, talk.items = None, []
        turn = talk.open(ASK)
        prompt = turn.prompt.tolist()
        stops = [talk.known.controls[end] for end in ending]
        talk.answer(turn, ASK, [*sampled(talk, opened), *stops])
        # A call that is whole needs an output.
        new = outputs_for(talk.items) if part.endswith(_close("call")) else ASK
        after = talk.open(new).prompt.tolist()
        assert talk.spell(after[len(prompt) :]).startswith(opened + ends + '<|open|>message role="')
        # A store keeps what is to be closed.
        assert talk.node
        talk.chains = _core.Chains(talk.profile)
        talk.node = talk.chains.hydrate(None, talk.node.export())
        assert talk.open(new).prompt.tolist() == after


@each_trust
@pytest.mark.parametrize("arguments", ["not json", "[1]", '"x"', "null", "", " \n", '{"a": 1'])
def test_arguments_that_are_no_object(trust, arguments):
    talk = _talk(trust, "odd")
    call = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": arguments}
    new = [*ASK, call, {"type": "function_call_output", "call_id": "c", "output": ""}]
    turn = talk.open(new)
    talk.same(turn.prompt.tolist(), talk.expected(new))


def test_outputs_stand_in_the_order_of_their_calls():
    """Where they answer others, or come by and by, the template has them."""
    talk = _talk("strict", "order")

    def call(at: int) -> dict[str, Any]:
        called = {"call_id": f"c{at}", "name": f"f{at}", "arguments": "{}"}
        return {"type": "function_call"} | called

    def output(at: int) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": f"c{at}", "output": f"o{at}"}

    talk.warm([*ASK, call(0), call(1), call(2)])
    for answers in ((2, 0, 1), (0, 1, 2)):
        new = [output(at) for at in answers]
        talk.same(talk.open(new).prompt.tolist(), talk.expected(new))
    talk.warm([output(1)])
    for new in ([output(2), output(0)], [*ASK, output(0), output(2)]):
        talk.same(talk.open(new).prompt.tolist(), talk.expected(new))


@pytest.mark.parametrize(
    ("printed", "other"),
    [
        ("&quot;", "&#34;"),
        ("<|end_of_msg|>", "<|end_of_msg|>\n"),
        ("'index', loop.index)", "'index', loop.index0)"),
        ("open_tag('tools')", "open_tag('calls')"),
        ("array\n", "list\n"),
    ],
)
def test_a_template_that_prints_otherwise_is_not_served(printed, other):
    """The renderer is off, and the template has all of it. No probe asks for an escape."""
    template = templates.template(NAME)
    assert printed in template.text
    edited = Template(other, template.text.replace(printed, other), template.vocabulary)
    served = profile_of(edited, "strict").family
    assert served == ("kimi-k3" if printed == "&quot;" else "generic")


# --- By hand: what the template says, read off it -------------------------------------------

_EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how '
    "much to think in your thinking channel (not including the response channel), supported "
    "values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=max`."
    "<|close|>message<|sep|><|end_of_msg|>"
)
_ASKED = _open('message role="user"') + "\n\nhi" + _close("message") + "<|end_of_msg|>"
_OPENS = _open('message role="assistant"') + _open("think")
_SAYS = (
    f"Why?\n{_ANSWER}Let me look.{_close('response')}{_open('tools')}"
    + _called("read_file", 1)
    + _argument("path", "string", 'a "b"\n')
    + _argument("limit", "number", "2")
    + _argument("x&quot;&amp;y", "object", '{"a": [true, null]}')
    + _close("call")
    + _called("ls", 2)
    + _CALLED
)
_ARGUMENTS = '{"path": "a \\"b\\"\\n", "limit": 2, "x\\"&y": {"a": [true, null]}}'


@each_trust
def test_a_tool_loop_by_hand(trust):
    """By a client and by the model, the same prompt."""
    ask = [{"role": "user", "content": "\n\nhi"}]
    part = {"type": "reasoning_text", "text": "Why?\n"}
    brought_ = [
        {"type": "reasoning", "summary": [], "content": [part]},
        {"role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": "c0", "name": "read_file", "arguments": _ARGUMENTS},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
    ]

    def returned(ids: Sequence[str]) -> list[dict[str, Any]]:
        outputs = zip(ids, ("\n", " x"), strict=True)
        return [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in outputs
        ]

    talk = _talk(trust, "by hand")
    talk.tools = []
    tools = ((1, "read_file", " x"), (2, "ls", "\n"))
    ends = "".join(
        _open(f'message role="tool" tool="{name}" index="{at}"')
        + text
        + _close("message")
        + "<|end_of_msg|>"
        for at, name, text in tools
    )
    wanted = _EFFORT + _ASKED + _OPENS + _SAYS + ends + _OPENS
    turn = talk.open([*ask, *brought_, *returned(["c1", "c0"])])
    talk.same(turn.prompt.tolist(), talk.known.encode_text(wanted))

    turn = talk.open(ask)
    talk.answer(turn, ask, sampled(talk, _SAYS))
    found = [item for item in talk.items if item.get("type") == "function_call"]
    assert [item["name"] for item in found] == ["read_file", "ls"]
    assert [item["arguments"] for item in found] == [_ARGUMENTS, "{}"]
    ids = [item["call_id"] for item in found]
    talk.same(talk.open(returned(ids[::-1])).prompt.tolist(), talk.known.encode_text(wanted))


_STRING = 'argument key="a" type="string"'
_READ = (
    # What is sampled behind the prompt, and what it says.
    (
        f"Why?\n\n{_ANSWER}Hi.\n\nYou.\n{_ENDS}",
        [("reasoning", "Why?\n\n"), ("message", "Hi.\n\nYou.\n")],
    ),
    (f"\n{_ANSWER}{_ENDS}", []),
    (f"{_ANSWER}<|sep|>a</think><b>{_ENDS}", [("message", "a</think><b>")]),
    # Ends that are missing, and a call while it thinks.
    (
        f"so{_open('tools')}{_called('a&amp;b', 1)}{_open('argument key=x')}7{_called('ls', 2)}",
        [("reasoning", "so"), ("a&b", '{"": 7}'), ("ls", "")],
    ),
    # Whatever a type says: what is no JSON is a string.
    (
        (
            f"{_ANSWER}{_called('ls', 1)}{_argument('a', 'number', 'one')}"
            f"{_argument('b', 'string', '1')}"
            f"{_close('call')}{_called('ls', 2)}{_open('json')}[1{_close('json')}{_close('call')}"
        ),
        [("ls", '{"a": "one", "b": "1"}'), ("ls", "[1")],
    ),
    (f"{_ANSWER}{_called('ls', 1)}{_open(_STRING)}b", [("ls", '{"a": "b')]),
    (f"{_ANSWER}x<|open|>unknown<|sep|>y<|close|>what", [("message", "xy")]),
)


@pytest.mark.parametrize(("text", "says"), _READ)
def test_what_is_sampled_is_read_as_it_is_meant(text, says):
    """Whole, and token by token (law 6); cut off, what came is there."""
    talk = _talk("strict", "read")
    ids = spelled_otherwise(talk, sampled(talk, text))
    for size in (1, 3, len(ids)):
        turn = talk.open(ASK)
        pieces = (ids[at : at + size] for at in range(0, len(ids), size))
        deltas = [delta for piece in pieces for delta in turn.push(piece)]
        assert [_shown(item) for item in items_of(deltas + turn.finish())] == says


def _shown(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "function_call":
        return item["name"], item["arguments"]
    return item["type"], item["content"][0]["text"]


def test_whatever_comes_is_the_same_in_any_pieces():
    """Hostile output: the same items however it is cut, and JSON where a call was closed."""
    talk = _talk("strict", "hostile")
    parts = [
        *("<|open|>", "<|close|>", "<|sep|>", _open("tools"), _called("ls", 1), _close("call")),
        *(_open('argument key="a" type="string"'), _open('argument key="b" type="number"')),
        *(_close("argument"), _ANSWER, _open("json"), "x y", "\n", "12", "call", _close("message")),
    ]
    whole = 0
    for _ in range(150):
        ids = sampled(talk, "".join(talk.random.choices(parts, k=talk.random.randrange(1, 25))))
        found = []
        for size in (1, 2, len(ids)):
            turn = talk.open(ASK)
            pieces = (ids[at : at + size] for at in range(0, len(ids), size))
            deltas = [delta for piece in pieces for delta in turn.push(piece)]
            found.append([_shown(item) for item in items_of(deltas + turn.finish())])
        assert found[0] == found[1] == found[2]
        for kind, text in found[0]:
            assert kind in ("reasoning", "message", "ls")
            assert kind == "ls" or text.strip()
            if kind == "ls" and text.startswith("{") and text.endswith("}"):
                whole += isinstance(json.loads(text), dict)
    assert whole > 5
