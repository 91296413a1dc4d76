"""What a native renderer is held to: conversations that clients bring, and the loops of agents.

``oracle.generic`` says what every prompt must be; that a turn was cheap, the core's own figures.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from talking import Talk, common, outputs_for, spelled_otherwise

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": "integer"},
                "deep": {"type": "boolean"},
                "ranges": {"type": "array", "items": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}},
]
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read_file", {"path": "notes.txt"}),
    ("read_file", {"path": 'a b/\u00e4 "q" <b>.txt', "limit": 12, "deep": True}),
    ("read_file", {"path": "two\nlines", "ranges": [1, 2]}),
    ("read_file", {"path": "12", "limit": 0}),
    ("ls", {}),
)
SAYINGS = (
    "Let me look.",
    "Two\nlines, and \u00e9 \u4e2d\u6587 \U0001f642",
    "def f(x):\n    return x + 1",
    '1. one\n\n2. two: {"a": 12 345}',
)


def brought(talk: Talk, steps: int) -> int:
    """Every prompt of a conversation that a client brings is the oracle's; says how many were what
    the last one was and more, and cost just that."""
    committed: list[int] = []
    cheap = 0
    for _ in range(steps):
        step = talk.step()
        for generate in (False, True):
            expected = talk.expected(step.items, generate=generate)
            turn = talk.open(step.items, generate=generate)
            talk.same(turn.prompt.tolist(), expected)
            assert turn.reencoded == 0
            adds = common(committed, expected or ()) == len(committed)
            # An answer or an output may go on with the message before it, which is closed already.
            if talk.node and adds and step.items[0].get("role") in ("user", "system", "developer"):
                assert turn.kind in ("extend", "fork")
                assert turn.rendered == len(expected or ()) - len(committed)
                cheap += 1
            turn.abort()
        talk.warm(step.items)
        assert talk.node
        committed = talk.node.tokens().tolist()
    return cheap


class Loop(Talk):
    """An agent's conversation: what a model samples, in odd tokens, and what its calls return."""

    def head(self) -> None:
        """The agent's own tools."""
        self.instructions, self.tools = self.random.choice((None, "Be terse.")), TOOLS

    def thought(self) -> str:
        return " ".join(self.random.choices(SAYINGS, k=2))

    def answer_with(self, *, calls: int) -> dict[str, Any]:
        """An answer, as ``Profile.encode_output`` takes it."""
        chosen = self.random.choices(CALLS, k=calls)
        said = {"reasoning": self.thought()} if self.thinking else {}
        if not calls or self.random.random() < 0.5:
            said["text"] = self.random.choice(SAYINGS)
        return said | {
            "calls": [
                {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                for name, given in chosen
            ]
        }

    def sampled(self, *, calls: int) -> list[int]:
        """The ids of an answer; not as the tokenizer would have them."""
        ids = self.profile.encode_output(json.dumps(self.answer_with(calls=calls)).encode())
        return [*spelled_otherwise(self, ids[:-1]), ids[-1]]

    def turn(self, new: Sequence[Any], ids: Sequence[int], *, loses: bool = False) -> None:
        """A turn that costs what is new; ``loses`` if it takes reasoning out of history."""
        turn = self.open(new)
        prompt = turn.prompt.tolist()
        self.reads_as(prompt, self.expected(new))
        assert turn.reencoded == 0
        if self.node:
            before = self.node.tokens().tolist()
            assert turn.kind == ("rewind" if loses else "extend")
            kept = len(prompt) - turn.rendered
            # Deleting ids of the last prompt gives this one: none of them was made again.
            rest = iter(before)
            assert all(token in rest for token in prompt[:kept])
            assert loses or prompt[: len(before)] == before
        self.answer(turn, new, ids)
        tokens = self.node.tokens().tolist() if self.node else []
        stopped = ids[-1] in self.profile.stop_token_ids
        wanted = list(ids[:-1] if stopped else ids)
        assert tokens[len(prompt) : len(prompt) + len(wanted)] == wanted

    def outputs(self) -> list[dict[str, Any]]:
        """Outputs of the last answer's calls: texts, or lists of parts."""
        last = [item for item in self.items if item.get("_turn") == self.turns]
        outputs = outputs_for(last)
        for output in outputs:
            text = self.random.choice((*SAYINGS, "", "\n", " x "))
            parts = [{"type": "input_text", "text": text}]
            output["output"] = self.random.choice((text, parts))
        return outputs

    def question(self) -> list[dict[str, Any]]:
        return [{"type": "message", "role": "user", "content": self.random.choice(SAYINGS)}]


def agents_loop(loop: Loop, *, forgets: bool) -> None:
    """Four questions, each worked on in a few steps; ``forgets`` if history loses what was thought
    on one when the next comes."""
    for number in range(4):
        new, loses = loop.question(), number > 0 and forgets
        for _ in range(loop.random.randrange(4)):
            loop.turn(new, loop.sampled(calls=loop.random.choice((1, 1, 2, 3))), loses=loses)
            new, loses = loop.outputs(), False
        loop.turn(new, loop.sampled(calls=0), loses=loses)
