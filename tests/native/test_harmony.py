"""What gpt-oss says, against OpenAI's own implementation of its format (``openai-harmony``).

It writes messages as tokens, and our reader must find in them what they say; what our profile would
have the model sample, it must read as those messages.
"""

from __future__ import annotations

import json
import os
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import openai_harmony as harmony
import pytest

from oracle import templates, vocabulary
from talking import profile_of
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]
ASSISTANT = harmony.Role.ASSISTANT


@cache
def encoding() -> harmony.HarmonyEncoding:
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(vocabulary.VOCABULARIES / "o200k")
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


@pytest.fixture(scope="module")
def profile() -> _core.Profile:
    found = profile_of(templates.template("llama.cpp/openai-gpt-oss-120b"), "strict")
    assert found.family == "harmony"
    assert found.reads_calls
    return found


def said(channel: str, text: str) -> harmony.Message:
    return harmony.Message.from_role_and_content(ASSISTANT, text).with_channel(channel)


def called(name: str, arguments: str) -> harmony.Message:
    message = said("commentary", arguments).with_recipient(f"functions.{name}")
    return message.with_content_type("<|constrain|>json")


def sampled(messages: Sequence[harmony.Message]) -> list[int]:
    """The tokens of an answer, as they stand behind ``<|start|>assistant``."""
    ids: list[int] = []
    for message in messages:
        ids += encoding().render(message)
    start = encoding().encode("<|start|>assistant", allowed_special="all")
    # A recipient may stand in the header's first half, before the channel.
    assert ids[: len(start)] == start
    return ids[len(start) :]


def read(profile: _core.Profile, ids: Sequence[int], cuts: Random) -> list[list[str]]:
    """What an answer says: (kind, text), pushed in pieces. A call has its name before its text."""
    body = json.dumps(TOOLS).encode()
    turn = _core.Chains(profile).open(None, b'"x"', tools=body)
    deltas, at = [], 0
    while at < len(ids):
        step = cuts.randrange(1, 7)
        deltas += turn.push(ids[at : at + step])
        at += step
    deltas += turn.finish()
    whole: list[list[str]] = []
    for delta in deltas:
        if delta.kind == "call":
            whole.append(["call", delta.name, ""])
        elif delta.kind == "arguments":
            whole[-1][2] += delta.text
        elif whole and whole[-1][0] == delta.kind:
            whole[-1][1] += delta.text
        else:
            whole.append([delta.kind, delta.text])
    return whole


TEXT = 'A "quoted" <b>line</b>\n\nand é, 字, <|end|> in letters'
ARGUMENTS = '{"path":  "a\\n<|call|>.txt", "n": [1, {"x": null}]}'
ANSWERS: list[tuple[list[harmony.Message], list[list[str]]]] = [
    ([said("final", TEXT)], [["text", TEXT]]),
    (
        [said("analysis", "So.\nThen."), said("final", TEXT)],
        [["reasoning", "So.\nThen."], ["text", TEXT]],
    ),
    ([called("read_file", ARGUMENTS)], [["call", "read_file", ARGUMENTS]]),
    (
        [said("analysis", "So."), said("commentary", "I look."), called("read_file", ARGUMENTS)],
        [["reasoning", "So."], ["text", "I look."], ["call", "read_file", ARGUMENTS]],
    ),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_what_harmony_writes_is_read(profile, number):
    messages, expected = ANSWERS[number]
    ids = sampled(messages)
    for attempt in range(5):
        assert read(profile, ids, Random(attempt)) == expected


@pytest.mark.parametrize(
    "answer",
    [
        {"text": TEXT},
        {"reasoning": "So.", "text": TEXT},
        {"reasoning": "So.", "calls": [{"name": "read_file", "arguments": ARGUMENTS}]},
    ],
)
def test_harmony_reads_what_our_model_would_say(profile, answer: dict[str, Any]):
    ids = profile.encode_output(json.dumps(answer).encode())
    found = encoding().parse_messages_from_completion_tokens(ids, ASSISTANT)
    said_by = {"analysis": "reasoning", "final": "text"}
    seen: dict[str, Any] = {}
    for message in found:
        text = "".join(part.text for part in message.content)
        if message.recipient and message.recipient.startswith("functions."):
            name = message.recipient.removeprefix("functions.")
            seen.setdefault("calls", []).append({"name": name, "arguments": text})
        else:
            seen[said_by[message.channel]] = text
    assert seen == answer
    assert read(profile, ids, Random(0))[-1][-1] == (answer.get("text") or ARGUMENTS)


def test_case_8_a_header_that_says_its_recipient_twice_is_a_call(profile):
    """sgl-project/sglang#35299, openai/harmony#38: servers answered 500."""
    said = "<|channel|>commentary to=functions.f to=functions.f<|message|>{}<|call|>"
    ids = profile.encode(said, control=True).tolist()
    assert read(profile, ids, Random(0)) == [["call", "f", "{}"]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("plain words, no header", [["text", "plain words, no header"]]),
        ("<|channel|>analysis<|message|>cut of", [["reasoning", "cut of"]]),
        ("<|channel|>final", []),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
            [["reasoning", "a\n\nb"]],
        ),
        (
            "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
            [["reasoning", "a"], ["text", "b"]],
        ),
        (' to=functions.f<|channel|>commentary json<|message|>{"a"', [["call", "f", '{"a"']]),
    ],
)
def test_what_is_not_quite_harmony_is_read_as_far_as_it_goes(profile, said, expected):
    ids = profile.encode(said, control=True).tolist()
    assert read(profile, ids, Random(1)) == expected
