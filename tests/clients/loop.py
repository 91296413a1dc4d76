"""The tool loop that every client here works through: its script, its tools, what must come out.

Turn 1: a question → think, call ``read_file``. Turn 2: the file → say so, call ``word_count``.
Turn 3: the count → the answer.
"""

from __future__ import annotations

import http.client
import itertools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from running import RunningServer
    from turnwire.engine.sim import Recording

QUESTION = "How many words does notes.txt have?"
FILES = {"notes.txt": "one two three"}
ANSWER = "notes.txt has 3 words."
INSTRUCTIONS = "Use the tools."
CALLS = [
    [("read_file", {"path": "notes.txt"})],
    [("word_count", {"text": "one two three"})],
    [],
]

SCRIPT: dict[str, Any] = {
    "tokens_per_second": 5000,
    "prefill_tokens_per_second": 1_000_000,
    "rules": [
        {
            "when": {"type": "message", "contains": "notes.txt"},
            "answer": {
                "reasoning": "I have to read it first.",
                "calls": [{"name": "read_file", "arguments": {"path": "notes.txt"}}],
            },
        },
        {
            "when": {"type": "function_call_output", "name": "read_file", "contains": "two"},
            "answer": {
                "text": "Now I count.",
                "calls": [{"name": "word_count", "arguments": {"text": "one two three"}}],
            },
        },
        {
            "when": {"type": "function_call_output", "name": "word_count", "contains": "3"},
            "answer": {"reasoning": "Three.", "text": ANSWER},
        },
    ],
    "default": {"answer": {"text": "The script has no answer to this."}},
}

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        },
    }
    for name, argument, description in (
        ("read_file", "path", "Reads a file."),
        ("word_count", "text", "Counts words."),
    )
]


def run_tool(name: str, arguments: str) -> str:
    given = json.loads(arguments)
    if name == "read_file":
        return FILES[given["path"]]
    return str(len(given["text"].split()))


def outputs(calls: Sequence[Any]) -> list[dict[str, str]]:
    """The input items that answer a response's calls."""
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": run_tool(call.name, call.arguments),
        }
        for call in calls
    ]


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def assert_each_turn_goes_on_from_the_last(recordings: Sequence[Recording], turns: int) -> None:
    """The prompt of turn n+1 begins with the prompt and the sampled ids of turn n, as the engine
    saw them."""
    sampled = [recording for recording in recordings if recording.max_tokens > 0]
    assert len(sampled) == turns
    for before, after in itertools.pairwise(sampled):
        known = before.prompt + before.output
        assert before.output
        assert after.prompt[: len(known)] == known


def turn_records(running: RunningServer) -> list[dict[str, Any]]:
    """What each turn cost by the server's own account. Needs ``log.debug``."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.request("GET", "/debug/turns")
    records: list[dict[str, Any]] = json.load(connection.getresponse())["data"]
    connection.close()
    return records


def assert_only_new_tails_were_encoded(
    records: Sequence[dict[str, Any]], recordings: Sequence[Recording]
) -> None:
    """The first turn was encoded whole; each later one found everything before it and encoded the
    rest of its prompt, no more. The engine saw the same."""
    kinds = [record["kind"] for record in records]
    assert kinds == ["cold"] + ["extend"] * (len(records) - 1), kinds
    assert records[0]["rendered_tokens"] == records[0]["prompt_tokens"]
    for before, after in itertools.pairwise(records):
        assert after["reused_tokens"] == before["prompt_tokens"] + before["sampled_tokens"]
        assert after["rendered_tokens"] == after["prompt_tokens"] - after["reused_tokens"]
    assert [record["prompt_tokens"] for record in records] == [
        len(recording.prompt) for recording in recordings
    ]
    assert_each_turn_goes_on_from_the_last(recordings, len(records))
