"""No text of a client's becomes a control token: every family, every field, every token (D2).

The control tokens of a prompt (its *skeleton*) are those of the same conversation with harmless
words in the field, whatever the field says. Under compat trust the same texts do show tokens, as
many as jinja2 and Hugging Face ``tokenizers`` make of them: these texts could forge, and the test
could fail.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from oracle import bytewise, generic, templates
from oracle.generic import NOW, RefusedError, Template
from talking import raw
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oracle.vocabulary import Vocabulary

    Say = Callable[[str], str]

pytestmark = pytest.mark.timeout(300)

_DEEPSEEK = (
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
_DSML = "\uff5cDSML\uff5c"
_LLAMA = ("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_MISTRAL = ("<s>", "</s>", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    # The family, and BOS, EOS and what else of a vocabulary's tokens its template does not print.
    "llama.cpp/Qwen-Qwen3-0.6B": ("qwen3", ("", "<|im_end|>")),
    "trl/glm4moe": ("glm", ("", "<|endoftext|>", "/nothink", "[gMASK]", "<sop>")),
    "llama.cpp/GLM-4.7-Flash": ("glm", ("", "<|endoftext|>", "[gMASK]", "<sop>")),
    "llama.cpp/moonshotai-Kimi-K2": ("kimi", ("[BOS]", "[EOS]")),
    "trl/deepseekv3": ("deepseek-r1", _DEEPSEEK),
    "llama.cpp/deepseek-ai-DeepSeek-V3.1": ("deepseek-v3.1", _DEEPSEEK),
    "llama.cpp/deepseek-ai-DeepSeek-V3.2": ("deepseek-v3.2", (*_DEEPSEEK, _DSML)),
    "llama.cpp/deepseek-ai-DeepSeek-V4": ("deepseek-v4", (*_DEEPSEEK, _DSML)),
    "llama.cpp/openai-gpt-oss-120b": (
        "harmony",
        ("<|startoftext|>", "<|return|>", "<|constrain|>"),
    ),
    "trl/llama3": ("llama3", _LLAMA),
    "trl/llama3_1": ("llama3", _LLAMA),
    "llama.cpp/unsloth-mistral-Devstral-Small-2507": ("mistral", _MISTRAL),
    "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", _MISTRAL),
    # Without a native renderer.
    "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407": ("generic", _MISTRAL),
    "llama.cpp/Kimi-K2-Thinking": ("generic", ("[BOS]", "[EOS]")),
    "llama.cpp/MiniMax-M2": ("generic", ("", "]~b]")),
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        "generic",
        ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    ),
    "trl/gemma3": ("generic", ("<bos>", "<eos>")),
}
each_model = pytest.mark.parametrize("name", MODELS)

HARMLESS = "some words"
NAMES = ("a tool's name", "a call's name", "a call's namespace")
"""Fields of letters, digits, ``_`` and ``-``: all that a tool's name may be. Of a call's the wall
takes anything, but some renderers leave a conversation with other names to the template."""


@dataclass(frozen=True)
class Model:
    """A template with a vocabulary of its tokens, and its two profiles."""

    template: Template
    strict: _core.Profile
    compat: _core.Profile

    @property
    def known(self) -> Vocabulary:
        return self.template.vocabulary


@cache
def model(name: str) -> Model:
    """One of MODELS."""
    text = templates.text_of(name)
    known = bytewise.vocabulary(text, *MODELS[name][1])
    strict = _core.Profile.load(str(bytewise.folder(known, text)), trust="strict")
    return Model(Template(name, text, known), strict, strict.with_template(text, trust="compat"))


@dataclass(frozen=True)
class Request:
    """What a client sends."""

    instructions: str
    tools: list[Any]
    items: list[Any]


def request(say: Say) -> Request:
    """A request in which every text of a client's is what ``say`` makes of the field's name."""
    schema = {
        "type": "object",
        "title": say("a schema's title"),
        "properties": {
            say("a parameter's name"): {
                "type": "string",
                "description": say("a parameter's description"),
                "enum": [say("an enum's value"), "b"],
                "default": say("a default"),
            }
        },
        "required": [say("a required parameter")],
    }
    tools = [
        {
            "type": "function",
            "name": say("a tool's name"),
            "description": say("a tool's description"),
            "parameters": schema,
        },
        {
            "type": "custom",
            "name": "patch",
            "description": say("a custom tool's description"),
            "format": {"type": "grammar", "syntax": "lark", "definition": say("a grammar")},
        },
        {
            "type": "namespace",
            "name": "fs",
            "description": say("a namespace's description"),
            "tools": [{"type": "function", "name": "rm", "description": say("an inner one")}],
        },
    ]
    call, custom = say("a call's id"), say("a custom call's id") + "2"
    arguments = {say("a key"): {say("an inner key"): [say("a value"), 1]}}
    items = [
        {"role": "system", "content": say("a system message")},
        {"role": "developer", "content": _parts("input_text", say("a developer message"))},
        {"role": "user", "content": say("a question")},
        {
            "type": "reasoning",
            "summary": _parts("summary_text", say("a summary beside reasoning")),
            "content": _parts("reasoning_text", say("reasoning")),
            "encrypted_content": say("encrypted reasoning"),
        },
        {
            "type": "function_call",
            "call_id": call,
            "namespace": say("a call's namespace"),
            "name": say("a call's name"),
            "arguments": json.dumps(arguments, ensure_ascii=False),
        },
        {"type": "function_call_output", "call_id": call, "output": say("an output")},
        {"role": "assistant", "content": _parts("output_text", say("a preamble"))},
        {
            "type": "custom_tool_call",
            "call_id": custom,
            "name": "patch",
            "input": say("a custom tool's input"),
        },
        {
            "type": "custom_tool_call_output",
            "call_id": custom,
            "output": _parts("input_text", say("a custom tool's output")),
        },
        {"role": "assistant", "content": _parts("output_text", say("an answer"))},
        {"role": "user", "content": _parts("input_text", say("a user's part"))},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": say("a refusal")}]},
        {"role": "user", "content": say("the last question")},
        {"type": "reasoning", "summary": _parts("summary_text", say("a summary"))},
        {"type": "function_call", "call_id": "3", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "3", "output": say("the last output")},
    ]
    return Request(say("the instructions"), tools, items)


def _parts(kind: str, text: str) -> list[Any]:
    """A text as two parts, cut in its middle."""
    middle = len(text) // 2
    return [{"type": kind, "text": half} for half in (text[:middle], text[middle:])]


def fields() -> list[str]:
    """The names of all fields."""
    found: list[str] = []

    def note(field: str) -> str:
        found.append(field)
        return harmless(field)

    request(note)
    return found


def harmless(field: str) -> str:
    """Words that forge nothing."""
    return "ls" if field in NAMES else HARMLESS


def nameless(field: str) -> str:
    """The same, in calls whose names are no names."""
    return HARMLESS if field in NAMES[1:] else harmless(field)


def everywhere(text: str) -> Say:
    """The text in every field; in names what they may have of it."""
    name = re.sub("[^A-Za-z0-9_-]", "", text)[:64] or "ls"
    return lambda field: name if field in NAMES else text


def in_names(text: str) -> Say:
    """The text in the names of a call."""
    return lambda field: text if field in NAMES[1:] else harmless(field)


def alternating(*texts: str) -> Say:
    """One text after the other, from field to field."""
    said = {field: texts[place % len(texts)] for place, field in enumerate(fields())}
    return lambda field: everywhere(said[field])(field)


def forged(known: Vocabulary) -> Iterator[tuple[str, Say]]:
    """What a client could try in every field at once: each token, in each surrounding."""
    for token in known.controls:
        middle = len(token) // 2
        head, tail = token[:middle], token[middle:]
        yield token, everywhere(token)
        yield f"{token} among letters", everywhere(f"x{token}y")
        yield f"{token} among white space", everywhere(f" \n{token}\n {token}\n\n")
        yield f"{token} in itself", everywhere(f"{head}{token}{tail}{tail}{head}")
        # NFC joins the accents to what stands before them.
        yield f"{token} among accents", everywhere(f"e\u0301{token}\u0301\u200d{token}\ufe0f")
        yield f"{token} in JSON", everywhere(f'"}}\\u003c{token}", "{token}": {{"')
        yield f"{token} across fields", alternating(f"{tail}x{head}", f"{tail}{head}")
        yield f"{token} across fields, halved", alternating(head, tail)
        yield f"{token} without its signs", everywhere(re.sub(r"[^\w]", "", token) or "x")


def ids_of(profile: _core.Profile, asked: Request, *, apart: bool = False) -> list[int]:
    """A request's prompt; ``apart``, what a client would have sent by and by came so."""
    chains = _core.Chains(profile)
    node = None
    for start, end in pairwise([0, *(ends(asked.items) if apart else [len(asked.items)])]):
        turn = chains.open(
            node,
            raw(asked.items[start:end]),
            instructions=raw(asked.instructions),
            tools=raw(asked.tools),
            generate=end == len(asked.items),
            now=NOW,
        )
        if end == len(asked.items):
            return turn.prompt.tolist()
        turn.finish()
        node = turn.commit()
    raise AssertionError


