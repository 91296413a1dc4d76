"""Calls on the generic path, read back from what a model would say: what its template prints.

The oracle is the template, run by jinja2: a call of an earlier turn is printed as the model wrote
it. So the text that a template prints for an answer, encoded and pushed in any pieces, must come
back as the calls that it was printed for.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from oracle import generic, templates
from oracle.generic import RefusedError
from talking import common, profile_of, raw
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

SAID = "Let me look."
PLAIN = "a-plain-answer"
OUTPUT = "the-output-of-a-call"
TOOLS = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Which."},
                "limit": {"type": "integer", "description": "How much."},
                "deep": {"type": "boolean", "description": "Whether."},
                "ranges": {"type": "array", "items": {"type": "integer"}, "description": "Where."},
            },
            "required": ["path"],
        },
    },
    {
        "type": "function",
        "name": "list-all",
        "description": "Lists all files.",
        "parameters": {"type": "object", "properties": {}},
    },
]
CALLS: list[list[tuple[str, dict[str, Any]]]] = [
    [("read_file", {"path": "notes.txt"})],
    [("read_file", {"path": 'a b/ä "q" <b>.txt', "limit": 12, "deep": True})],
    [("read_file", {"path": "two\nlines\n", "ranges": [1, 2]})],
    [("read_file", {"path": "12"})],
    [("list-all", {})],
    [("read_file", {"path": "1.txt"}), ("read_file", {"path": "2.txt", "limit": 0})],
]
NAMES = [
    name
    for name in templates.names()
    if name not in templates.KNOWN_DIFFERENCES and templates.vocabulary_of(name) != "gpt-oss"
]
"""gpt-oss is not here: its template prints texts beside calls as reasoning. See test_harmony.py."""


NOT_READ = {
    "llama.cpp/Apertus-8B-Instruct",
    "llama.cpp/Cohere2MoE",
    "llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use",
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "llama.cpp/GigaChat3-10B-A1.8B",
    "llama.cpp/LFM2-8B-A1B",
    "llama.cpp/LFM2.5-Instruct",
    "llama.cpp/NVIDIA-Nemotron-Nano-v2",
    "llama.cpp/ibm-granite-granite-3.3-2B-Instruct",
    "llama.cpp/meetkai-functionary-medium-v3.2",
    "llama.cpp/muse-glimmer",
    "llama.cpp/openbmb-MiniCPM5-1B",
    "llama.cpp/upstage-Solar-Open-100B",
    "trl/lfm2",
    "trl/lfm2_training",
    "trl/muse_glimmer",
    "trl/muse_glimmer_training",
}
"""Templates whose calls have a form that is not learned: JSON keyed by the name,
ids among the markup, a message for each call. Requests with tools are refused there."""


def spoken(template: generic.Template, calls: Sequence[tuple[str, Any]], said: str) -> str | None:
    """What the template prints for an answer with these calls, between its message's own ends.

    None when it takes no such answer.
    """
    question = {"type": "message", "role": "user", "content": "What is there?"}
    answer = {"type": "message", "role": "assistant", "content": said}
    ids = [f"call0000{number}" for number in range(len(calls))]
    made = [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(given)}
        for call_id, (name, given) in zip(ids, calls, strict=True)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": OUTPUT} for call_id in ids
    ]

    def printed(*items: Any) -> str:
        return generic.render(template, [question, *items], None, TOOLS, generate=False)

    try:
        plain = behind(printed(), printed({**answer, "content": PLAIN}))
        opener, _, closer = plain.partition(PLAIN)
        turn = [answer, *made] if said else made
        try:
            whole = printed(*turn)
        except RefusedError:
            whole = printed(*turn, *outputs)
    except RefusedError:
        return None
    text = behind(printed(), whole).split(OUTPUT)[0]
    text = behind(opener, text)
    for end in (closer, closer.strip(), *closer.split()[:1]):
        if end and end in text:
            return text[: text.rindex(end)]
    return text


def behind(start: str, text: str) -> str:
    """What ``text`` has behind what it shares with ``start``, with no tag cut in two."""
    shared = start[: common(start, text)]
    if shared != start and shared.rfind("<") > shared.rfind(">"):
        shared = shared[: shared.rindex("<")]
    return text[len(shared) :]


def thought(template: generic.Template) -> str:
    """What a model says first where its prompt has opened its reasoning."""
    question = {"type": "message", "role": "user", "content": "What is there?"}
    prompt = generic.render(template, [question], None, TOOLS)
    return "\n</think>\n\n" if prompt.rstrip().endswith("<think>") else ""


def read(
    profile: _core.Profile, ids: Sequence[int], cuts: Random
) -> tuple[list[tuple[str, str]], str]:
    """The calls (name, arguments) and the text of an answer, pushed in pieces."""
    turn = _core.Chains(profile).open(None, raw("x"), tools=raw(TOOLS))
    deltas, at = [], 0
    while at < len(ids):
        step = cuts.randrange(1, 9)
        deltas += turn.push(ids[at : at + step])
        at += step
    deltas += turn.finish()
    calls: list[tuple[str, str]] = []
    text = ""
    for delta in deltas:
        if delta.kind == "call":
            calls.append((delta.name, ""))
        elif delta.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
        elif delta.kind == "text":
            text += delta.text
    return calls, text


@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_prints_is_read_back(name):
    template = templates.template(name)
    profile = profile_of(template, "strict")
    if name in NOT_READ:
        assert not profile.reads_calls
        return
    assert profile.reads_calls
    if profile.family != "generic":
        return  # native renderers have tests of their own
    seen = 0
    for said in ("", SAID):
        for calls in CALLS:
            printed = spoken(template, calls, said)
            paths = [given.get("path", "") for _, given in calls]
            if printed is None or any(part not in printed for part in (said, *paths)):
                continue  # the template drops texts beside calls, or all calls but one
            seen += 1
            ids = profile.encode(thought(template) + printed, control=True).tolist()
            for attempt in range(3):
                found, text = read(profile, ids, Random(f"{name} {attempt}"))
                given = [(call, json.loads(arguments)) for call, arguments in found]
                assert given == calls, printed
                assert text.strip() == said, printed
    assert seen > 1
