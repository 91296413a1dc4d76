"""Random conversations, as hypothesis strategies: what agents send, and what tries to break cuts.

A conversation is a list of items whose calls and outputs pair up, with instructions, tools and a
way to split it into turns. Content comes plain (no added token of any model spelled in it) or
adversarial.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = dict[str, Any]

# Every added token of the test models that a template writes or a user may spell, and halves of
# them that would join up if two pieces were encoded as one.
SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|vision_start|>",
    "<|fim_prefix|>",
    "<file_sep>",
    "<jupyter_text>",
)
HALVES = ("<|im_", "end|>", "<", "|>", "<th", "ink>", "</", "tool_call>", "<|", "<tool_")

PLAIN = (
    "hello",
    "The quick brown fox",
    "def f(x):\n    return x + 1\n",
    '{"path": "src/main.rs", "line": 12}',
    "I'll don't WE'RE it's",
    "\n",
    "\n\n",
    "  \n",
    "\r\n",
    "\t\t",
    " ",
    "    ",
    " 1",
    "12 345",
    "3.14159 a1b2 7 8",
    "e\u0301",  # a letter and a combining mark: NFC joins them
    "\u0301",  # a mark with nothing before it
    "\u1100\u1161\u11a8",  # Hangul jamo: NFC makes one syllable
    "\u212b\ufb01\u2126",  # NFC changes the first and the last
    "中文字符",
    "日本語 テスト",
    "한국어",
    "🙂👩‍👩‍👧‍👦🇩🇪",
    "\U0001f9d1\u200d\U0001f4bb\ufe0f",
    "שלום مرحبا",
    "\u00a0\u3000\u2028\u2029\u0085",
    "\u0000\u0001\u007f",
    "…—“”",
    "$%^&*()[]{};:'\"\\",
    "\\n \\u0041 \\",
)

_RUNS = st.tuples(
    st.sampled_from(("a", " ", "\n", "=", "9", "é", "中", "ab ", "\r\n", "-+")),
    st.sampled_from((3, 17, 64, 300, 2000)),
).map(lambda pair: pair[0] * pair[1])


def texts(*, adversarial: bool, min_pieces: int = 0, max_pieces: int = 6) -> st.SearchStrategy[str]:
    """A text put together from pieces; may be empty."""
    pieces = [st.sampled_from(PLAIN), st.sampled_from(PLAIN), _WORDS, _RUNS]
    if adversarial:
        pieces += [st.sampled_from(SPECIALS), st.sampled_from(SPECIALS), st.sampled_from(HALVES)]
    joined = st.lists(st.one_of(pieces), min_size=min_pieces, max_size=max_pieces).map("".join)
    return joined if adversarial else joined.filter(_spells_no_special)


def _spells_no_special(text: str) -> bool:
    return not any(special in text for special in SPECIALS)


_WORDS = st.text(
    st.characters(exclude_categories=("Cs",)),  # half a surrogate pair is no text
    min_size=1,
    max_size=12,
)

_NAMES = st.sampled_from(("read_file", "shell", "get-weather", "a", "mcp__x__search", "f_1"))

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from((0.5, 1e-07, 1e16, 1e22, 1.0, -0.0, 123456789.125)),
)


def _schemas(adversarial: bool) -> st.SearchStrategy[Any]:
    words = texts(adversarial=adversarial, max_pieces=2)
    values = st.recursive(
        _SCALARS | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=6,
    )
    properties = st.dictionaries(words, st.dictionaries(words, values, max_size=3), max_size=3)
    return properties.map(lambda found: {"type": "object", "properties": found, "required": []})


@st.composite
def tool_lists(draw: st.DrawFn, *, adversarial: bool) -> list[Item]:
    """Function tools with distinct names; every optional key sometimes there, sometimes null."""
    tools = []
    for name in draw(st.lists(_NAMES, max_size=3, unique=True)):
        tool: Item = {"type": "function", "name": name}
        if draw(st.booleans()):
            tool["description"] = draw(st.none() | texts(adversarial=adversarial, max_pieces=3))
        tool["parameters"] = draw(st.none() | _schemas(adversarial))
        if draw(st.booleans()):
            tool["strict"] = draw(st.sampled_from((None, False)))
        tools.append(tool)
    return tools


@dataclass(frozen=True)
class Conversation:
    """Items with what surrounds them. ``cuts`` are item counts at which a turn ends."""

    items: tuple[Item, ...]
    instructions: str | None
    tools: tuple[Item, ...]
    cuts: tuple[int, ...]
    thinking: bool

    @property
    def turns(self) -> list[list[Item]]:
        """The items, turn by turn. None is empty but perhaps the last."""
        edges = [0, *self.cuts, len(self.items)]
        return [list(self.items[a:b]) for a, b in pairwise(edges)]

    def __repr__(self) -> str:  # what hypothesis prints: JSON that can be pasted
        return (
            f"Conversation(thinking={self.thinking}, cuts={self.cuts}, "
            f"instructions={self.instructions!r},\n  tools={json.dumps(self.tools)},\n  items=["
            + "".join(f"\n    {json.dumps(item)}," for item in self.items)
            + "])"
        )


@st.composite
def _contents(draw: st.DrawFn, text: str, part_type: str) -> Any:
    """A text as a string, or as an array of parts that join to it."""
    if draw(st.booleans()):
        return text
    at = draw(st.integers(0, len(text)))
    halves = [text[:at], text[at:]] if draw(st.booleans()) else [text]
    return [{"type": part_type, "text": half} for half in halves]


@st.composite
def _said(draw: st.DrawFn, role: str, *, adversarial: bool) -> Item:
    text = draw(texts(adversarial=adversarial))
    part_type = "output_text" if role == "assistant" else "input_text"
    item: Item = {"role": role, "content": draw(_contents(text, part_type))}
    if draw(st.booleans()):
        item["type"] = "message"
    return item


@st.composite
def _thought(draw: st.DrawFn, *, adversarial: bool) -> Item:
    text = draw(texts(adversarial=adversarial))
    item: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    if draw(st.booleans()):
        item["content"] = [{"type": "reasoning_text", "text": text}]
    else:
        item["summary"] = [{"type": "summary_text", "text": text}]
    return item


@st.composite
def _answered(draw: st.DrawFn, serial: int, *, adversarial: bool) -> list[Item]:
    """What an assistant did, as a client that keeps its own history sends it: with every call
    answered, in any order."""
    items: list[Item] = []
    if draw(st.booleans()):
        items.append(draw(_thought(adversarial=adversarial)))
    if draw(st.booleans()):
        items.append(draw(_said("assistant", adversarial=adversarial)))
    calls, outputs = [], []
    for number in range(draw(st.integers(0, 3))):
        call_id = f"call_{serial}_{number}"
        arguments = draw(
            st.sampled_from(("{}", '{"b":1,  "a":2}', '{"path": "a.py"}', "not json", ""))
            | texts(adversarial=adversarial, max_pieces=2)
        )
        calls.append(
            {
                "type": "function_call",
                "call_id": call_id,
                "name": draw(_NAMES),
                "arguments": arguments,
            }
        )
        output = draw(texts(adversarial=adversarial))
        outputs.append(
            {
                "type": "function_call_output",
                "call_id": call_id,
                "output": draw(_contents(output, "input_text")),
            }
        )
    if draw(st.booleans()):
        items += calls + draw(st.permutations(outputs))
    else:
        items += [item for pair in zip(calls, outputs, strict=True) for item in pair]
    return items


@st.composite
def conversations(
    draw: st.DrawFn, *, adversarial: bool = False, max_blocks: int = 6
) -> Conversation:
    """A conversation that a client may legally send, in one turn or split into several.

    It never ends in an assistant's item: what a template makes of an assistant's *last* message is
    tested on its own (Qwen3 writes an empty think block there and takes it back later). Turns may
    end in one, and the next may go on with the same message; none leaves a call open.
    """
    items: list[Item] = []
    kinds = st.sampled_from(("user", "user", "assistant", "assistant", "developer", "system"))
    for serial in range(draw(st.integers(0, max_blocks))):
        kind = draw(kinds)
        if kind == "assistant":
            items += draw(_answered(serial, adversarial=adversarial))
        else:
            items.append(draw(_said(kind, adversarial=adversarial)))
    if not items or is_assistants(items[-1]):
        items.append(draw(_said("user", adversarial=adversarial)))
    places = settled(items)[:-1]
    cuts = draw(st.sets(st.sampled_from(places), max_size=4)) if places else set()
    return Conversation(
        items=tuple(items),
        instructions=draw(st.none() | texts(adversarial=adversarial)),
        tools=tuple(draw(tool_lists(adversarial=adversarial))),
        cuts=tuple(sorted(cuts)),
        thinking=draw(st.booleans()),
    )


def is_assistants(item: Item) -> bool:
    """Whether the model said it."""
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call")


def settled(items: Sequence[Item]) -> list[int]:
    """The counts of leading items after which no call waits for its output."""
    waiting: set[str] = set()
    places = []
    for count, item in enumerate(items, 1):
        if item.get("type") == "function_call":
            waiting.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            waiting.discard(item["call_id"])
        if not waiting:
            places.append(count)
    return places


@dataclass(frozen=True)
class Answer:
    """What a model says in a turn, in its family's form."""

    reasoning: str | None
    text: str | None
    calls: tuple[tuple[str, str], ...]

    @property
    def output(self) -> bytes:
        """As ``Profile.encode_output`` takes it."""
        said: dict[str, Any] = {}
        if self.reasoning is not None:
            said["reasoning"] = self.reasoning
        if self.text is not None:
            said["text"] = self.text
        if self.calls:
            said["calls"] = [{"name": name, "arguments": raw} for name, raw in self.calls]
        return json.dumps(said).encode()


_ARGUMENTS = st.sampled_from(
    (
        "{}",
        '{"b":1,  "a":2}',
        '{"path": "src/a b.py", "lines": [1, 2.50, 1e3]}',
        '{"nested": {"s": "} \\" {", "n": null, "é": "\\u00e9\\n"}}',
        '{"text": "中文 🙂 e\u0301"}',
    )
)


@st.composite
def answers(draw: st.DrawFn, *, thinks: bool) -> Answer:
    """An answer that says something. Its texts are trimmed, and spell no marker of any family."""

    def said(pieces: int) -> str:
        text = draw(texts(adversarial=False, min_pieces=1, max_pieces=pieces)).strip()
        return text or "said"

    shape = draw(st.sampled_from(("text", "calls", "both")))
    calls = st.tuples(_NAMES, _ARGUMENTS)
    return Answer(
        reasoning=said(4) if thinks and draw(st.booleans()) else None,
        text=said(6) if shape != "calls" else None,
        calls=tuple(draw(st.lists(calls, min_size=1, max_size=3))) if shape != "text" else (),
    )
