"""The laws of the native core (docs/design.md) on the generic path, against ``oracle.generic``.

Six vocabularies of other kinds than Qwen's, each with its own template, and gpt-oss once more with
its native renderer, against ``oracle.harmony``. Conversations are random, by seeds;
``LAWS_FACTOR=20 pytest tests/native`` looks twenty times as hard.
"""

from __future__ import annotations

import json
import os
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from laws import change_headers, split_into_pushes, split_into_turns, whole
from oracle import generic, templates, vocabulary
from oracle.generic import Template
from talking import Talk, items_of, outputs_for, said, spelled_otherwise, through_template

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oracle.naive import Trust
    from turnwire import _core

pytestmark = pytest.mark.timeout(600)

MODELS = {
    "gpt-oss": "llama.cpp/openai-gpt-oss-120b",
    "harmony": "llama.cpp/openai-gpt-oss-120b",
    "deepseek-v4": "llama.cpp/deepseek-ai-DeepSeek-V4",
    "mistral-v0.1": "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407",
    "tekken": "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506",
    "glm": "llama.cpp/GLM-4.7-Flash",
    "kimi": "llama.cpp/moonshotai-Kimi-K2",
    "kimi-k3": "llama.cpp/Kimi-K3",
    "gemma3": None,  # the package brings a template
    "llama3.1": "trl/llama3_1",
}
TRUSTS: tuple[Trust, ...] = ("strict", "compat")
each_model = pytest.mark.parametrize("name", MODELS)
each_trust = pytest.mark.parametrize("trust", TRUSTS)


@cache
def template_of(name: str) -> Template:
    file = MODELS[name]
    if name == "harmony":
        return templates.template(file)
    known = vocabulary.generic(name)
    text = known.template if file is None else templates.text_of(file)
    return Template(name, through_template(text), known)


def talks(name: str, trust: str, count: int, *, plain: bool = False) -> Iterator[Talk]:
    """New conversations, each with a seed of its own."""
    for seed in range(count * int(os.environ.get("LAWS_FACTOR", "1"))):
        talk = Talk(template_of(name), trust, seed, plain=plain)
        assert talk.profile.family == ("harmony" if name == "harmony" else "generic")
        yield talk


def noise(talk: Talk) -> list[int]:
    """Ids that a model in trouble samples: anything, controls in any order, cut anywhere."""
    random, known = talk.random, talk.known
    controls = sorted(known.controls.values())
    ids: list[int] = []
    for _ in range(random.randint(1, 8)):
        kind = random.random()
        if kind < 0.25:
            ids.append(
                random.choice(sorted(known._bytes)) if kind < 0.1 else random.randrange(1000)
            )
        elif kind < 0.45:
            ids.append(random.choice(controls))
        else:
            ids += said(known, talk.growing.text(3))
    stops = sorted(talk.profile.stop_token_ids)
    ids = [i for i in ids if i not in stops and i < talk.profile.vocab_size] or said(known, "x")
    return [*ids, random.choice(stops)] if random.random() < 0.5 else ids


# --- Law 1: append-only ---------------------------------------------------------------------


@each_trust
@each_model
def test_law_1_a_committed_token_never_changes(name, trust):
    """Turns in a random tree: extend, fork, warm up, abort; every node's tokens stay."""
    for talk in talks(name, trust, 12):
        nodes: list[tuple[_core.Node, list[int], list[Any], list[Any]]] = []
        views: list[tuple[_core.TokenBuffer, list[int]]] = []
        owed: list[Any] = []
        for _ in range(6):
            kind = talk.random.choice(("answer", "answer", "warm", "abort", "fork"))
            if kind == "fork" and nodes:
                talk.node, _, talk.items, owed = talk.random.choice(nodes)
            new = [*owed, *talk.step().items]
            if talk.expected(new, generate=kind != "warm") is None:
                continue
            before = talk.node.tokens().tolist() if talk.node else []
            turn = talk.open(new, generate=kind != "warm")
            prompt = turn.prompt.tolist()
            views.append((turn.prompt, prompt))
            assert turn.prefix_len <= len(before)
            assert prompt[: turn.prefix_len] == before[: turn.prefix_len]
            deltas = turn.push(noise(talk)) if kind != "warm" else []
            if kind == "abort":
                turn.abort()
                continue
            answer = items_of(deltas + turn.finish())
            owed = outputs_for(answer)
            talk.node = turn.commit()
            talk.turns += 1
            talk.items = [*talk.items, *new, *({**i, "_turn": talk.turns} for i in answer)]
            tokens = talk.node.tokens().tolist()
            assert tokens[: len(prompt)] == prompt
            assert talk.node.token_count == len(tokens)
            nodes.append((talk.node, tokens, talk.items, owed))
        for node, tokens, _, _ in nodes:
            assert node.tokens().tolist() == tokens
        for view, tokens in views:
            assert memoryview(view).tolist() == tokens


