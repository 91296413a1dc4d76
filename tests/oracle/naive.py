"""The naive model: a conversation's tokens from scratch, slowly, by other people's code.

Responses items become chat messages; jinja2 renders the model's own template over all of them;
Hugging Face ``tokenizers`` encodes the whole text at once. No state, no cut, no cache: what
``turnwire._core`` does incrementally must come to the same ids (laws 4 and 5).

The mapping, which ``rust/core`` follows too:

Messages
    * ``instructions`` is the first system message, when it is given (a string, even empty).
    * Every ``system`` or ``developer`` message is a system message of its own, where it stands.
    * A ``user`` message is a user message. A message may leave out ``type``; ``input`` may be one
      string, which is one user message.
    * The parts of a content array are joined with nothing between them (a ``refusal`` part by its
      ``refusal`` text).

Assistant messages
    * Adjacent assistant items (reasoning, assistant message, function call) are one message, in
      the order reasoning, text, calls. An item that would break that order begins a new message:
      reasoning after anything, text after text or after a call.
    * What a model sampled in one turn is a message of its own: the generation prompt began it and
      its stop token ended it. (Tests mark such items with the turn's number, as ``_turn``.)
    * ``content`` is the text, or "". ``tool_calls`` is there when there are calls, each
      ``{"type": "function", "function": {"name", "arguments"}}`` with the raw string.
    * ``reasoning_content`` is there when there is a reasoning item: its ``reasoning_text`` parts
      joined; when those are empty, its ``summary_text`` parts joined; may be "".

Tools
    * Every ``function_call_output`` is a message of role ``tool``; templates group adjacent ones.
    * A function tool is ``{"type": "function", "function": {"name", "description",
      "parameters"}}`` in that order; ``description`` and ``parameters`` are left out when absent
      or null, ``strict`` always. ``parameters`` keep the client's key order. ``[]`` is no tools.
    * ``tojson`` is ``json.dumps(value, ensure_ascii=False)``.

A template without a tool branch (SmolLM2) is fed, in its own terms, what Qwen3's template says:
    * The tools block is appended to the first message when that is a system message, after a blank
      line; otherwise it is a system message of its own at the front.
    * Calls are appended to the assistant's content; a group of outputs is one user message.
    * Reasoning is not shown: the template has no place for it.

Trust
    * ``compat`` is the above, word for word: what vLLM does.
    * ``strict`` encodes what a client wrote with added tokens off, and lets none of it steer the
      template (``</think>`` in an assistant's text, ``<tool_response>`` around a user's). Here: the
      template renders placeholders; the added tokens in *that* text are the skeleton; what stands
      between two of them is filled in and encoded as one run by a tokenizer without added tokens.
      Newlines at the ends of a text stay outside its placeholder, since templates strip them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import jinja2.ext
import jinja2.sandbox

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Trust = Literal["strict", "compat"]
Item = Mapping[str, Any]
Message = dict[str, Any]

HERMES_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
HERMES_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


@dataclass(frozen=True)
class Model:
    """A model as other people's code sees it."""

    name: str
    template: str
    tokenizer: Tokenizer
    bare: Tokenizer
    """The same tokenizer without its added tokens."""
    tool_branch: bool
    """Whether the template takes tools."""
    mute: frozenset[int] = frozenset()
    """Ids that stand for bytes the vocabulary lacks; they keep what is around them apart."""

    @cached_property
    def compiled(self) -> jinja2.Template:
        return _environment().from_string(self.template)

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """What the tokenizer matches before it splits."""
        decoder = self.tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in decoder.items()}

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        added = {token_id: token.encode() for token, token_id in self.added_tokens.items()}
        letters = byte_letters()
        return {
            token_id: bytes(letters[letter] for letter in token)
            for token, token_id in self.bare.get_vocab().items()
            if token_id not in added and token_id not in self.mute
        } | added

    def encode_text(self, text: str) -> list[int]:
        """The ids of a text, added tokens in it matched; nothing put around it."""
        return self._heard(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_bare(self, text: str) -> list[int]:
        """The ids of a text in which nothing is an added token."""
        return self._heard(self.bare.encode(text, add_special_tokens=False).ids)

    def _heard(self, ids: list[int]) -> list[int]:
        return [token_id for token_id in ids if token_id not in self.mute] if self.mute else ids

    def spell(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, one by one: no decoder between."""
        return b"".join(self._bytes[token_id] for token_id in ids)

    def sayable(self, text: str) -> bytes:
        """The bytes of a text that the vocabulary has a token for, NFC where the model normalises.

        SmolLM2 has none for 21 bytes (0x04, 0x16, 0xf1 and others), and drops them.
        """
        single = {spelled[0] for spelled in self._bytes.values() if len(spelled) == 1}
        return bytes(byte for byte in self.normal(text) if byte in single)

    def normal(self, text: str) -> bytes:
        """The bytes of a text as the model's normaliser leaves it."""
        if self.bare.normalizer is not None:
            text = self.bare.normalizer.normalize_str(text)
        return text.encode()

    def skeleton(self, ids: Iterable[int]) -> list[str]:
        """The added tokens among ``ids``, in order."""
        names = {token_id: token for token, token_id in self.added_tokens.items()}
        return [names[token_id] for token_id in ids if token_id in names]


def messages(items: str | Sequence[Item], instructions: str | None = None) -> list[Message]:
    """Chat messages for the items, by the mapping above."""
    found: list[Message] = []
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    building: Message | None = None  # the assistant message that the next item may join
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] != "assistant":
            role = "system" if item["role"] == "developer" else item["role"]
            found.append({"role": role, "content": _text(item["content"])})
            building = None
        elif kind == "function_call_output":
            found.append({"role": "tool", "content": _text(item["output"])})
            building = None
        else:
            turn = item.get("_turn")
            if building is None or building["_turn"] != turn or not _joins(building, kind):
                building = {"role": "assistant", "content": "", "_turn": turn}
                found.append(building)
            _join(building, kind, item)
    return [{k: v for k, v in message.items() if not k.startswith("_")} for message in found]


def _joins(message: Message, kind: str) -> bool:
    has_text, has_calls = "_text" in message, "tool_calls" in message
    if kind == "reasoning":
        return False
    if kind == "message":
        return not has_text and not has_calls
    return True


def _join(message: Message, kind: str, item: Item) -> None:
    if kind == "reasoning":
        message["reasoning_content"] = _text(item.get("content") or "") or _text(
            item.get("summary") or ""
        )
    elif kind == "message":
        message["content"] = _text(item["content"])
        message["_text"] = True
    elif kind == "function_call":
        call = {"name": item["name"], "arguments": item["arguments"]}
        message.setdefault("tool_calls", []).append({"type": "function", "function": call})
    else:
        raise ValueError(f"the naive model knows no item of type {kind!r}")


def _text(content: str | Sequence[Item]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["refusal" if part["type"] == "refusal" else "text"] for part in content)


def tool_definitions(tools: Sequence[Item] | None) -> list[Message] | None:
    """The tools as templates take them; None when there are none."""
    return [
        {
            "type": "function",
            "function": {
                key: tool[key]
                for key in ("name", "description", "parameters")
                if tool.get(key) is not None
            },
        }
        for tool in tools or ()
    ] or None


def render(
    model: Model,
    items: str | Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Item] | None = None,
    *,
    generate: bool = True,
    thinking: bool = True,
) -> str:
    """The prompt's text."""
    chat = messages(items, instructions)
    definitions = tool_definitions(tools)
    if not model.tool_branch:
        chat = _spell_out(chat, definitions)
        definitions = None
    return model.compiled.render(
        messages=chat,
        tools=definitions,
        add_generation_prompt=generate,
        enable_thinking=thinking,
        bos_token="",
        eos_token="",
    )


