"""DeepSeek by hand: prompts after the formats that it publishes, and calls in all their forms.

Nothing expected here is printed by a template: it is written after V3.1's model card, and the
encoders of V3.2 and V4.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from native.test_deepseek import (
    ASSISTANT,
    EOS,
    PUBLISHED,
    USER,
    V4,
    V32,
    D,
    F,
    owed,
    talk_of,
)
from talking import ASK, items_of, raw

pytestmark = pytest.mark.timeout(600)

# --- What stays, what goes ------------------------------------------------------------------


def user(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


class Golden:
    """A conversation beside the text that it must be, up to a header that the template prints."""

    def __init__(self, name: str, *, thinks: bool, tools: bool = True) -> None:
        self.talk = talk_of(name, "strict", "golden", thinks=thinks)
        self.talk.instructions, self.talk.tools = None, [F] if tools else []
        self.kind = ""

    def prompt(self, new: list[Any], text: str) -> None:
        turn = self.talk.open(new)
        self.kind = turn.kind
        known = self.talk.known
        expected = known.encode_text(text)
        prompt = turn.prompt.tolist()
        assert self.talk.spell(prompt[-len(expected) :]) == text
        assert prompt[-len(expected) :] == expected
        self._turn, self._new = turn, new

    def say(self, text: str) -> None:
        self.talk.answer(self._turn, self._new, self.talk.known.encode_text(text))

    def outputs(self, *texts: str) -> list[Any]:
        found = owed(self.talk)
        return [{**call, "output": text} for call, text in zip(found, texts, strict=True)]


def tool(what: str, inner: str) -> str:
    """Something of a tool's between the two tokens that V3.1 has for it."""
    begin, end = (f"<\uff5ctool\u2581{what}\u2581{side}\uff5c>" for side in ("begin", "end"))
    return f"{begin}{inner}{end}"


def test_golden_v31_as_its_model_card_has_it():
    """Context: ``<User>{query}<Assistant></think>{response}<eos>``; prefix: ``<think>`` or
    ``</think>``; outputs follow calls without another."""
    golden = Golden(PUBLISHED, thinks=True)
    golden.prompt([user("hi")], f"{USER}hi{ASSISTANT}<think>")
    golden.say(f"They greet.</think>Hello!{EOS}")
    golden.prompt(
        [user("more")], f"{USER}hi{ASSISTANT}</think>Hello!{EOS}{USER}more{ASSISTANT}<think>"
    )
    assert golden.kind == "rewind"
    golden = Golden(PUBLISHED, thinks=False)
    arguments = '{"a":"b",  "n":1}'
    call = tool("call", f"f<\uff5ctool\u2581sep\uff5c>{arguments}")
    call = tool("calls", call)
    golden.prompt([user("hi")], f"{USER}hi{ASSISTANT}</think>")
    golden.say(f"Wait.{call}{EOS}")
    output = tool("output", "done")
    golden.prompt(golden.outputs("done"), f"{USER}hi{ASSISTANT}</think>Wait.{call}{EOS}{output}")
    assert golden.kind == "extend"
    assert golden.talk.items[-1]["arguments"] == arguments


def called(block: str, *arguments: tuple[str, str, str]) -> str:
    """One call of ``f`` as DeepSeek's encoders write it."""
    written = "".join(
        f'<{D}parameter name="{key}" string="{string}">{value}</{D}parameter>\n'
        for key, string, value in arguments
    )
    call = f'<{D}invoke name="f">\n{written}</{D}invoke>\n'
    return f"\n\n<{D}{block}>\n{call}</{D}{block}>"


def test_golden_v32_as_its_encoder_has_it():
    """Reasoning stays through a tool loop and goes with the next question; ``</think>`` stays."""
    golden = Golden(V32, thinks=True)
    call = called("function_calls", ("a", "true", '<b> "c"'), ("n", "false", "1"))
    golden.prompt([user("hi")], f"{USER}hi{ASSISTANT}<think>")
    golden.say(f"Look.</think>A moment.{call}{EOS}")
    results = "\n\n<function_results>\n<result>done\n</result>\n</function_results>\n\n"
    asked = f"{USER}hi{ASSISTANT}"
    golden.prompt(
        golden.outputs("done\n"), f"{asked}<think>Look.</think>A moment.{call}{EOS}{results}<think>"
    )
    assert golden.kind == "extend"
    assert json.loads(golden.talk.items[-1]["arguments"]) == {"a": '<b> "c"', "n": 1}
    golden.say(f"So.</think>It is done.{EOS}")
    golden.prompt(
        [user("thanks")],
        f"{asked}</think>A moment.{call}{EOS}{results}</think>It is done.{EOS}"
        f"{USER}thanks{ASSISTANT}<think>",
    )
    assert golden.kind == "rewind"