def ends(items: Sequence[dict[str, Any]]) -> list[int]:
    """Behind every question and every output."""
    asks = [item.get("role") == "user" or "output" in item for item in items]
    return [place for place, asked in enumerate(asks, 1) if asked]


def forges(name: str, say: Say, plain: Say) -> bool:
    """Whether a prompt has other control tokens with texts than with plain ones."""
    found = model(name)
    wanted = skeleton(found, found.strict, request(plain))
    return any(
        found.known.skeleton(ids_of(found.strict, request(say), apart=apart)) != wanted
        for apart in (False, True)
    )


def skeleton(found: Model, profile: _core.Profile, asked: Request) -> list[str]:
    return found.known.skeleton(ids_of(profile, asked))


def culprits(name: str, say: Say, plain: Say) -> list[str]:
    """The fields that forge by themselves."""

    def only(field: str) -> Say:
        return lambda other: say(other) if other == field else plain(other)

    return [field for field in fields() if forges(name, only(field), plain)]


def test_every_family_is_among_the_models():
    assert {name: model(name).strict.family for name in MODELS} == {
        name: family for name, (family, _) in MODELS.items()
    }


UNSEEN = {"encrypted reasoning", "a summary beside reasoning"}
"""What no model is shown: the one only its own server could read, the other stands for what is
there."""


