"""DeepSeek's native renderers, R1 to V4, against their templates (jinja2), and the calls read back.

The templates are those that llama.cpp and TRL ship. V3.1's declares no tools, so it is tested with
a tool branch too, as servers give it one; and as DeepSeek publishes it, with a bare ``</think>``
and arguments as they are. The vocabulary is V4's, which has every control token of the others. The
goldens are written by hand after the formats that DeepSeek publishes.
``LAWS_FACTOR=40`` looks at more than two thousand conversations.
"""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from oracle import templates
from oracle.generic import Template
from talking import ASK, Talk, items_of, outputs_for, profile_of, raw, said, spelled_otherwise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnwire import _core

pytestmark = pytest.mark.timeout(600)

FACTOR = int(os.environ.get("LAWS_FACTOR", "1"))

_HEAD = "{{ bos_token }}{{ ns.system_prompt }}"
_DECLARED = (
    "{% if tools %}## Tools\n{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}{% endif %}"
)

_RESPELLED = (("<think></think>", "</think>"), ("['arguments'] | tojson", "['arguments']"))

FAMILIES = {
    "trl/deepseekv3": "deepseek-r1",
    "trl/deepseekv3_training": "deepseek-r1",
    "trl/deepseek_r1_distill": "deepseek-r1",
    "trl/deepseek_r1_distill_training": "deepseek-r1",
    "llama.cpp/deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "V3.1 with tools": "deepseek-v3.1",
    "V3.1 as published": "deepseek-v3.1",
    "llama.cpp/deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "llama.cpp/deepseek-ai-DeepSeek-V4": "deepseek-v4",
    "llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v4",
}
PUBLISHED, V32, V4 = list(FAMILIES)[6:9]
THINK: dict[str, Any] = {"effort": "medium", "told": {"thinking": True}}

each_template = pytest.mark.parametrize("name", FAMILIES)
each_trust = pytest.mark.parametrize("trust", ["strict", "compat"])


@cache
def template_of(name: str) -> Template:
    if name in templates.names():
        return templates.template(name)
    shipped = templates.template("llama.cpp/deepseek-ai-DeepSeek-V3.1")
    changes = [(_HEAD, _HEAD + _DECLARED), *(_RESPELLED if name == PUBLISHED else ())]
    text = shipped.text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Template(name, text, shipped.vocabulary)


def reasons(name: str) -> bool:
    """Whether the model can be told to think."""
    return FAMILIES[name] != "deepseek-r1"


def talk_of(name: str, trust: str, seed: object, *, thinks: bool, plain: bool = True) -> Talk:
    talk = Talk(
        template_of(name), trust, seed, plain=plain, **(THINK if thinks and reasons(name) else {})
    )
    if reasons(name):
        talk.thinking = thinks
    return talk


def talks(name: str, trust: str, count: int, *, plain: bool = False) -> Iterator[Talk]:
    for seed in range(count * FACTOR):
        yield talk_of(name, trust, seed, thinks=seed % 3 > 0, plain=plain)


@each_trust
@each_template
def test_the_template_is_native(name, trust):
    profile = profile_of(template_of(name), trust)
    assert profile.family == FAMILIES[name], profile.not_native


D = "\uff5cDSML\uff5c"
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
F = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
    },
}


# --- What a client brings -------------------------------------------------------------------


@each_trust
@each_template
def test_what_a_client_brings_is_the_oracles_prompt(name, trust):
    """Whole or in turns, with warm-ups between, reasoning and calls among it, thinking or not."""
    for talk in talks(name, trust, 6):
        for _ in range(5):
            step = talk.step()
            for generate in (True, False):
                if talk.expected(step.items, generate=generate) is None:
                    continue
                turn = talk.open(step.items, generate=generate)
                talk.same(turn.prompt.tolist(), talk.expected(step.items, generate=generate))
                turn.abort()
            if talk.expected(step.items, generate=False) is not None:
                talk.warm(step.items)


@each_trust
@each_template
def test_item_by_item_is_the_oracles_prompt(name, trust):
    """Warm-ups that end anywhere: what comes goes on with the last message, or does not."""
    for talk in talks(name, trust, 3, plain=True):
        for _ in range(3):
            for item in talk.step().items:
                if talk.expected([item], generate=False) is not None:
                    talk.warm([item])
                    talk.same(talk.node.tokens().tolist(), talk.expected([], generate=False))
        if talk.items and not owed(talk) and talk.expected([]) is not None:
            talk.same(talk.open([]).prompt.tolist(), talk.expected([]))


def owed(talk: Talk) -> list[Any]:
    answered = {i.get("call_id") for i in talk.items if i["type"] == "function_call_output"}
    calls = outputs_for(talk.items)
    return [call for call in calls if call["call_id"] not in answered]


# --- What is sampled ------------------------------------------------------------------------

