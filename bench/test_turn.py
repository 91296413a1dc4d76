"""What one more turn costs: ``chains.open`` of about 500 new tokens at several lengths of history,
beside rendering everything with jinja2 and encoding it with Hugging Face ``tokenizers``.

The conversation is an agent's, over this repository's own files: it reads one after another. New
turns take their text from a pool, so that no text comes twice in a row; words recur, as they do.
Beside them, what else a turn of ours can cost: a fork (another turn has the tip: one copy of the
tokens), a conversation that is sent in full and found again (its items are parsed and compared,
nothing of it is rendered; beside it, msgspec parsing that body), and a cold start (everything is
new: our renderer and fastokens over all of it).

``make bench`` measures and records; the test suite runs it once, for correctness only.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oracle import naive, vocabulary
from turnwire import _core

ROOT = Path(__file__).parents[1]
SIZES = (1_000, 10_000, 100_000, 200_000)
NEW_TOKENS = 500
POOL = 64

pytestmark = pytest.mark.timeout(900)

INSTRUCTIONS = (
    "You are a coding agent. Work step by step: read what you need, change as little as you can, "
    "and say what you have found. Never guess what a file contains.\n"
) * 8

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": f"{purpose} Paths are relative to the root of the repository.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where."},
                "text": {"type": "string", "description": "What, when the tool needs it."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    }
    for name, purpose in (
        ("read_file", "Reads a file."),
        ("write_file", "Writes a file."),
        ("list_files", "Lists the files of a folder."),
        ("search", "Searches files for a pattern."),
        ("run", "Runs a command."),
        ("patch", "Applies a patch."),
    )
]


@cache
def profile() -> _core.Profile:
    return _core.Profile.from_hf(str(vocabulary.qwen3_path()))


@cache
def chunks() -> list[str]:
    """Real text in stretches of about NEW_TOKENS tokens: this repository's sources and pages."""
    folders = ("python", "rust", "tests", "docs", "bench")
    files = [
        path
        for folder in folders
        for suffix in ("py", "pyi", "rs", "md", "json")
        for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
        if "node_modules" not in path.parts
    ]
    text = "".join(f"# {path.relative_to(ROOT)}\n{path.read_text()}\n" for path in files)
    letters = NEW_TOKENS * 4
    found = [text[at : at + letters] for at in range(0, len(text) - letters, letters)]
    assert len(found) > POOL, "too little text to measure with"
    return found