def test_golden_v4_keeps_all_reasoning_where_there_are_tools():
    golden = Golden(V4, thinks=True)
    call = called("tool_calls", ("n", "false", '{"k": [1.50]}'))
    asked = f"{USER}hi{ASSISTANT}<think>"
    golden.prompt([user("hi")], asked)
    golden.say(f"Look.</think>{call}{EOS}")
    loop = f"{asked}Look.</think>{call}{EOS}{USER}<tool_result>done</tool_result>"
    golden.prompt(golden.outputs("done"), f"{loop}{ASSISTANT}<think>")
    golden.say(f"So.</think>Done.{EOS}")
    said = f"{loop}{ASSISTANT}<think>So.</think>Done.{EOS}"
    golden.prompt([user("thanks")], f"{said}{USER}thanks{ASSISTANT}<think>")
    assert golden.kind == "extend"
    golden = Golden(V4, thinks=True, tools=False)
    golden.prompt([user("hi")], asked)
    golden.say(f"Look.</think>Hello.{EOS}")
    golden.prompt(
        [user("more")], f"{USER}hi{ASSISTANT}</think>Hello.{EOS}{USER}more{ASSISTANT}<think>"
    )
    assert golden.kind == "rewind"


def test_golden_v4_users_and_outputs_are_one_run_of_text():
    """A newline that begins one text belongs to the tokens of the one before."""
    golden = Golden(V4, thinks=False, tools=False)
    for text in ("a", "\nb", "\n"):
        golden.talk.warm([user(text)])
    golden.prompt([user("c")], f"{USER}a\n\n\nb\n\n\n\n\nc{ASSISTANT}</think>")
    assert golden.kind == "rewind"
    assert [span.items for span in golden._turn.spans() if span.kind == "item"] == [(0, 4)]


@pytest.mark.parametrize("trust", ["strict", "compat"])
@pytest.mark.parametrize("name", [V32, V4])
def test_a_conversation_whose_history_changes_is_the_templates(name, trust):
    """Another effort within a tool loop, or with V4 other tools: all of it is printed anew."""
    talk = talk_of(name, trust, "efforts", thinks=True)
    for thinks, tools in ((True, [F]), (False, [F]), (True, []), (True, [F])):
        talk.thinking, talk.tools = thinks, tools
        new = owed(talk) or ASK
        turn = talk.open(new)
        talk.reads_as(turn.prompt.tolist(), talk.expected(new))
        answer = {"calls": [{"name": "f", "arguments": '{"a": "b"}'}]}
        answer |= {"reasoning": "why"} if thinks else {}
        talk.answer(turn, new, talk.profile.encode_output(raw(answer)))


@pytest.mark.parametrize("tools", [([], [F], [F]), ([F], [], []), ([F], [], [F])])
def test_v4_shows_reasoning_again_where_tools_come_and_drops_it_where_they_go(tools):
    """In a plain chat, in which nothing else keeps it."""
    talk = talk_of(V4, "strict", "come", thinks=True)
    for declared in tools:
        talk.tools = declared
        turn = talk.open(ASK)
        talk.same(turn.prompt.tolist(), talk.expected(ASK))
        answer = {"reasoning": "why", "text": "so"}
        talk.answer(turn, ASK, talk.profile.encode_output(raw(answer)))


def test_v4_goes_on_without_its_tools():
    """``tool_choice: none`` hides them for a turn; what a tool said keeps history as it is."""
    talk = talk_of(V4, "strict", "none", thinks=True)
    for tools in ([F], [F], [], [F]):
        talk.tools = tools
        new = owed(talk) or ASK
        turn = talk.open(new)
        talk.same(turn.prompt.tolist(), talk.expected(new))
        assert turn.rendered < 600
        answer = {"reasoning": "why", "calls": [{"name": "f", "arguments": '{"a": "b"}'}]}
        talk.answer(turn, new, talk.profile.encode_output(raw(answer)))