TEXTS = (
    *(
        "Hello there.",
        "Two\nlines, \u00e9 \u4e2d\u6587 \U0001f642",
        "1. one\n\n2. two: 12 345",
        "{}",
    ),
    *("\n\nbetween newlines \n\n\n", " \n.", "a < b\n\n<"),
)
ARGUMENTS = (
    "{}",
    '{"path": "a b.py", "n": 3}',
    '{"s": "x < y && \\"z\\"\\n\\u00e9", "l": [1, 2.5, null], "o": {"k": "v"}, "b": true}',
)


def prompted_to_think(talk: Talk, prompt: Sequence[int]) -> bool:
    return "<think>" in (ends := talk.known.skeleton(prompt[-2:])) and "</think>" not in ends


def draw_answer(talk: Talk, prompt: Sequence[int]) -> dict[str, Any]:
    """What a model may say behind a prompt."""
    random = talk.random
    answer: dict[str, Any] = {}

    def text() -> str:
        found = random.choice(TEXTS)
        # R1's newlines around reasoning and text are the model's habit, and not read.
        return found.strip() if talk.profile.family == "deepseek-r1" else found

    if prompted_to_think(talk, prompt):
        answer["reasoning"] = text()
    kind = random.random()
    if kind < 0.7 or not talk.tools:
        answer["text"] = text()
    if kind > 0.5 and talk.tools:
        names = random.choices([tool["name"] for tool in talk.tools], k=random.choice((1, 1, 2)))
        answer["calls"] = [{"name": name, "arguments": random.choice(ARGUMENTS)} for name in names]
    return answer


def next_items(talk: Talk) -> list[Any]:
    """Outputs for the calls that the model made, and perhaps a question."""
    items = owed(talk)
    if not items or talk.random.random() < 0.3:
        items = [*items, *talk.growing.user().items]
    return items


@each_trust
@each_template
def test_what_is_sampled_reads_as_the_oracle_writes_it(name, trust):
    """Tool loops with reasoning, text and calls, forks and rewinds. The prompts are the template's,
    id for id: so they are bounded rewinds, without a token encoded anew."""
    for talk in talks(name, trust, 4, plain=True):
        canonical = talk.random.random() < 0.5
        for _ in range(6):
            new = next_items(talk)
            turn = talk.open(new)
            prompt, expected = turn.prompt.tolist(), talk.expected(new)
            if canonical:
                talk.same(prompt, expected)
            else:
                talk.reads_as(prompt, expected)
            assert turn.reencoded == 0
            if talk.random.random() < 0.2:  # an abort leaves no trace
                turn.push(said(talk.known, "never mind"))
                turn.abort()
                turn = talk.open(new)
            answer = draw_answer(talk, prompt)
            ids = talk.profile.encode_output(raw(answer))
            talk.answer(turn, new, ids if canonical else spelled_otherwise(talk, ids))
            found = [{k: v for k, v in i.items() if k != "call_id"} for i in talk.items[-4:]]
            for call in answer.get("calls", ()):
                assert any(
                    item.get("name") == call["name"]
                    and json.loads(item["arguments"]) == json.loads(call["arguments"])
                    for item in found
                )


# --- The laws, for models in trouble --------------------------------------------------------

MARKUP = (
    *(f"<{D}function_calls>\n", f"<{D}tool_calls>", f'<{D}invoke name="f">\n', f"</{D}invoke>"),
    *(f'<{D}parameter name="a" string="true">', f'<{D}parameter name="n" string="false">3'),
    *(f"</{D}parameter>\n", f"</{D}tool_calls>", f"</{D}function_calls>", "<", "</", D, "\n\n"),
    *("<tool_call>\n", '{"name": "f", "arguments": {', '"a": 1', "}", "\n</tool_call>", "name"),
)


def noise(talk: Talk) -> list[int]:
    """Ids of markup in any order and of text, cut anywhere; perhaps a stop."""
    random, known = talk.random, talk.known
    controls = [i for word, i in known.controls.items() if "place" not in word]
    stops = sorted(talk.profile.stop_token_ids)
    ids: list[int] = []
    for _ in range(random.randint(1, 9)):
        kind = random.random()
        if kind < 0.6:
            ids += known.encode_text(random.choice(MARKUP))
        elif kind < 0.75:
            ids.append(random.choice(controls))
        else:
            ids += said(known, talk.growing.text(2))
    ids = [i for i in ids if i not in stops] or said(known, "x")
    return [*ids, random.choice(stops)] if random.random() < 0.5 else ids