class Agent:
    """An agent's conversation grown to a number of tokens, for both contenders."""

    def __init__(self, history: int) -> None:
        self.chains = _core.Chains(profile())
        self.header = {
            "instructions": json.dumps(INSTRUCTIONS).encode(),
            "tools": json.dumps(TOOLS).encode(),
            "scope": b"bench",
        }
        self.node: _core.Node | None = None
        self.items: list[dict[str, Any]] = []
        self._serial = 0
        new: list[dict[str, Any]] = [{"role": "user", "content": "Read everything. Begin."}]
        supply = itertools.cycle(chunks()[POOL:])
        while True:
            self._answer(new)
            assert self.node is not None
            if self.node.token_count >= history - NEW_TOKENS:
                break
            new = [self.output(next(supply))]

    def _answer(self, new: list[dict[str, Any]]) -> None:
        self._serial += 1
        call = {"name": "read_file", "arguments": json.dumps({"path": f"file_{self._serial}.rs"})}
        said = {"reasoning": "The next file may tell.", "calls": [call]}
        turn = self.chains.open(self.node, json.dumps(new).encode(), **self.header)
        deltas = turn.push(profile().encode_output(json.dumps(said).encode())) + turn.finish()
        self.node = turn.commit()
        self.call_id = next(delta.call_id for delta in deltas if delta.kind == "call")
        self.items += [
            *new,
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": said["reasoning"]}],
            },
            {"type": "function_call", "call_id": self.call_id, **call},
        ]

    def output(self, text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": self.call_id, "output": text}


class Opening:
    """Opens turns with new text each time, and drops each before the next."""

    def __init__(self, agent: Agent, parent: _core.Node | None, before: list[dict[str, Any]]):
        self.agent = agent
        self.parent = parent
        inputs = [json.dumps([*before, agent.output(text)]) for text in chunks()[:POOL]]
        self.pool = itertools.cycle([text.encode() for text in inputs])
        self.turn: _core.Turn | None = None

    def prepare(self) -> tuple[tuple[bytes], dict[str, Any]]:
        if self.turn is not None:
            self.turn.abort()
        return (next(self.pool),), {}

    def open(self, new: bytes) -> None:
        self.turn = self.agent.chains.open(self.parent, new, **self.agent.header)

    def open_unknown(self, new: bytes) -> None:
        self.turn = self.agent.chains.open(None, new, **{**self.agent.header, "scope": None})


@pytest.mark.parametrize("history", SIZES)
@pytest.mark.parametrize("kind", ["extend", "fork", "found", "cold"])
def test_open(benchmark, measured, kind, history):
    """turnwire: parse, render and encode what is new."""
    agent = Agent(history)
    opening = Opening(agent, agent.node, [])
    if kind == "fork":
        holder = Opening(agent, agent.node, [])  # has the tip while it lives
        holder.open(next(holder.pool))
    elif kind in {"found", "cold"}:
        opening = Opening(agent, None, agent.items)
    work = opening.open_unknown if kind == "cold" else opening.open
    rounds = 300 if kind == "extend" else max(10, min(300, 1_000_000 // history))
    benchmark.pedantic(work, setup=opening.prepare, rounds=rounds, warmup_rounds=5)
    turn = opening.turn
    assert turn is not None
    assert turn.kind == ("extend" if kind == "found" else kind)
    assert kind == "cold" or turn.rendered < 2 * NEW_TOKENS
    measured(
        contender=f"turnwire {kind}",
        history_tokens=history,
        prompt_tokens=len(turn.prompt),
        new_tokens=turn.rendered,
    )


@pytest.mark.parametrize("history", SIZES)
def test_parsing_the_body(benchmark, measured, history):
    """What a body in full costs any server that reads it."""
    agent = Agent(history)
    opening = Opening(agent, None, agent.items)
    parse = msgspec.json.Decoder().decode
    benchmark.pedantic(parse, setup=opening.prepare, rounds=100, warmup_rounds=5)
    measured(
        contender="msgspec parse",
        history_tokens=history,
        prompt_tokens=agent.node.token_count if agent.node else 0,
        new_tokens=0,
    )


@pytest.mark.parametrize("history", SIZES)
def test_jinja2_and_hugging_face(benchmark, measured, history):
    """The usual way: render and encode everything, every turn."""
    agent = Agent(history)
    model = vocabulary.qwen3()
    pool = itertools.cycle([agent.output(text) for text in chunks()[:POOL]])
    prompts: list[list[int]] = []

    def setup():
        prompts.clear()
        return ([*agent.items, next(pool)],), {}

    def encode(items: list[dict[str, Any]]) -> None:
        prompts.append(naive.encode(model, items, INSTRUCTIONS, TOOLS))

    benchmark.pedantic(encode, setup=setup, rounds=max(3, min(50, 500_000 // history)))
    (prompt,) = prompts
    measured(
        contender="jinja2 + HF",
        history_tokens=history,
        prompt_tokens=len(prompt),
        new_tokens=len(prompt),
    )


def test_both_come_to_the_same_ids():
    """The contenders do the same work: no special token is spelled in what they are given."""
    agent = Agent(10_000)
    model = vocabulary.qwen3()
    spelled = [token for token in model.added_tokens if any(token in text for text in chunks())]
    new = agent.output("plain text")
    turn = agent.chains.open(agent.node, json.dumps([new]).encode(), **agent.header)
    expected = naive.encode(
        model, [*agent.items, new], INSTRUCTIONS, TOOLS, trust="strict" if spelled else "compat"
    )
    assert turn.prompt.tolist() == expected
