"""Prompts against vLLM's own renderer (``oracle.vllm``), id for id, under compat trust.

``make vllm-oracle`` runs this; the test suite does not. A conversation is either equal or one that
the two are known to part on: :data:`PARTINGS` names every such reason, ``docs/families.md`` says
why, and each must still be one. Conversations are random, by seeds, and come whole or in turns.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from counting import Compared
from oracle import naive, templates, vllm, vocabulary
from oracle.generic import Template
from oracle.growing import Growing
from talking import common, profile_of, raw
from turnwire import _core
from turnwire.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oracle.naive import Item

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3000)]

COUNT = int(os.environ.get("ORACLE_CONVERSATIONS", "2000"))


@dataclass(frozen=True)
class Asked:
    """A conversation that a client brings."""

    items: list[Item]
    cuts: tuple[int, ...]
    """Item counts at which a turn ends that only warms up."""
    instructions: str | None
    tools: list[Item]
    thinking: bool

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item["type"] == "function_call"]

    @property
    def texts(self) -> str:
        """Everything that a client wrote, as one text."""
        return json.dumps([self.items, self.instructions, self.tools], ensure_ascii=False)

    @property
    def roles(self) -> list[str]:
        chat = naive.messages(self.items, self.instructions)
        return [message["role"] for message in chat]


# --- Where the two are known to part --------------------------------------------------------


def spelled_otherwise(asked: Asked) -> bool:
    """vLLM reads arguments and prints the object; we keep what the client wrote."""
    return any(_respelled(call["arguments"]) != call["arguments"] for call in asked.calls)


def _respelled(text: str) -> str | None:
    value = _object(text)
    return None if value is None else json.dumps(value, ensure_ascii=False)


def no_object(asked: Asked) -> bool:
    """vLLM refuses arguments that are no JSON object."""
    return any(_object(call["arguments"]) is None for call in asked.calls)


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def numbers(asked: Asked) -> bool:
    """Integers past 64 bits are floats to vLLM, and 1e-07 is 1e-7."""
    written = [*(call["arguments"] for call in asked.calls), json.dumps(asked.tools)]
    return any(re.search(r"\b\d{20,}|\de-0?\d\b", text) for text in written)


def bare_tool(asked: Asked) -> bool:
    """vLLM writes `null` for a description or parameters that a tool does not have."""
    return any(not isinstance(t.get(k), (str, dict)) for t in asked.tools for k in _DESCRIBED)


_DESCRIBED = ("description", "parameters")


def answer_behind_answer(asked: Asked) -> bool:
    """DeepSeek's encoder opens an answer behind a question only, also the one that is asked for."""
    return ("assistant", "assistant") in pairwise([*asked.roles, "assistant"])


def answer_first(asked: Asked) -> bool:
    """So it does where an answer begins the conversation."""
    spoken = [role for role in asked.roles if role != "system"]
    return spoken[:1] == ["assistant"] or ("system", "assistant") in pairwise(asked.roles)


def several_systems(asked: Asked) -> bool:
    """The template joins system messages at its top, the encoder leaves them where they are."""
    return "system" in asked.roles[1:]


def tools_alone(asked: Asked) -> bool:
    """DeepSeek's encoder writes two newlines before tools, be there a system message or not."""
    chat = naive.messages(asked.items, asked.instructions)
    return bool(asked.tools) and not (chat[0]["role"] == "system" and chat[0]["content"])


def calls_undeclared(asked: Asked) -> bool:
    """The template keeps reasoning once a tool has answered, the encoder where tools are declared."""
    return bool(asked.calls) and not asked.tools


def empty_reasoning(asked: Asked) -> bool:
    """To vLLM that is none, so that the template looks for some in the text."""
    chat = naive.messages(asked.items, asked.instructions)
    return any(m.get("reasoning_content") == "" and "</think>" in m["content"] for m in chat)


SPELLING, OBJECTS = "arguments spelled otherwise than Python's", "arguments that are no object"
COMMON: dict[str, Callable[[Asked], bool]] = {
    OBJECTS: no_object,
    "numbers that serde_json spells otherwise": numbers,
    "a tool without description or parameters": bare_tool,
}
DEEPSEEK = {
    "an answer behind an answer": answer_behind_answer,
    "an answer that no question precedes": answer_first,
    "several system messages": several_systems,
    "tools, and no system message": tools_alone,
    "calls, and no tools": calls_undeclared,
}


@dataclass(frozen=True)
class Model:
    """A model as vLLM serves it."""

    template: str
    vocabulary: str
    model_type: str
    parser: str
    native: bool = False
    partings: tuple[dict[str, Callable[[Asked], bool]], ...] = (COMMON,)
    thinks: bool = False
    effort: str | None = None
    """Ours, for a model that thinks."""
    told: tuple[tuple[str, Any], ...] = ()
    """vLLM's for that."""

    @property
    def used(self) -> Template:
        text = templates.text_of(self.template)
        return Template(self.template, text, vocabulary.generic(self.vocabulary))