# --- Law 2: verbatim ------------------------------------------------------------------------


@each_model
def test_law_2_a_sampled_span_is_what_was_pushed(name):
    for talk in talks(name, "strict", 25):
        ids, stops = noise(talk), talk.profile.stop_token_ids
        new = talk.step().items
        turn = talk.open(new)
        talk.answer(turn, new, ids)
        tokens = talk.node.tokens().tolist()
        spans = [span for span in talk.node.spans() if span.origin == "sampled"]
        got = [token for span in spans for token in tokens[span.start : span.end]]
        if ids[-1] in stops:  # a final stop token may be replaced by the family's close
            assert got[: len(ids) - 1] == ids[:-1]
            assert len(got) - len(ids) in (-1, 0)
        else:
            assert got == ids


@each_model
def test_law_2_tokens_that_no_tokenizer_gives_stay(name):
    """A word spelled letter by letter is not the tokenizer's; the next prompt has the letters."""
    talk = Talk(template_of(name), "strict", "letters")
    talk.instructions, talk.tools = None, []
    talk.thinking = name != "glm"  # its prompt begins a thought, which a question takes out
    letters = [token_id for letter in "hello" for token_id in said(talk.known, letter)]
    assert letters != said(talk.known, "hello")
    ask = [{"type": "message", "role": "user", "content": "u"}]
    turn = talk.open(ask)
    before = turn.prompt.tolist()
    talk.answer(turn, ask, talk.saying(letters))
    second = talk.open(ask)
    talk.reads_as(second.prompt.tolist(), talk.expected(ask))
    if second.reencoded == 0:
        prompt = second.prompt.tolist()
        starts = range(len(before), len(prompt))
        assert any(prompt[at : at + len(letters)] == letters for at in starts)


# --- Law 3: whole ---------------------------------------------------------------------------


@each_trust
@each_model
def test_law_3_spans_partition_the_prompt(name, trust):
    for talk in talks(name, trust, 12):
        for _ in range(3):
            new = talk.step().items
            if talk.expected(new) is None:  # nothing goes on from here
                break
            turn = talk.open(new)
            whole(turn.spans(), len(turn.prompt), len(talk.items) + len(new))
            talk.answer(turn, new, noise(talk))
            whole(talk.node.spans(), talk.node.token_count, talk.node.item_count)
            if any(item.get("type") == "function_call" for item in talk.items[-3:]):
                break


# --- Law 4: cut-safe ------------------------------------------------------------------------


@each_model
def test_law_4_every_encoder_is_the_reference(name):
    talk = Talk(template_of(name), "strict", "encoders")
    for _ in range(150 * int(os.environ.get("LAWS_FACTOR", "1"))):
        text = talk.growing.text(10)
        for encode in (talk.profile.encode, talk.profile.encode_reference):
            talk.same(encode(text, control=True).tolist(), talk.known.encode_text(text))
            expected = talk.known.encode_run(text, first=True)
            talk.same(encode(text, control=False).tolist(), expected)


@each_trust
@each_model
def test_law_4_the_pieces_make_what_the_whole_makes(name, trust):
    """Needs no template: the prompt's own text, encoded at once, is the prompt."""
    for talk in talks(name, trust, 12, plain=True):
        for _ in range(3):
            step = talk.step()
            if talk.expected(step.items, generate=False) is not None:
                talk.warm(step.items)
        new = talk.step().items
        prompt = talk.open(new).prompt.tolist()
        if name == "mistral-v0.1":  # its normaliser adds a space to every run
            conversation = ([*talk.items, *new], talk.instructions, talk.tools)
            text = generic.render(
                talk.template, *conversation, thinking=None if talk.thinking else False
            )
        else:
            text = talk.spell(prompt)
        talk.same(prompt, talk.known.encode_text(text))


# --- Law 5: same as naive -------------------------------------------------------------------


@each_trust
@each_model
def test_law_5_any_split_into_turns_is_the_oracles_prompt(name, trust):
    for talk in talks(name, trust, 12):
        split_into_turns(talk)