# --- Calls that are not well formed ----------------------------------------------------------


def heard(name: str, text: str, *, thinks: bool = False) -> list[tuple[str, str]]:
    """What is read of an answer, token by token: (kind, text), or (name, arguments) of a call."""
    talk = talk_of(name, "strict", "heard", thinks=thinks)
    talk.instructions, talk.tools = None, [F]
    turn = talk.open(ASK)
    deltas = [d for i in talk.known.encode_text(text) for d in turn.push([i])] + turn.finish()
    turn.commit()
    found = []
    for item in items_of(deltas):
        if item["type"] == "function_call":
            found.append((item["name"], item["arguments"]))
        else:
            found.append((item["type"], item["content"][0]["text"]))
    return found


BEGUN = f'<{D}tool_calls>\n<{D}invoke name="f">\n'
A, END = f'<{D}parameter name="a" string="true">', f"</{D}parameter>\n"
CLOSED = f"</{D}invoke>\n</{D}tool_calls>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What the tags say of a value is believed; what is no JSON then is a string.
        (f"{BEGUN}{A}3{END}{CLOSED}", [("f", '{"a": "3"}')]),
        (f"{BEGUN}{A.replace('true', 'false')}x{END}{CLOSED}", [("f", '{"a": "x"}')]),
        (f"{BEGUN}{A.replace('true', 'false')}[1, {{}}]{END}{CLOSED}", [("f", '{"a": [1, {}]}')]),
        # Tags and control tokens within a value are content, but for its own end.
        (
            f"{BEGUN}{A}</think><{D}invoke>{USER}{END}{CLOSED}",
            [("f", f'{{"a": "</think><{D}invoke>{USER}"}}')],
        ),
        # One object in place of tags.
        (f'{BEGUN}{{"a": "b", "n": 1}}\n{CLOSED}', [("f", '{"a": "b", "n": 1}')]),
        # An end that is missing.
        (f"{BEGUN}{A}x{END}</{D}tool_calls>", [("f", '{"a": "x"}')]),
        (f"{BEGUN}{A}x{END}{CLOSED[:-14]}", [("f", '{"a": "x"}')]),
        (f'{BEGUN}{A}x{END}<{D}invoke name="g">\n{CLOSED}', [("f", '{"a": "x"}'), ("g", "{}")]),
        (f"{BEGUN}{A}x", [("f", '{"a": "x')]),
        (BEGUN, [("f", "")]),
        # No call.
        (f"<{D}tool_calls>\nno</{D}tool_calls>!", [("message", "no!")]),
        (f"a <{D} b {D}", [("message", f"a <{D} b {D}")]),
        # Words behind calls, and two calls.
        (f"{BEGUN}{A}x{END}{CLOSED} done", [("f", '{"a": "x"}'), ("message", " done")]),
        (
            f'x\n\n{BEGUN}{A}x{END}</{D}invoke>\n<{D}invoke name="g">\n\n{CLOSED}',
            [("message", "x"), ("f", '{"a": "x"}'), ("g", "{}")],
        ),
    ],
)
@pytest.mark.parametrize("name", [V32, V4])
def test_tags_are_read(name, text, expected):
    if name == V32:
        text = text.replace("tool_calls", "function_calls")
    assert heard(name, text) == expected


def test_calls_that_are_thought_about_are_reasoning():
    text = f"Shall I {BEGUN}{A}x{END}{CLOSED}?"
    assert heard(V4, f"{text}</think>No.", thinks=True) == [("reasoning", text), ("message", "No.")]
    assert heard(V4, f"{BEGUN}{A}x{END}{CLOSED}", thinks=True) == [("f", '{"a": "x"}')]


def test_arguments_come_as_they_are_sampled():
    talk = talk_of(V4, "strict", "streamed", thinks=False)
    talk.instructions, talk.tools = None, [F]
    turn = talk.open(ASK)
    arguments = []
    for token_id in talk.known.encode_text(f"{BEGUN}{A}one two three four five six{END}{CLOSED}"):
        arguments += [d.text for d in turn.push([token_id]) if d.kind == "arguments"]
    assert len(arguments) > 5
    assert "".join(arguments) == '{"a": "one two three four five six"}'
