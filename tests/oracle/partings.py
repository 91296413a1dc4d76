"""Where an oracle and turnwire are known to part, as properties of a conversation.

``docs/families.md`` says why. The tests check that each is one: that conversations with no other
still differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oracle import vocabulary
from oracle.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

Partings = dict[str, Callable[[Asked], bool]]


def spelled_otherwise(asked: Asked) -> bool:
    """vLLM reads arguments and prints the object; we keep what the client wrote."""
    texts = [call["arguments"] for call in asked.calls if _object(call["arguments"]) is not None]
    return any(json.dumps(_object(text), ensure_ascii=False) != text for text in texts)


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
    """Integers past 64 bits are floats to vLLM, 1e-07 is 1e-7, and 1e+22 may be all its digits."""
    written = [*(call["arguments"] for call in asked.calls), json.dumps(asked.tools)]
    return any(re.search(r"\b\d{20,}|\de[-+]?\d", text) for text in written)


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


def nobody_asks(asked: Asked) -> bool:
    """Templates of Qwen 3.5 and 3.6 refuse it."""
    return "user" not in asked.roles


def several_systems(asked: Asked) -> bool:
    """The template joins system messages at its top, the encoder leaves them where they are."""
    return "system" in asked.roles[1:]


def tools_alone(asked: Asked) -> bool:
    """DeepSeek's encoder writes two newlines before tools, be there a system message or not."""
    return bool(asked.tools) and not (
        asked.chat[0]["role"] == "system" and asked.chat[0]["content"]
    )


def calls_undeclared(asked: Asked) -> bool:
    """The template keeps reasoning once a tool has answered, the encoder where there are tools."""
    return bool(asked.calls) and not asked.tools


def empty_reasoning(asked: Asked) -> bool:
    """To vLLM that is none, so that the template looks for some in the text."""
    return any(m.get("reasoning_content") == "" and "</think>" in m["content"] for m in asked.chat)


def thinks_in_text(asked: Asked) -> bool:
    """Templates take what stands before it for reasoning; `renderers` does not always."""
    return any(m["role"] == "assistant" and "</think>" in m["content"] for m in asked.chat)


def empty_answer(asked: Asked) -> bool:
    """vLLM drops an empty answer, and the `# Instructions` of an empty developer's message."""
    empty = (m["role"] for m in asked.chat if not m["content"] and not m.get("tool_calls"))
    return not {"assistant", "system"}.isdisjoint(empty)


def reasoned_preamble(asked: Asked) -> bool:
    """vLLM writes a text beside calls before the reasoning that led to it."""
    return any(
        m.get("reasoning_content") and m["content"] and m.get("tool_calls") for m in asked.chat
    )


def several_calls(asked: Asked) -> bool:
    """Templates of GLM begin a line before each; `renderers` does not."""
    return any(len(message.get("tool_calls", ())) > 1 for message in asked.chat)


def no_arguments(asked: Asked) -> bool:
    """vLLM writes an empty object for them."""
    return any(not call["arguments"] for call in asked.calls)


def spells_control(asked: Asked) -> bool:
    """For gpt-oss vLLM takes all of a text for text, as strict trust does."""
    written = [*_strings(asked.chat), *_strings(asked.tools)]
    controls = vocabulary.generic("gpt-oss").controls
    return any(control in text for control in controls for text in written)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value, *value.values()])
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


OBJECTS: Partings = {"arguments that are no object": no_object}
WRITTEN: Partings = {
    "numbers that serde_json spells otherwise": numbers,
    "a tool without description or parameters": bare_tool,
}
COMMON: Partings = OBJECTS | WRITTEN
FIRST: Partings = {"an answer that no question precedes": answer_first}
SYSTEMS: Partings = {"several system messages": several_systems}
UNASKED: Partings = {"a conversation in which nobody asks": nobody_asks}
CALLS: Partings = {"several calls in one message": several_calls}
SPELLED: Partings = {"arguments spelled otherwise than Python's": spelled_otherwise}
THINKS: Partings = {"a `</think>` in an answer's text": thinks_in_text}
EMPTY: Partings = {"empty reasoning beside a `</think>`": empty_reasoning}
DEEPSEEK: Partings = {
    "an answer behind an answer": answer_behind_answer,
    **FIRST,
    **SYSTEMS,
    "tools, and no system message": tools_alone,
    "calls, and no tools": calls_undeclared,
}
HARMONY: Partings = {
    "an empty answer, or developer's message": empty_answer,
    "reasoning and a text beside calls": reasoned_preamble,
    "a call without arguments": no_arguments,
}
CONTROLS: Partings = {"a control token in a text": spells_control}
