"""The conversation that is measured: an agent that reads this repository's files one after another.

New turns take their text from a pool, so that no text comes twice in a row; words recur, as they
do.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

from models import QWEN, profile_of
from oracle import vocabulary
from talking import through_template
from turnwire import _core

ROOT = Path(__file__).parents[1]
NEW_TOKENS = 500
POOL = 64

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
def generic_profile() -> _core.Profile:
    """Qwen3's template, kept from its native renderer."""
    text = through_template(vocabulary.qwen3().template)
    changed = profile_of(QWEN).with_template(text)
    assert changed.family == "generic"
    return changed


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
    """An agent's conversation grown to a number of tokens, for every contender."""

    def __init__(self, history: int, model: _core.Profile) -> None:
        self.profile = model
        self.chains = _core.Chains(model, budget_bytes=1 << 32)
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
        deltas = turn.push(self.profile.encode_output(json.dumps(said).encode())) + turn.finish()
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

    instructions = INSTRUCTIONS
    tools = TOOLS

    @staticmethod
    def texts() -> list[str]:
        """What the turn that is measured brings: one of these."""
        return chunks()[:POOL]

    def output(self, text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": self.call_id, "output": text}


@cache
def agent_of(history: int, model: str = QWEN) -> Agent:
    return Agent(history, profile_of(model))


class Opening:
    """Opens turns with new text each time, and drops each before the next."""

    def __init__(self, agent: Agent, parent: _core.Node | None, before: list[dict[str, Any]]):
        self.agent = agent
        self.parent = parent
        inputs = [json.dumps([*before, agent.output(text)]) for text in agent.texts()]
        self.pool = itertools.cycle([text.encode() for text in inputs])
        headers = [json.dumps(f"{INSTRUCTIONS} {number}").encode() for number in range(POOL)]
        self.headers = itertools.cycle(headers)
        self.turn: _core.Turn | None = None

    def prepare(self) -> tuple[tuple[bytes], dict[str, Any]]:
        if self.turn is not None:
            self.turn.abort()
        return (next(self.pool),), {}

    def open(self, new: bytes) -> None:
        self.turn = self.agent.chains.open(self.parent, new, **self.agent.header)

    def open_under_another_header(self, new: bytes) -> None:
        header = {**self.agent.header, "instructions": next(self.headers)}
        self.turn = self.agent.chains.open(self.parent, new, **header)

    def open_unknown(self, new: bytes) -> None:
        self.turn = self.agent.chains.open(None, new, **{**self.agent.header, "scope": None})