MODELS = {
    "Qwen 3": Model(
        "llama.cpp/Qwen-Qwen3-0.6B",
        "qwen3",
        "qwen3",
        "hermes",
        partings=(
            COMMON,
            {SPELLING: spelled_otherwise, 'empty reasoning beside a `</think>`': empty_reasoning},
        ),
        thinks=True,
    ),
    "Llama 3.1": Model(
        "llama.cpp/meta-llama-Llama-3.1-8B-Instruct", "llama3.1-named", "llama", "llama3_json"
    ),
    "DeepSeek V4": Model(
        "llama.cpp/deepseek-ai-DeepSeek-V4",
        "deepseek-v4",
        "deepseek_v4",
        "deepseek_v4",
        native=True,
        partings=(COMMON, DEEPSEEK),
        thinks=True,
        effort="medium",
        told=(("reasoning_effort", "low"),),
    ),
}


def conversations(model: Model) -> Iterator[Asked]:
    """Without end, the same on every run."""
    known = vocabulary.generic(model.vocabulary)
    for seed in range(1 << 30):
        random = Random(f"vllm {model.template} {seed}")
        growing = Growing(random, known, dumped=random.random() < 0.95)
        if random.random() < 0.95:
            growing._arguments = [t for t in growing._arguments if not re.search("dup|big|1e-", t)]
            growing._odd = growing._arguments
        tools = growing.tools()
        if random.random() < 0.95:
            for tool in tools:
                tool["description"] = tool.get("description") or "Does it."
                tool["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        steps = [growing.any().items for _ in range(random.randint(1, 5))]
        if random.random() < 0.7:
            steps.insert(0, growing.user().items)
        if random.random() < 0.01:
            steps.append(({"type": "message", "role": "user", "content": growing.text(900, 400)},))
        items: list[Item] = []
        cuts = set()
        for step in steps:
            cuts.add(len(items))
            items += step
        yield Asked(
            items,
            tuple(sorted(c for c in cuts if c and random.random() < 0.3)),
            growing.instructions(),
            tools,
            random.random() < 0.7,
        )


def ours(profile: _core.Profile, asked: Asked, effort: str | None) -> list[int] | None:
    """turnwire's ids; None where the template refuses the conversation."""
    chains = _core.Chains(profile)
    how: dict[str, Any] = {"instructions": raw(asked.instructions), "tools": raw(asked.tools)}
    how |= {"effort": effort, "now": int(time.time())}
    node = None
    edges = [0, *asked.cuts, len(asked.items)]
    for start, end in pairwise(edges):
        last = end == len(asked.items)
        try:
            turn = chains.open(node, raw(asked.items[start:end]), generate=last, **how)
        except InvalidValueError:
            if last:
                return None
            return ours(profile, Asked(asked.items, (), *_rest(asked)), effort)
        if last:
            return turn.prompt.tolist()
        turn.finish()
        node = turn.commit()
    raise AssertionError


def _rest(asked: Asked) -> tuple[str | None, list[Item], bool]:
    return asked.instructions, asked.tools, asked.thinking


@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_vllms(name):
    model = MODELS[name]
    template = model.used
    profile = profile_of(template, "compat")
    assert profile.not_native is None
    partings = {k: v for known in model.partings for k, v in known.items()}
    counts: Counter[str] = Counter()
    live: Counter[str] = Counter()
    with vllm.Renderer(template, model.model_type, model.parser, native=model.native) as renderer:
        for asked in conversations(model):
            told = {"enable_thinking": asked.thinking, "thinking": asked.thinking}
            told = {} if not model.thinks else told | (dict(model.told) if asked.thinking else {})
            found = ours(profile, asked, model.effort if asked.thinking else "none" if model.thinks else None)
            try:
                theirs = renderer.encode(asked.items, asked.instructions, asked.tools, **told)
            except vllm.RefusedError as error:
                theirs, words = None, str(error)
            reasons = [reason for reason, holds in partings.items() if holds(asked)]
            if not reasons and found != theirs:
                _differ(template, asked, found, theirs, "" if theirs else words)
            if found is None and theirs is None:
                counts["refused by both"] += 1
            elif not reasons:
                Compared(f"vllm-rs {vllm.VERSION}", name)()
                counts["equal"] += 1
            for reason in reasons:
                counts[reason] += 1
                live[reason] += reasons == [reason] and found != theirs
            if counts["equal"] == COUNT:
                break
    print(f"\n{name}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    print({r: live[r] for r in partings})
    assert all(live[reason] for reason in partings), live


def _differ(template: Template, asked: Asked, found: Any, theirs: Any, words: str) -> None:
    known = template.vocabulary
    shown = f"\n  {asked!r}"[:6000]
    if found is None or theirs is None:
        pytest.fail(f"refused by {'us' if found is None else 'vLLM: ' + words}{shown}", pytrace=False)
    at = common(found, theirs)
    pieces = [
        known.spell(ids).decode(errors="replace")
        for ids in (theirs[max(0, at - 20) : at], found[at : at + 20], theirs[at : at + 20])
    ]
    pytest.fail(
        f"ids part at {at} behind {pieces[0]!r}\n  ours:   {pieces[1]!r}\n"
        f"  vLLM's: {pieces[2]!r}{shown}",
        pytrace=False,
    )
