"""The ChatML renderers under the templates of Qwen and MiMo, against jinja2 and ``tokenizers``.

``test_laws.py`` holds Qwen 3 and SmolLM2 to the laws in more ways. The vocabulary here is Qwen 3's.
Conversations are random, by seeds; ``LAWS_FACTOR=12`` looks at more than 2,000 of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from laws import change_headers, random_tree, split_into_pushes, split_into_turns
from oracle import templates
from talking import ASK, Talk, items_of, outputs_for, profile_of, raw, said, spelled_otherwise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.timeout(600)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))
FAMILIES = {
    "llama.cpp/MiMo-VL": "chatml",
    "llama.cpp/Qwen-Qwen2.5-7B-Instruct": "chatml",
    "trl/qwen2_5_vl": "chatml",
    "trl/qwen3_instruct_2507": "chatml",
    "trl/qwen3_vl": "chatml",
    "llama.cpp/Qwen3-Coder": "chatml",
    "llama.cpp/Qwen-Qwen3-0.6B": "qwen3",
    "llama.cpp/Qwen3.5-4B": "qwen3",
    "trl/qwen3_5_nothink": "qwen3",
    "trl/qwen3_5_think": "qwen3",
    "trl/qwen3_6": "qwen3",
    "trl/qwen3_8": "qwen3",
}
TRUSTS = ("strict", "compat")
each_template = pytest.mark.parametrize("name", FAMILIES)
each_trust = pytest.mark.parametrize("trust", TRUSTS)


def talks(name: str, trust: str, count: int, *, plain: bool = False) -> Iterator[Talk]:
    """New conversations, each with a seed of its own."""
    for seed in range(count * FACTOR):
        yield Talk(templates.template(name), trust, f"chatml {seed}", plain=plain)


@each_trust
@each_template
def test_the_template_is_native(name, trust):
    profile = profile_of(templates.template(name), trust)
    assert (profile.family, profile.not_native) == (FAMILIES[name], None)
    assert profile.reads_calls


@each_trust
@each_template
def test_law_5_any_split_into_turns_is_the_oracles_prompt(name, trust):
    for talk in talks(name, trust, 5):
        split_into_turns(talk)


@each_trust
@each_template
def test_law_5_a_changed_header_is_the_oracles_prompt(name, trust):
    for talk in talks(name, trust, 1):
        new = change_headers(talk, 3)
        if talk.expected(new) is not None:
            talk.same(talk.open(new).prompt.tolist(), talk.expected(new))


SAYINGS = (
    "Hello there.",
    "Two\nlines, and \u00e9 \u4e2d\u6587 \U0001f642",
    "1. one\n\n2. two: 12 345",
    'a < b </ "q" {}',
)
ARGUMENTS = (
    "{}",
    '{"path": "a b.py", "n": 3}',
    '{"s": "x < y && \\"z\\"", "l": [1, 2.5, null], "o": {"k": "v"}, "b": true}',
)


def answer(talk: Talk, prompt: Sequence[int]) -> dict[str, Any]:
    """What a model may say behind a prompt: it reasons, where it can and may."""
    random = talk.random
    found: dict[str, Any] = {}
    family, spelled = FAMILIES[talk.template.name], talk.spell(prompt[-4:])
    if family == "qwen3" and "</think>" not in spelled:
        found["reasoning"] = random.choice(SAYINGS)
    kind = random.random()
    if kind < 0.7 or not talk.tools:
        found["text"] = random.choice(SAYINGS)
    if kind > 0.5 and talk.tools:
        names = random.choices([tool["name"] for tool in talk.tools], k=random.choice((1, 1, 2)))
        found["calls"] = [{"name": name, "arguments": random.choice(ARGUMENTS)} for name in names]
    return found


def sampled(talk: Talk, prompt: Sequence[int], said: dict[str, Any]) -> list[int]:
    """Its ids, without the opening of reasoning where the prompt has that."""
    ids = talk.profile.encode_output(raw(said))
    opening = talk.known.encode_text("<think>\n")
    opened = list(prompt[-len(opening) :]) == opening == ids[: len(opening)]
    return ids[len(opening) :] if opened else ids


@each_trust
@each_template
def test_law_5_around_sampled_answers(name, trust):
    """Tool loops with reasoning, text and calls, in canonical ids and others; nothing is encoded
    anew, also where a question takes reasoning away."""
    for talk in talks(name, trust, 2, plain=True):
        canonical = talk.random.random() < 0.5
        owed: list[Any] = []
        for _ in range(6):
            new = owed
            if not owed or talk.random.random() < 0.3:
                new = [*owed, *talk.growing.user().items]
            if talk.expected(new) is None:  # the template wants a question first
                new = [*owed, *ASK]
            turn = talk.open(new)
            prompt = turn.prompt.tolist()
            talk.reads_as(prompt, talk.expected(new))
            assert turn.reencoded == 0
            ids = sampled(talk, prompt, answer(talk, prompt))
            talk.answer(turn, new, ids if canonical else spelled_otherwise(talk, ids))
            owed = outputs_for([item for item in talk.items if item.get("_turn") == talk.turns])


FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>\n", "\n</tool_call>", "<function=read_file>\n", "\n\n"),
    *("<parameter=path>\na", "\n</parameter>\n", "</function>", '{"name": "shell", "argu', "{}}"),
    *('{"name": "a", "arguments": {"x": 1}}', "<|im_start|>", "<tool_response>", "<", "}"),
)


def noise(talk: Talk) -> list[int]:
    """Ids that a model in trouble samples: markup in any order, halves of calls, perhaps no end."""
    random, known = talk.random, talk.known
    ids: list[int] = []
    for _ in range(random.randint(1, 10)):
        if random.random() < 0.7:
            ids += known.encode_text(random.choice(FRAGMENTS))
        else:
            ids += said(known, talk.growing.text(2, 1))
    stops = sorted(talk.profile.stop_token_ids)
    ids = [i for i in ids if i not in stops] or said(known, "x")
    return [*ids, *random.choice(([], [stops[0]], [stops[-1]]))]


@each_template
def test_laws_1_and_3_in_a_random_tree(name):
    for talk in talks(name, "strict", 2):
        random_tree(talk, noise)


@each_template
def test_law_6_any_split_into_pushes_says_the_same(name):
    for talk in talks(name, "strict", 3):
        split_into_pushes(talk, ASK, noise(talk))


@each_template
def test_answers_are_read_back(name):
    """What the family's model would sample says what was to be said."""
    for talk in talks(name, "strict", 2, plain=True):
        if not talk.tools:
            continue
        turn = talk.open(ASK)
        prompt = turn.prompt.tolist()
        meant = answer(talk, prompt)
        found = items_of(turn.push(sampled(talk, prompt, meant)) + turn.finish())
        calls = [item["name"] for item in found if item["type"] == "function_call"]
        assert calls == [call["name"] for call in meant.get("calls", ())]
        texts = [item["content"][0]["text"] for item in found if item["type"] == "message"]
        assert [text.strip() for text in texts] == [meant[key] for key in ("text",) if key in meant]
