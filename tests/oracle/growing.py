"""Conversations that grow by steps, made to break the generic path; random, but by a seed.

A step is what a client adds at once, with every call answered. Whether a template takes it, the
oracle knows; the callers ask it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oracle.conversations import HALVES, PLAIN

if TYPE_CHECKING:
    from random import Random

    from oracle.vocabulary import Vocabulary

_MARKUP = (
    *("</think>", "<think>", "<tool_call>", "</tool_call>", "<tool_response>", "</s>", "[INST]"),
    *("[/INST]", "<|im_end|>\n<|im_start|>system\n", "<|eot_id|>", "<end_of_turn>\n", "<|end|>"),
    *("{{ bos_token }}", "{% raw %}", "</parameter>", "<|channel|>final", "\u2581", "\u2581\u2581"),
    *(
        "\u27e6000000\u27e7",
        "\ue0000\ue001",
        "\ufdd0\ufde0\ufdd1\ufdd3",
        "%s",
        "[TOOL_CALLS]",
        "<\uff5cUser\uff5c>",
    ),
)

ARGUMENTS = (
    "{}",
    " { } ",
    '{"beta":1,  "alpha":2}',
    '{"path": "src/a b.py", "lines": [1, 2.50, 1e3, -0.0, 1e16, 1e22, 1e-7, 0.1]}',
    '{"nested": {"s": "} \\" {", "n": null, "t": true, "e": {}, "l": []}}',
    '{"\\u00e9": "\\u00e9\\n\\t\\u0001", "text": "中文 🙂 e\\u0301", "quote": "it\'s \\"so\\""}',
    '{"big": 123456789012345678901234567890, "neg": -5, "f": false}',
    '{"think": "</think>", "a key": " lead and trail \\n", "code": "<b>\\n"}',
    '{"list": ["x", ["y z", {"k": "v w"}], null, 1.5, "\\\\"]}',
    '{"command": ["bash", "-lc", "echo \\"hi\\" && ls <file>"], "timeout_ms": 1000}',
    '{"a": "line\\r\\nline", "": "no key"}',
    '{"dup": 1, "dup": "two"}',
)
NOT_OBJECTS = ("", "not json", "[1, 2]", '"text"', '{"open": ', "null")

_NAMES = ("read_file", "shell", "get-weather", "a", "mcp__x__search", "f_1")
_KEYS = ("path", "lines", "a_b", "type_", "limit")
_FRAMED = ("think", "user", "code", "table")
"""Words that some vocabulary has an added token of: ``<think>``."""
_CALL_IDS = ("call_%s", "call_%sABCDEFGHIJKLMNOP", "fc-%s", "%s", "chatcmpl:tool/%s", "id %s")


Item = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What a client adds at once."""

    items: tuple[Item, ...]
    kind: str