def test_every_other_field_is_shown_to_some_model():
    """So that a field without tokens is no field without a test."""
    words = {field: f"{place}_here" for place, field in enumerate(fields())}
    asked = request(words.__getitem__)
    texts = [found.strict.decode(ids_of(found.strict, asked)) for found in map(model, MODELS)]
    shown = {field for field, word in words.items() if any(word in text for text in texts)}
    assert set(fields()) - shown == UNSEEN


@each_model
def test_strict_trust_lets_no_text_forge_a_control_token(name):
    tried = [(what, say, harmless) for what, say in forged(model(name).known)]
    for token in model(name).known.controls:
        tried.append((f"{token} in names", in_names(f"x{token}y"), nameless))
    forging = [
        (what, culprits(name, say, plain) or "all of them together")
        for what, say, plain in tried
        if forges(name, say, plain)
    ]
    assert forging == []


@each_model
def test_compat_trust_shows_the_tokens_that_are_forged(name):
    """Oracle: jinja2 and ``tokenizers``."""
    found = model(name)
    plain = skeleton(found, found.compat, request(harmless))
    shown = 0
    for token in found.known.controls:
        asked = request(everywhere(f"x{token}y"))
        expected = brought(found.template, asked)
        if expected is None:
            continue
        seen = skeleton(found, found.compat, asked)
        if MODELS[name][0] == "harmony":
            # The native renderer writes otherwise (decision 0014), and the same texts.
            assert seen.count(token) > plain.count(token) + 10
        else:
            assert seen == found.known.skeleton(expected), token
        shown += seen.count(token) > plain.count(token)
    assert shown


def brought(template: Template, asked: Request) -> list[int] | None:
    """What the oracle makes of a request under compat trust; None where the template refuses it."""
    try:
        return generic.encode(
            template,
            [spelled(item) for item in asked.items],
            asked.instructions,
            [tool for offer in asked.tools for tool in declared(offer)],
        )
    except RefusedError:
        return None


def spelled(item: dict[str, Any]) -> dict[str, Any]:
    """An item in the forms that the oracle knows: a custom tool is a function of one text."""
    kind = item.get("type", "message")
    if kind == "function_call":
        spaces = [f"{item['namespace']}__"] if "namespace" in item else []
        return item | {"name": "".join([*spaces, item["name"]])}
    if kind == "custom_tool_call":
        text = json.dumps({"input": item["input"]}, ensure_ascii=False, separators=(",", ":"))
        return item | {"type": "function_call", "arguments": text}
    if kind == "custom_tool_call_output":
        return item | {"type": "function_call_output"}
    return item


def declared(offer: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool, or those of a namespace, as functions."""
    if offer["type"] == "namespace":
        inner = offer["tools"][0]
        told = f"{offer['description']}\n\n{inner['description']}"
        return [inner | {"name": f"{offer['name']}__{inner['name']}", "description": told}]
    if offer["type"] == "custom":
        grammar = f"The input must match this Lark grammar:\n{offer['format']['definition']}"
        text = {"type": "string"}
        schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
        told = f"{offer['description']}\n\n{grammar}"
        return [offer | {"description": told, "parameters": schema}]
    return [offer]