@each_trust
@each_model
def test_law_5_a_changed_header_is_the_oracles_prompt(name, trust):
    """Instructions and tools are not inherited: a turn that brings others renders others."""
    for talk in talks(name, trust, 8):
        new = change_headers(talk, 3)
        talk.same(talk.open(new).prompt.tolist(), talk.expected(new))


@each_trust
@each_model
def test_law_5_around_sampled_spans(name, trust):
    """Canonical ids or not: the same text, the same controls in it, and between two controls the
    same ids where none of them was sampled."""
    for talk in talks(name, trust, 12):
        calm = talk.grow(plain=True)
        for _ in range(5):
            steps = (calm.user() for _ in range(8))
            new = next((s.items for s in steps if talk.expected(s.items) is not None), None)
            if new is None:
                break
            turn = talk.open(new)
            talk.reads_as(turn.prompt.tolist(), talk.expected(new))
            ours, theirs = pieces(talk, turn.prompt.tolist()), pieces(talk, talk.expected(new))
            sampled = [(s.start, s.end) for s in turn.spans() if s.origin == "sampled"]
            start = 0
            for mine, other in zip(ours, theirs, strict=True):
                end = start + len(mine)
                if not any(a < end and start < b for a, b in sampled):
                    talk.same(mine, other)
                start = end
            ids = said(talk.known, (calm.text(3).strip() or "so") + ".")
            talk.answer(turn, new, talk.saying(spelled_otherwise(talk, ids)))


def pieces(talk: Talk, ids: Sequence[int] | None) -> list[list[int]]:
    """A prompt cut before its controls."""
    controls = set(talk.known.controls.values())
    found: list[list[int]] = [[]]
    for token_id in ids or ():
        if token_id in controls:
            found.append([])
        found[-1].append(token_id)
    return found


# --- Strict: content forges nothing ---------------------------------------------------------


@each_model
def test_strict_content_holds_no_control(name):
    """Controls spelled in every place that a client can write to."""
    template = template_of(name)
    controls = sorted(template.vocabulary.controls)
    forged = "".join(Random(0).sample(controls, min(len(controls), 400)))
    part = {"type": "reasoning_text", "text": "forged"}
    call = {"type": "function_call", "call_id": "c1", "name": "f"}
    items = [
        {"role": "user", "content": "forged"},
        {"type": "reasoning", "summary": [], "content": [part]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "forged"}]},
        {"role": "user", "content": "forged"},
        call | {"arguments": '{"forged": "forged"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "forged"},
    ]
    parameters = {"type": "object", "properties": {"forged": {"description": "forged"}}}
    tool = {"type": "function", "name": "f", "description": "forged", "parameters": parameters}
    skeletons = []
    for word in (forged, "a b"):
        talk = Talk(template, "strict", "forged")
        escaped = json.dumps(json.dumps(word)[1:-1])[1:-1]
        written = json.dumps(items).replace('\\"forged\\"', f'\\"{escaped}\\"')
        talk.instructions = word
        plain = json.dumps(word)[1:-1]
        talk.tools = [json.loads(json.dumps(tool).replace("forged", plain))]
        new = json.loads(written.replace('"forged"', f'"{plain}"'))
        prompt = talk.open(new).prompt.tolist()
        talk.same(prompt, talk.expected(new))
        skeletons.append(talk.known.skeleton(prompt))
    assert skeletons[0] == skeletons[1]


# --- Law 6: chunk-blind ---------------------------------------------------------------------


@each_model
def test_law_6_any_split_into_pushes_says_the_same(name):
    ask = [{"type": "message", "role": "user", "content": "u"}]
    for talk in talks(name, "strict", 12):
        split_into_pushes(talk, ask, noise(talk))


# --- Law 7: flat ----------------------------------------------------------------------------


@each_model
def test_law_7_what_is_rendered_does_not_grow_with_history(name):
    talk = Talk(template_of(name), "strict", "flat")
    talk.instructions, talk.tools = "i" * 1000, []
    ids = talk.saying(said(talk.known, "an answer"))
    ask = [{"type": "message", "role": "user", "content": "the same question"}]
    rendered = []
    for _ in range(60):
        turn = talk.open(ask)
        rendered.append(turn.rendered)
        talk.answer(turn, ask, ids)
    assert len(set(rendered[2:])) == 1
    assert rendered[2] < 80