def encode(
    model: Model,
    items: str | Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Item] | None = None,
    *,
    generate: bool = True,
    thinking: bool = True,
    trust: Trust = "compat",
) -> list[int]:
    """The prompt's ids."""
    how = {"generate": generate, "thinking": thinking}
    if trust == "compat":
        return model.encode_text(render(model, items, instructions, tools, **how))
    masks = _Masks()
    masked = render(
        model,
        masks.items(items),
        None if instructions is None else masks.text(instructions),
        masks.tools(tools),
        **how,
    )
    ids: list[int] = []
    for piece in _split(masked, model.added_tokens):
        token_id = model.added_tokens.get(piece)
        ids += model.encode_bare(masks.fill(piece)) if token_id is None else [token_id]
    return ids


class _Masks:
    """Placeholders for what a client wrote: private-use characters, which no test text has."""

    def __init__(self) -> None:
        self._hidden: list[str] = []

    def text(self, text: str) -> str:
        core = text.strip("\n")
        if not core:
            return text
        lead = len(text) - len(text.lstrip("\n"))
        return text[:lead] + self._mask(core) + text[lead + len(core) :]

    def _mask(self, hidden: str) -> str:
        self._hidden.append(hidden)
        return f"\ue000{len(self._hidden) - 1}\ue001"

    def fill(self, masked: str) -> str:
        return re.sub("\ue000(\\d+)\ue001", lambda m: self._hidden[int(m[1])], masked)

    def items(self, items: str | Sequence[Item]) -> list[Item]:
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        masked: list[Item] = []
        for item in items:
            copy = dict(item)
            for key in ("content", "summary", "output"):
                if copy.get(key) is not None:
                    copy[key] = self.text(_text(copy[key]))
            for key in ("name", "arguments"):
                if copy.get(key):
                    copy[key] = self._mask(copy[key])
            masked.append(copy)
        return masked

    def tools(self, tools: Sequence[Item] | None) -> list[Item]:
        return [
            {key: self._json(tool.get(key)) for key in ("name", "description", "parameters")}
            for tool in tools or ()
        ]

    def _json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask(_tojson(value)[1:-1]) if value else value
        if isinstance(value, list):
            return [self._json(inner) for inner in value]
        if isinstance(value, dict):
            return {self._json(key): self._json(inner) for key, inner in value.items()}
        return value