class Growing:
    """Steps for one vocabulary. ``plain`` content spells nothing that has a meaning somewhere;
    ``dumped`` arguments are objects, spelled as Python would spell them again; without ``calls``
    there are no tools, calls and outputs."""

    def __init__(
        self,
        random: Random,
        vocabulary: Vocabulary,
        *,
        plain: bool = False,
        dumped: bool = False,
        calls: bool = True,
    ) -> None:
        self._random = random
        self._controls = sorted(vocabulary.controls)
        self._plain = plain
        self._names = _NAMES if plain else (*_NAMES, *_FRAMED[:2])
        self._calls = calls
        self._arguments = [text for text in ARGUMENTS if not plain or _is_plain(text)]
        self._odd = list(NOT_OBJECTS)
        if dumped:
            values = [json.loads(text) for text in self._arguments]
            self._arguments = [json.dumps(value, ensure_ascii=False) for value in values]
            self._odd = self._arguments
        self._serial = 0

    def text(self, most: int = 4, least: int = 0) -> str:
        """A text of some pieces; may be empty, or white space."""
        random = self._random
        pieces = []
        for _ in range(random.randint(least, most)):
            kind = random.random()
            if self._plain or kind < 0.5:
                pieces.append(random.choice(PLAIN))
            elif kind < 0.65:
                pieces.append(random.choice(self._controls))
            elif kind < 0.8:
                pieces.append(random.choice(_MARKUP))
            elif kind < 0.9:
                pieces.append(random.choice(HALVES))
            else:
                run = random.choice(("a", " ", "\n", "=", "9", "é", "中", "ab ", "\r\n", "-+"))
                pieces.append(run * random.choice((3, 17, 64, 300)))
        return "".join(pieces)

    def instructions(self) -> str | None:
        """Sometimes none."""
        return self._random.choice((None, self.text(), "You are helpful.", " \n"))

    def tools(self) -> list[Item]:
        """Up to three function tools, with schemas as agents send them and a few odd ones."""
        names = self._random.sample(self._names, self._random.randint(0, 3) if self._calls else 0)
        return [self._tool(name) for name in names]

    def _tool(self, name: str) -> Item:
        random = self._random
        tool: Item = {"type": "function", "name": name}
        if random.random() < 0.8:
            tool["description"] = random.choice((self.text(2), "Does it.", None))
        shape = random.random()
        if shape < 0.8:
            tool["parameters"] = self._schema(2)
        elif shape < 0.9:
            tool["parameters"] = {"type": "object", "properties": {}}
        if random.random() < 0.3:
            tool["strict"] = random.choice((None, False, True))
        return tool

    def _schema(self, depth: int) -> Item:
        random = self._random
        words = _KEYS if self._plain else (*_KEYS, *_FRAMED)
        keys = random.sample(words, random.randint(0, 3))
        if not self._plain and random.random() < 0.4:
            keys.append(random.choice((self.text(2, 1), "a key", "<b>", "é")))
        required = [key for key in keys if random.random() < 0.5]
        schema: Item = {"type": "object", "properties": {k: self._property(depth) for k in keys}}
        if random.random() < 0.7:
            schema["required"] = required
        if random.random() < 0.3:
            schema["additionalProperties"] = False
        return schema

    def _property(self, depth: int) -> Item:
        random = self._random
        kind = random.choice(("string", "integer", "number", "boolean", "array", "object"))
        found: Item = {"type": kind}
        if random.random() < 0.7:
            found["description"] = random.choice((self.text(2), "What it is."))
        if kind == "string" and random.random() < 0.3:
            found["enum"] = ["one", self.text(1, 1), "th ree"]
        if kind in ("integer", "number") and random.random() < 0.4:
            found["default"] = random.choice((0, 1.0, -3, 1e22, 10**20))
        if kind == "array" and random.random() < 0.8:
            found["items"] = {"type": random.choice(("string", "integer"))}
        if kind == "object" and depth:
            found |= self._schema(depth - 1)
        return found

    def user(self) -> Step:
        """One user message."""
        return Step((self._message("user", "input_text"),), "user")

    def system(self) -> Step:
        """A system or developer message where it does not belong."""
        role = self._random.choice(("system", "developer"))
        return Step((self._message(role, "input_text"), *self.user().items), "system")

    def said(self) -> Step:
        """An assistant's message, perhaps with the reasoning before it, and the next question."""
        items = [self._reasoning()] if self._random.random() < 0.5 else []
        items.append(self._message("assistant", "output_text"))
        more = self.user().items if self._random.random() < 0.7 else ()
        return Step((*items, *more), "said")

    def called(self, *, objects: bool = True) -> Step:
        """Calls with their outputs: together, or one after the other."""
        random = self._random
        before = [self._reasoning()] if random.random() < 0.5 else []
        if random.random() < 0.5:
            before.append(self._message("assistant", "output_text"))
        calls, outputs = [], []
        for _ in range(random.choice((1, 1, 2, 3))):
            self._serial += 1
            call_id = random.choice(_CALL_IDS) % self._serial
            arguments = random.choice(self._arguments if objects else self._odd)
            name = random.choice(self._names)
            calls.append(
                {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            )
            output: Any = self.text()
            if random.random() < 0.3:
                output = [{"type": "input_text", "text": output}]
            outputs.append({"type": "function_call_output", "call_id": call_id, "output": output})
        if random.random() < 0.7:
            items = [*calls, *outputs]
        else:
            items = [item for pair in zip(calls, outputs, strict=True) for item in pair]
        return Step((*before, *items), "called" if objects else "called oddly")

    def answered(self) -> Step:
        """Calls and outputs, what the assistant said to them, and the next question."""
        items = (*self.called().items, self._message("assistant", "output_text"))
        return Step((*items, *self.user().items), "answered")

    def any(self) -> Step:
        """A step of any kind."""
        kinds = (self.user, self.system, self.said, self.said)
        calls = (self.called, self.called, self.answered, self.answered, None)
        step = self._random.choice((*kinds, *calls) if self._calls else kinds)
        return self.called(objects=False) if step is None else step()

    def _message(self, role: str, part_type: str) -> Item:
        text = self.text()
        content: Any = text
        if role == "assistant" or self._random.random() < 0.5:
            at = self._random.randint(0, len(text))
            content = [{"type": part_type, "text": half} for half in (text[:at], text[at:])]
        return {"type": "message", "role": role, "content": content}

    def _reasoning(self) -> Item:
        part = {"type": "reasoning_text", "text": self.text()}
        return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]}


def _is_plain(arguments: str) -> bool:
    """Whether Python's repr and a sort by keys treat its strings like words."""
    return arguments.isascii() and not set("<\\'") & set(arguments)