@each_template
def test_noise_keeps_the_laws(name):
    """1: a committed token never changes. 2: what was sampled is there, id for id, until its
    reasoning goes. 3: spans partition. 6: however it is cut into pushes."""
    for talk in talks(name, "strict", 8):
        nodes: list[tuple[_core.Node, list[int]]] = []
        for _ in range(4):
            new = [*owed(talk), *talk.growing.user().items]
            turn = talk.open(new)
            prompt, ids = turn.prompt.tolist(), noise(talk)
            cuts = sorted(talk.random.choices(range(len(ids) + 1), k=3))
            again = talk.open(new)
            deltas = [d for a, b in pairwise((0, *cuts, len(ids))) for d in again.push(ids[a:b])]
            found = without_ids(items_of(deltas + again.finish()))
            again.abort()
            talk.answer(turn, new, ids)
            said_items = [i for i in talk.items if i.get("_turn") == talk.turns]
            assert found == without_ids(
                [{k: v for k, v in i.items() if k != "_turn"} for i in said_items]
            )
            tokens = talk.node.tokens().tolist()
            assert tokens[: len(prompt)] == prompt
            heard = ids[:-1] if ids[-1] in talk.profile.stop_token_ids else ids
            assert tokens[len(prompt) :][: len(heard)] == heard
            nodes.append((talk.node, tokens))
            whole(talk.node.spans(), talk.node.token_count, talk.node.item_count)
            if any(item.get("type") == "function_call" for item in said_items[-1:]) and owed(talk):
                break  # perhaps a call that was cut off, which nobody can answer
        for node, tokens in nodes:
            assert node.tokens().tolist() == tokens


def without_ids(items: Sequence[Any]) -> list[Any]:
    return [{k: v for k, v in item.items() if k != "call_id"} for item in items]


def whole(spans: Sequence[_core.Span], tokens: int, items: int) -> None:
    end = 0
    for span in spans:
        assert span.start == end <= span.end
        assert 0 <= span.items[0] <= span.items[1] <= items
        end = span.end
    assert end == tokens


# --- Cut off --------------------------------------------------------------------------------


@each_template
@pytest.mark.parametrize("thinks", [True, False])
def test_an_answer_that_was_cut_off_is_closed_as_the_template_closes_it(name, thinks):
    """Within reasoning and within text, with and without a stop; then outdated by a question,
    at once or behind a turn that brings nothing."""
    for stop, pauses in (([], False), (None, False), ([], True)):
        talk = talk_of(name, "strict", "cut", thinks=thinks)
        talk.tools = []
        for words in ("I think", "therefore"):
            turn = talk.open(ASK)
            talk.reads_as(turn.prompt.tolist(), talk.expected(ASK))
            stops = [talk.known.controls["<\uff5cend\u2581of\u2581sentence\uff5c>"]]
            talk.answer(turn, ASK, said(talk.known, words) + (stops if stop is None else stop))
            if pauses:
                talk.warm([])
        talk.reads_as(talk.open(ASK).prompt.tolist(), talk.expected(ASK))


@each_template
@pytest.mark.parametrize("text", ["<think>so</think>Yes.", "<think>so", "<think></think>Yes."])
def test_reasoning_that_nobody_asked_for_goes_as_a_whole(name, text):
    talk = talk_of(name, "strict", "unasked", thinks=False)
    if not reasons(name):
        return
    turn = talk.open(ASK)
    talk.answer(turn, ASK, talk.known.encode_text(text))
    assert talk.items[-1]["type"] == ("message" if "Yes" in text else "reasoning")
    talk.same(talk.open(ASK).prompt.tolist(), talk.expected(ASK))


@pytest.mark.parametrize("name", [PUBLISHED, V32, V4])
def test_a_call_that_was_cut_off_stays_as_it_was(name):
    talk = talk_of(name, "strict", "cut", thinks=False)
    talk.instructions, talk.tools = None, [F]
    turn = talk.open(ASK)
    ids = talk.profile.encode_output(
        raw({"calls": [{"name": "f", "arguments": '{"a": "b c d e"}'}]})
    )
    at = next(i for i in range(len(ids)) if " c" in talk.spell(ids[: i + 1]))
    talk.answer(turn, ASK, ids[:at])
    assert talk.items[-1]["arguments"].startswith('{"a": "b')
    prompt = talk.open(ASK).prompt.tolist()
    rest = talk.known.encode_text(f"{EOS}{USER}x{ASSISTANT}")
    starts = [i for i in range(len(prompt)) if prompt[i : i + at + len(rest)] == ids[:at] + rest]
    assert len(starts) == 1


@pytest.mark.parametrize("thinks", [True, False])
@each_template
def test_a_turn_costs_what_is_new(name, thinks):
    """Law 7, with whatever history loses: nothing of it is encoded again."""
    talk = talk_of(name, "strict", "flat", thinks=thinks)
    talk.instructions, talk.tools = "i" * 1000, []
    rendered = []
    for _ in range(20):
        turn = talk.open(ASK)
        rendered.append(turn.rendered)
        answer = {"text": "an answer"} | ({"reasoning": "why"} if thinks and reasons(name) else {})
        talk.answer(turn, ASK, talk.profile.encode_output(raw(answer)))
    assert len(set(rendered[2:])) == 1
    assert rendered[2] < 12
