"""The naive model of the generic path: any chat template, rendered and encoded from scratch.

Templates differ in what they take: whether tools, whether a call's arguments are an object or text,
under which key reasoning stands, where system messages may be. What a template does with a tiny
conversation tells (:class:`Ways`), once; the items then become the messages of ``oracle.naive``,
adapted to that. jinja2 renders them, Hugging Face ``tokenizers`` encodes the text.

A *probe* is a render of plain words, with nothing hidden; it *refuses* when the render raises.

Under strict trust the template sees what ``oracle.hidden`` leaves of what a client wrote. The
vocabulary's controls in the text that it makes of that are the skeleton; what stands between two of
them is filled in and encoded as one run, in which no control is matched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from oracle import naive
from oracle.environment import environment, masked_environment
from oracle.hidden import Controls, Hidden, Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import jinja2

    from oracle.naive import Item, Message, Trust
    from oracle.vocabulary import Vocabulary

NOW = 1764500000
"""A time for templates that ask for it: seconds since the epoch."""

LONG_ID = "call_0123456789abcdefABCDEFGH"
SHORT_ID = "CDEFGHIJK"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")

_PROBE_OBJECT = {"probe_key": "a"}
_PROBE_TEXT = '{"probe_key":  "a"}'
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe_text"}},
            "required": ["probe_key"],
        },
    },
}
_BARE_TOOL = {"type": "function", "function": {"name": "probe_tool"}}


class RefusedError(Exception):
    """The template raised: it cannot say this conversation."""


@dataclass(frozen=True)
class Ways:
    """What a template takes."""

    parts: bool
    """A message's content is a list of parts."""
    tools: bool
    """It declares tools and says calls and outputs; otherwise they are spelled out as text."""
    whole_tools: bool
    """A tool must have a description and parameters: empty ones, where the client sent none."""
    short_ids: bool
    """Call ids are nine letters or digits (Mistral)."""
    counted_ids: bool
    """Call ids are printed, as ``functions.{name}:{number}``, counted over all calls (Kimi)."""
    text_arguments: bool
    """A call's arguments are given as the client's text, not as an object."""
    reasoning: str | None
    """The key for reasoning; None when it is not shown."""
    system: bool
    """It has a system role."""
    many_systems: bool
    """It takes more than one system message at the front."""
    late_system: bool
    """It takes a system message behind others."""
    adjacent_users: bool
    """It takes a user message behind a user message."""


