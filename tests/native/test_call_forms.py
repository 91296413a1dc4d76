"""Calls in forms of their own, in the tokens that their models sample: by hand, and hostile.

What is written down here is read off the templates: Gemma 4's, MiniMax M3's, and LFM2's
(whose control tokens are letters in the vocabulary that stands in).
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from looping import TOOLS
from oracle import templates
from talking import ASK, Talk, items_of, sampled

GEMMA, MINIMAX, LFM = "trl/gemma4_v5", "llama.cpp/MiniMax-M3", "trl/lfm2_2_5"
_NS = "]<]minimax[>["

_READ: tuple[tuple[str, str, list[tuple[str, str]]], ...] = (
    # The template, what is sampled, and what it says.
    (GEMMA, "Hi.\n\nYou.", [("message", "Hi.\n\nYou.")]),
    (
        GEMMA,
        (
            "<|channel>thought\nWhy?\n\nSo.\n<channel|>Let me look."
            "<|tool_call>call:read_file{deep:true,limit:12,"
            'path:<|"|>a "b"\n\\c, {d}<|"|>,ranges:[1,2]}'
            "<tool_call|><|tool_call>call:ls{}<tool_call|><|tool_response>"
        ),
        [
            ("reasoning", "Why?\n\nSo."),
            ("message", "Let me look."),
            (
                "read_file",
                '{"deep": true, "limit": 12, "path": "a \\"b\\"\\n\\\\c, {d}", "ranges": [1, 2]}',
            ),
            ("ls", "{}"),
        ],
    ),
    (
        GEMMA,
        '<|tool_call>call:ls{a:{b c:null,d:[<|"|>]}<|"|>,{}]},e:-1.5e3}<tool_call|>',
        [("ls", '{"a": {"b c": null, "d": ["]}", {}]}, "e": -1.5e3}')],
    ),
    # Cut off, within a string; closed within one, by the token; and no call.
    (GEMMA, '<|tool_call>call:ls{a:<|"|>b c', [("ls", '{"a": "b c')]),
    (GEMMA, '<|tool_call>call:ls{a:<|"|>b<tool_call|>c', [("ls", '{"a": "b'), ("message", "c")]),
    (GEMMA, "<|tool_call>what?<tool_call|>", [("message", "what?")]),
    (GEMMA, "<|channel>thought\n<channel|>No.", [("message", "No.")]),
    (GEMMA, "<|channel>thoughtful", [("reasoning", "thoughtful")]),
    (
        MINIMAX,
        (
            f"<mm:think>Why?\n\nSo.</mm:think>Let me look.{_NS}<tool_call>\n"
            f'{_NS}<invoke name="read_file">{_NS}<path>12 <b>"\n{_NS}</path>'
            f"{_NS}<deep>true{_NS}</deep>{_NS}<ranges>{_NS}<item>1{_NS}</item>"
            f"{_NS}<item>2{_NS}</item>{_NS}</ranges>{_NS}</invoke>\n"
            f'{_NS}<invoke name="ls">{_NS}</invoke>\n{_NS}</tool_call>'
        ),
        [
            ("reasoning", "Why?\n\nSo."),
            ("message", "Let me look."),
            ("read_file", '{"path": "12 <b>\\"\\n", "deep": true, "ranges": [1, 2]}'),
            ("ls", "{}"),
        ],
    ),
    (
        MINIMAX,
        (
            f'</mm:think>{_NS}<tool_call>\n{_NS}<invoke name="ls">{_NS}<a>{_NS}<b>x y{_NS}</b>'
            f"{_NS}<c>{_NS}<item>{_NS}<d>7{_NS}</d>{_NS}</item>{_NS}</c>{_NS}</a>{_NS}</invoke>\n"
            f"{_NS}</tool_call>"
        ),
        [("ls", '{"a": {"b": "x y", "c": [{"d": 7}]}}')],
    ),
    (MINIMAX, f'{_NS}<invoke name="ls">{_NS}<path>a', [("ls", '{"path": ')]),
    (MINIMAX, f'{_NS}<invoke name="read_file">{_NS}<path>a', [("read_file", '{"path": "a')]),
    (
        LFM,
        (
            "Let me look.<|tool_call_start|>[read_file(path='a \"b\"\\n', limit=12, deep=True), "
            "ls()]"
            "<|tool_call_end|>"
        ),
        [
            ("message", "Let me look."),
            ("read_file", '{"path": "a \\"b\\"\\n", "limit": 12, "deep": true}'),
            ("ls", "{}"),
        ],
    ),
    (MINIMAX, "</mm:think>]<]mini", [("message", "]<]mini")]),
)


def _talk(name: str) -> Talk:
    talk = Talk(templates.template(name), "strict", "forms", effort="high")
    talk.instructions, talk.tools, talk.thinking = None, TOOLS, True
    return talk


def _read(talk: Talk, ids: list[int], cuts: Random | None = None) -> list[tuple[str, str]]:
    turn = talk.open(ASK)
    deltas, at = [], 0
    while at < len(ids):
        step = cuts.randrange(1, 6) if cuts else len(ids)
        deltas += turn.push(ids[at : at + step])
        at += step
    return [_shown(item) for item in items_of(deltas + turn.finish())]


def _shown(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "function_call":
        return item["name"], item["arguments"]
    return item["type"], item["content"][0]["text"]


@pytest.mark.parametrize(("name", "text", "says"), _READ)
def test_calls_are_read_as_they_are_meant(name, text, says):
    """However the ids come (law 6)."""
    talk = _talk(name)
    ids = sampled(talk, text)
    assert _read(talk, ids) == says
    for seed in range(3):
        assert _read(talk, ids, Random(seed)) == says


_PIECES = {
    GEMMA: (
        *(
            "<|tool_call>call:ls{",
            "<|tool_call>",
            "call:",
            "a:",
            '<|"|>',
            "}",
            "]",
            "[",
            ",",
            "<tool_call|>",
        ),
        *("<|channel>", "thought\n", "<channel|>", "x y", "12", "\n", "<|tool_response>"),
    ),
    MINIMAX: (
        *(
            f'{_NS}<invoke name="ls">',
            _NS,
            _NS,
            f"{_NS}<a>",
            f"{_NS}</a>",
            f"{_NS}</invoke>",
            "<a>",
            "</a>",
            "<item>",
            "</item>",
        ),
        *("</invoke>", "<tool_call>", "</tool_call>", "<mm:think>", "</mm:think>", "x y", "12"),
    ),
}


def _closes(text: str) -> bool:
    """Whether every bracket of these arguments is closed: none stands in a string here."""
    return all(text.count(one) == text.count(other) for one, other in ("{}", "[]"))


@pytest.mark.parametrize("name", _PIECES)
def test_whatever_comes_is_well_formed_and_the_same_in_any_pieces(name):
    """Names are whole, ids are never empty, and a call that says it is whole has JSON."""
    talk = _talk(name)
    random = Random(name)
    whole = 0
    for seed in range(150):
        pieces = random.choices(_PIECES[name], k=random.randrange(1, 25))
        ids = sampled(talk, "".join(pieces))
        read = _read(talk, ids)
        assert read == _read(talk, ids, Random(seed))
        for kind, text in read:
            assert kind in ("message", "reasoning", "ls")
            assert kind == "ls" or text.strip()
            if kind == "ls" and _closes(text):
                whole += isinstance(json.loads(text), dict)
    assert whole


@pytest.mark.parametrize("name", [GEMMA, "llama.cpp/google-gemma-4-31B-it"])
def test_gemma_goes_on_behind_an_output(name):
    """The next prompt has the sampled ids, and opens reasoning where the template does."""
    talk = _talk(name)
    text = "<|channel>thought\nWhy?\n<channel|><|tool_call>call:ls{}<tool_call|>"
    ids = sampled(talk, text)
    talk.answer(talk.open(ASK), ASK, ids)
    call_id = talk.items[-1]["call_id"]
    turn = talk.open([{"type": "function_call_output", "call_id": call_id, "output": "y"}])
    prompt = talk.spell(turn.prompt.tolist())
    response = '<|tool_response>response:ls{value:<|"|>y<|"|>}<tool_response|>'
    opened = name == GEMMA
    assert prompt.endswith(f"<|turn>model\n{text}{response}" + "<|channel>thought\n" * opened)
    rest = sampled(talk, "So.\n<channel|>Done." if opened else "Done.")
    read = [_shown(item) for item in items_of([*turn.push(rest), *turn.finish()])]
    assert read == [("reasoning", "So.")] * opened + [("message", "Done.")]