def _split(text: str, added: Iterable[str]) -> list[str]:
    """The text cut around its added tokens, longest first where two begin together."""
    longest_first = sorted(added, key=len, reverse=True)
    pattern = "|".join(re.escape(token) for token in longest_first)
    return [piece for piece in re.split(f"({pattern})", text) if piece]


def _spell_out(chat: list[Message], definitions: list[Message] | None) -> list[Message]:
    """Tools, calls and outputs as text, for a template that knows only role and content."""
    spelled: list[Message] = []
    for message in chat:
        if message["role"] == "tool":
            wrapped = f"<tool_response>\n{message['content']}\n</tool_response>"
            if spelled and spelled[-1].get("_outputs"):
                spelled[-1]["content"] += "\n" + wrapped
            else:
                spelled.append({"role": "user", "content": wrapped, "_outputs": True})
            continue
        content = message["content"]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            content += "\n" if content else ""
            content += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": '
            content += f"{function['arguments']}}}\n</tool_call>"
        spelled.append({"role": message["role"], "content": content})
    if definitions:
        signatures = "".join("\n" + _tojson(definition) for definition in definitions)
        block = HERMES_HEAD + signatures + HERMES_TAIL
        if spelled and spelled[0]["role"] == "system":
            spelled[0] = {"role": "system", "content": f"{spelled[0]['content']}\n\n{block}"}
        else:
            spelled.insert(0, {"role": "system", "content": block})
    return spelled


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment() -> jinja2.Environment:
    """The sandbox in which ``transformers`` renders chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)  # noqa: DTZ005
    return environment


@cache
def byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(rest)
    }