@dataclass(frozen=True)
class Template:
    """A chat template with the vocabulary that it is used with."""

    name: str
    text: str
    vocabulary: Vocabulary
    switches: tuple[tuple[str, Any], ...] = ()
    """Further variables that it is always given."""

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return environment().from_string(self.text)

    @cached_property
    def _masked(self) -> jinja2.Template:
        return masked_environment().from_string(self.text)

    @cached_property
    def controls(self) -> Controls:
        """This vocabulary's control tokens, as words may spell them."""
        return Controls(self.vocabulary.controls)

    def render(
        self,
        chat: Sequence[Message],
        tools: Sequence[Message] | None = None,
        *,
        generate: bool = False,
        thinking: bool | None = None,
        effort: str | None = None,
        now: int = NOW,
        masked: bool = False,
    ) -> str:
        """What the template makes of messages, masked or not. Raises RefusedError."""
        variables: dict[str, Any] = {
            "messages": chat,
            "add_generation_prompt": generate,
            "bos_token": self.vocabulary.bos,
            "eos_token": self.vocabulary.eos,
            "strftime_now": datetime.fromtimestamp(now).strftime,  # noqa: DTZ006 (local, as theirs)
        }
        variables |= dict(self.switches)
        if tools:
            variables["tools"] = tools
        if thinking is not None:
            variables |= {"enable_thinking": thinking, "thinking": thinking}
        if effort is not None:
            variables |= {"reasoning_effort": effort, "thinking_effort": effort}
        try:
            return (self._masked if masked else self._compiled).render(variables)
        except Exception as error:  # templates raise whatever Python does
            raise RefusedError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def ways(self) -> Ways:
        """What the probes say. Raises RefusedError when the template prints no user's message."""
        hello = [_said("user", "probe_user")]
        parts = not self._prints(hello, parts=False)
        if parts and not self._prints(hello, parts=True):
            raise RefusedError("it does not print what a user says")
        calls = self._call_ways(parts)
        prints = partial(self._prints, parts=parts)
        return Ways(
            parts=parts,
            tools=calls is not None,
            whole_tools=calls is not None
            and self._probe([_said("user", "x")], [_BARE_TOOL], parts=parts) is None,
            short_ids=calls is not None and calls[0],
            counted_ids=calls is not None and calls[2],
            text_arguments=calls is not None and calls[1],
            reasoning=self._reasoning_key(parts, *calls[:2]) if calls else None,
            system=prints([_said("system", "probe_system"), _said("user", "x")]),
            many_systems=prints(
                [_said("system", "probe_one"), _said("system", "probe_two"), _said("user", "x")]
            ),
            late_system=prints(
                [
                    _said("user", "x"),
                    _said("assistant", "y"),
                    _said("system", "probe_late"),
                    _said("user", "z"),
                ]
            ),
            adjacent_users=prints([_said("user", "probe_one"), _said("user", "probe_two")]),
        )

    def _probe(
        self,
        chat: list[Message],
        tools: list[Message] | None = None,
        *,
        parts: bool,
        thinking: bool | None = None,
    ) -> str | None:
        try:
            return self.render(_parted(chat) if parts else chat, tools, thinking=thinking)
        except RefusedError:
            return None

    def _prints(self, chat: list[Message], *, parts: bool) -> bool:
        """Whether every probe word of a conversation is printed."""
        printed = self._probe(chat, parts=parts)
        words = [m["content"] for m in chat if m["content"].startswith("probe_")]
        return printed is not None and all(word in printed for word in words)

    def _call_ways(self, parts: bool) -> tuple[bool, bool, bool] | None:
        """Whether ids are short, arguments text, ids Kimi's; None without a tool branch."""
        declared = self._probe([_said("user", "x")], [_PROBE_TOOL], parts=parts)
        if declared is None or "probe_tool" not in declared:
            return None

        def say(call_id: str, arguments: Any) -> str | None:
            return self._probe(_called(call_id, arguments), [_PROBE_TOOL], parts=parts)

        said = say(LONG_ID, _PROBE_OBJECT)
        short = said is None and say(SHORT_ID, _PROBE_OBJECT) is not None
        call_id = SHORT_ID if short else LONG_ID
        said_text = say(call_id, _PROBE_TEXT)
        text = said_text is not None and _PROBE_TEXT in said_text
        printed = say(call_id, {"probe_key": "probe_argument"}) or ""
        before, value, _ = printed.partition("probe_argument")
        if value and not before.rpartition("probe_key")[2].startswith(('":', '\\":', "':")):
            text = False  # an object is printed in a form of its own
        chosen = said_text if text else say(call_id, _PROBE_OBJECT)
        if chosen is None or "probe_tool" not in chosen or "probe_output" not in chosen:
            return None
        printed = f"<|tool_call_begin|>{LONG_ID}<|tool_call_argument_begin|>"
        return short, text, said is not None and printed in said

    def _reasoning_key(self, parts: bool, short: bool, text: bool) -> str | None:
        for key in REASONING_KEYS:
            chat = _called(SHORT_ID if short else LONG_ID, _PROBE_TEXT if text else _PROBE_OBJECT)
            chat[1][key] = "probe_thought"
            for thinking in (None, True):  # some show it only when they are told to think
                said = self._probe(chat, [_PROBE_TOOL], parts=parts, thinking=thinking)
                if said is not None and "probe_thought" in said:
                    return key
        return None


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _called(call_id: str, arguments: Any) -> list[Message]:
    function = {"name": "probe_tool", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    output = {"tool_call_id": call_id, "name": "probe_tool", "content": "probe_output"}
    return [
        _said("user", "x"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool"} | output,
    ]


def _parted(chat: list[Message]) -> list[Message]:
    """Messages whose content is a list of parts; none for an empty text."""
    return [
        message
        | {"content": [{"type": "text", "text": text}] if (text := message["content"]) else []}
        for message in chat
    ]


def conversation(
    template: Template,
    items: str | Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Item] | None = None,
    hide: Plain | None = None,
) -> tuple[list[Message], list[Message] | None]:
    """The messages and tools that the template is given."""
    ways, hide = template.ways, hide or Plain()
    chat = _identified(naive.messages(items, instructions), items, ways)
    definitions = naive.tool_definitions(tools)
    chat = [_hidden(message, ways, hide) for message in chat]
    definitions = definitions and [_declared(definition, hide) for definition in definitions]
    if ways.whole_tools:
        for definition in definitions or ():
            function = definition["function"]
            definition["function"] = {
                "name": function["name"],
                "description": function.get("description", ""),
                "parameters": function.get("parameters", {"type": "object", "properties": {}}),
            }
    if not ways.tools:
        spelled = naive._spell_out(chat, definitions)
        chat = [_said(message["role"], message["content"]) for message in spelled]
        definitions = None
    placed = _placed(chat, ways)
    return _parted(placed) if ways.parts else placed, definitions


def _declared(definition: Message, hide: Plain) -> Message:
    """A tool's definition; its own keys are not the client's."""
    function = {key: hide.value(value) for key, value in definition["function"].items()}
    return {"type": definition["type"], "function": function}


def _identified(chat: list[Message], items: str | Sequence[Item], ways: Ways) -> list[Message]:
    """Calls and outputs with their ids, outputs with the name of what they answer."""
    items = () if isinstance(items, str) else items
    calls = [item for item in items if item.get("type") == "function_call"]
    outputs = [item for item in items if item.get("type") == "function_call_output"]
    names = {item["call_id"]: item["name"] for item in calls}
    counted = {
        item["call_id"]: f"functions.{item['name']}:{number}" for number, item in enumerate(calls)
    }
    call_ids = iter([item["call_id"] for item in calls])
    output_ids = iter([item["call_id"] for item in outputs])
    for message in chat:
        for call in message.get("tool_calls", ()):
            call["id"] = next(call_ids)
        if message["role"] == "tool":
            message["tool_call_id"] = next(output_ids)
            message["name"] = names.get(message["tool_call_id"], "")
        if ways.counted_ids:
            for call in message.get("tool_calls", ()):
                call["id"] = counted[call["id"]]
            if message["role"] == "tool":
                message["tool_call_id"] = counted[message["tool_call_id"]]
    return chat


def _hidden(message: Message, ways: Ways, hide: Plain) -> Message:
    """One message with what the client wrote hidden, in the template's forms."""
    shaped: Message = {"role": message["role"]}
    if message["role"] == "tool":
        shaped["tool_call_id"] = hide.word(_call_id(message["tool_call_id"], ways))
        shaped["name"] = hide.word(message["name"])
    shaped["content"] = hide.text(message["content"])
    if ways.reasoning and "reasoning_content" in message:
        shaped[ways.reasoning] = hide.text(message["reasoning_content"])
    if "tool_calls" in message:
        shaped["tool_calls"] = [
            {
                "id": hide.word(_call_id(call["id"], ways)),
                "type": "function",
                "function": {
                    "name": hide.word(call["function"]["name"]),
                    "arguments": _arguments(call["function"]["arguments"], ways, hide),
                },
            }
            for call in message["tool_calls"]
        ]
    return shaped


def _call_id(call_id: str, ways: Ways) -> str:
    if not ways.short_ids:
        return call_id
    kept = [letter for letter in call_id if letter.isascii() and letter.isalnum()]
    return "".join(kept)[-9:].rjust(9, "0")


def _arguments(text: str, ways: Ways, hide: Plain) -> Any:
    if ways.tools and not ways.text_arguments:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return hide.value(value)
    return hide.text(text)


def _placed(chat: list[Message], ways: Ways) -> list[Message]:
    """System messages where the template takes them, adjacent users joined where it must be."""
    front = next((i for i, m in enumerate(chat) if m["role"] != "system"), len(chat))
    placed: list[Message] = []
    for index, message in enumerate(chat):
        role = message["role"]
        if role == "system" and (not ways.system or (index >= front and not ways.late_system)):
            role = "user"
        last = placed[-1] if placed else None
        joins = (role == "user" and not ways.adjacent_users) or (
            role == "system" and index < front and not ways.many_systems
        )
        if last is not None and joins and last["role"] == role:
            last["content"] += "\n\n" + message["content"]
        else:
            placed.append(message | {"role": role})
    return placed


def render(
    template: Template,
    items: str | Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Item] | None = None,
    *,
    generate: bool = True,
    thinking: bool | None = None,
    effort: str | None = None,
    now: int = NOW,
) -> str:
    """The prompt's text as compat trust has it. Raises RefusedError."""
    chat, definitions = conversation(template, items, instructions, tools)
    how: Mapping[str, Any] = {"generate": generate, "thinking": thinking, "effort": effort}
    return template.render(chat, definitions, now=now, **how)


def encode(
    template: Template,
    items: str | Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Item] | None = None,
    *,
    generate: bool = True,
    thinking: bool | None = None,
    effort: str | None = None,
    trust: Trust = "compat",
    now: int = NOW,
) -> list[int]:
    """The prompt's ids. Raises RefusedError."""
    vocabulary = template.vocabulary
    how: dict[str, Any] = {"generate": generate, "thinking": thinking, "now": now}
    how["effort"] = effort
    if trust == "compat":
        return vocabulary.encode_text(render(template, items, instructions, tools, **how))
    hide = Hidden(template.controls)
    chat, definitions = conversation(template, items, instructions, tools, hide)
    masked = template.render(chat, definitions, masked=True, **how)
    ids: list[int] = []
    for index, piece in enumerate(vocabulary.split(masked)):
        control = vocabulary.controls.get(piece)
        if control is None:
            ids += vocabulary.encode_run(hide.fill(piece), first=index == 0)
        else:
            ids.append(control)
    return ids
