"""The laws of the native core (docs/design.md), against the naive model.

Every property runs for each model and, where it bears on content, for both trusts. Conversations
come whole and in turns; content comes plain and adversarial. ``LAWS_FACTOR=20 pytest
tests/native`` looks twenty times as hard.
"""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counting import Compared
from oracle import naive, vocabulary
from oracle.conversations import (
    SPECIALS,
    Answer,
    Conversation,
    answers,
    conversations,
    is_assistants,
    texts,
)
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.timeout(600)

MODELS = ("qwen3", "smollm2")
TRUSTS = ("strict", "compat")
each_model = pytest.mark.parametrize("name", MODELS)
each_trust = pytest.mark.parametrize("trust", TRUSTS)


@cache
def profile_of(name: str, trust: str) -> _core.Profile:
    if name == "qwen3":
        return _core.Profile.load(str(vocabulary.qwen3_path()), trust=trust)
    return _core.Profile.load(str(vocabulary.smollm2_path()), trust=trust)


def model_of(name: str) -> naive.Model:
    return getattr(vocabulary, name)()


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def holds(check: Callable[..., None], *strategies: Any, examples: int = 150) -> None:
    """Runs a property inside a parametrized test (hypothesis dislikes the two mixed)."""
    count = examples * int(os.environ.get("LAWS_FACTOR", "1"))
    settings(deadline=None, max_examples=count)(given(*strategies)(check))()


class Talk:
    """Drives one conversation through the wall, and remembers its items for the oracle."""

    def __init__(self, name: str, trust: str, around: Conversation) -> None:
        self.profile = profile_of(name, trust)
        self.model = model_of(name)
        self.trust = trust
        self.chains = _core.Chains(self.profile)
        self.around = around
        self.node: _core.Node | None = None
        self.items: list[dict[str, Any]] = []
        self.turns = 0
        self._compared = Compared("jinja2 and tokenizers", self.profile.family)

    def open(self, items: Sequence[dict[str, Any]], *, generate: bool = True) -> _core.Turn:
        around = self.around
        return self.chains.open(
            self.node,
            raw(items),
            instructions=raw(around.instructions),
            tools=raw(list(around.tools)),
            effort=None if around.thinking else "none",
            generate=generate,
        )

    def warm(self, items: Sequence[dict[str, Any]]) -> None:
        """Adds items and samples nothing."""
        turn = self.open(items, generate=False)
        assert turn.finish() == []
        self.node = turn.commit()
        self.items += items

    def answer(self, items: Sequence[dict[str, Any]], ids: Sequence[int]) -> list[_core.Delta]:
        """Adds items, samples ids, and takes the answer's items into the conversation."""
        turn = self.open(items)
        deltas = turn.push(ids) + turn.finish()
        self.node = turn.commit()
        self.turns += 1
        self.items += [*items, *({**item, "_turn": self.turns} for item in items_of(deltas))]
        return deltas

    def naive(self) -> list[int]:
        self._compared()
        around = self.around
        return naive.encode(
            self.model,
            self.items,
            around.instructions,
            around.tools,
            thinking=around.thinking,
            trust=self.trust,
        )


def merged(deltas: Sequence[_core.Delta]) -> list[tuple[str, str]]:
    """Deltas with neighbours of one kind joined: (kind, text), for a call its name."""
    whole: list[tuple[str, str]] = []
    for delta in deltas:
        if delta.kind == "call":
            whole.append(("call", delta.name))
        elif whole and whole[-1][0] == delta.kind:
            whole[-1] = (delta.kind, whole[-1][1] + delta.text)
        else:
            whole.append((delta.kind, delta.text))
    return whole


def items_of(deltas: Sequence[_core.Delta]) -> list[dict[str, Any]]:
    """The output items, as a client would send them back."""
    call_ids = [delta.call_id for delta in deltas if delta.kind == "call"]
    items: list[dict[str, Any]] = []
    for kind, text in merged(deltas):
        if kind == "reasoning":
            part = {"type": "reasoning_text", "text": text}
            items.append({"type": "reasoning", "summary": [], "content": [part]})
        elif kind == "text":
            part = {"type": "output_text", "text": text, "annotations": []}
            items.append({"type": "message", "role": "assistant", "content": [part]})
        elif kind == "call":
            call = {"type": "function_call", "call_id": call_ids.pop(0), "name": text}
            items.append(call | {"arguments": ""})
        else:
            items[-1]["arguments"] += text
    return items


def outputs_for(items: Sequence[dict[str, Any]], output: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": output}
        for item in items
        if item.get("type") == "function_call"
    ]


def same_ids(found: Sequence[int], expected: Sequence[int], model: naive.Model) -> None:
    """Equal, or a message that shows where they part."""
    found, expected = list(found), list(expected)
    if found == expected:
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
        min(len(found), len(expected)),
    )
    around = slice(max(0, at - 8), at + 8)
    pytest.fail(
        f"ids part at {at} (of {len(found)} and {len(expected)})\n"
        f"  core:  {found[around]} {model.spell(found[around])!r}\n"
        f"  naive: {expected[around]} {model.spell(expected[around])!r}\n"
        f"  core:  {model.spell(found).decode(errors='replace')!r}\n"
        f"  naive: {model.spell(expected).decode(errors='replace')!r}",
        pytrace=False,
    )


def split_token(profile: _core.Profile, ids: list[int], at: int) -> list[int]:
    """The same bytes with one token spelled by smaller ones, as a sampler may choose."""
    text = profile.decode(ids[at : at + 1])
    if len(text) < 2 or "\ufffd" in text or not text.isascii():
        return ids
    halves = [*profile.encode(text[:1]).tolist(), *profile.encode(text[1:]).tolist()]
    return [*ids[:at], *halves, *ids[at + 1 :]]


@st.composite
def samples(
    draw: st.DrawFn, profile: _core.Profile, *, thinks: bool = True
) -> tuple[Answer, list[int]]:
    """An answer and ids that spell it, canonical or not."""
    reasons = profile.family == "qwen3"
    answer = draw(answers(thinks=thinks and reasons))
    model = model_of("qwen3" if reasons else "smollm2")
    # What the vocabulary cannot say comes back as U+FFFD, or not at all.
    said = (answer.reasoning or "", answer.text or "")
    assume(all(model.sayable(text) == model.normal(text) for text in said))
    ids = profile.encode_output(answer.output)
    # The tokens of the markers stay whole: their pieces would be text.
    plain = [i for i, token_id in enumerate(ids) if token_id not in _added(profile)]
    for at in sorted(draw(st.lists(st.sampled_from(plain), max_size=3, unique=True)), reverse=True):
        if not _is_marker_text(profile.decode(ids[at : at + 1])):
            ids = split_token(profile, ids, at)
    return answer, ids


@cache
def _added(profile: _core.Profile) -> frozenset[int]:
    return frozenset(
        token_id
        for special in SPECIALS
        for token_id in profile.encode(special, control=True).tolist()
        if len(profile.encode(special, control=True)) == 1
    )


def _is_marker_text(text: str) -> bool:
    return any(letter in text for letter in "<>_")


@st.composite
def noise(draw: st.DrawFn, profile: _core.Profile) -> list[int]:
    """Ids that a model in trouble samples: anything, markers in any order, cut anywhere."""
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("id", "special", "text", "answer")))
        if kind == "id":
            ids.append(draw(st.integers(0, profile.vocab_size - 1)))
        elif kind == "special":
            ids += profile.encode(draw(st.sampled_from(SPECIALS)), control=True).tolist()
        elif kind == "text":
            ids += profile.encode(draw(texts(adversarial=True, max_pieces=3))).tolist()
        else:
            ids += draw(samples(profile))[1][:-1]
    ids = [token_id for token_id in ids if token_id not in profile.stop_token_ids]
    assume(ids)
    if draw(st.booleans()):
        ids.append(draw(st.sampled_from(sorted(profile.stop_token_ids))))
    return ids


# --- Law 1: append-only ---------------------------------------------------------------------


@each_trust
@each_model
def test_law_1_a_committed_token_never_changes(name, trust):
    """Turns in a random tree: extend, fork, warm up, abort; every node's tokens stay."""

    def check(talk: Conversation, data: st.DataObject) -> None:
        drive = Talk(name, trust, talk)
        nodes: list[tuple[_core.Node, list[int], list[dict[str, Any]]]] = []
        views: list[tuple[_core.TokenBuffer, list[int]]] = []
        owed: list[dict[str, Any]] = []  # outputs of the calls that the noise happened to make
        for turn_items in talk.turns:
            kind = data.draw(st.sampled_from(("answer", "warm", "abort", "fork")))
            if kind == "fork" and nodes:
                drive.node, _, owed = data.draw(st.sampled_from(nodes))
            before = drive.node.tokens().tolist() if drive.node else []
            turn = drive.open([*owed, *turn_items], generate=kind != "warm")
            prompt = turn.prompt.tolist()
            views.append((turn.prompt, prompt))
            assert turn.prefix_len <= len(before)
            assert prompt[: turn.prefix_len] == before[: turn.prefix_len]
            if turn.kind in ("extend", "fork"):
                # A final stop token may be replaced by the family's close.
                assert len(before) - turn.prefix_len <= 1
            deltas = turn.push(data.draw(noise(drive.profile))) if kind != "warm" else []
            if kind == "abort":
                turn.abort()
                continue
            owed = outputs_for(items_of(deltas + turn.finish()), "done")
            drive.node = turn.commit()
            tokens = drive.node.tokens().tolist()
            assert tokens[: len(prompt)] == prompt
            assert drive.node.token_count == len(tokens)
            nodes.append((drive.node, tokens, owed))
        for node, tokens, _ in nodes:
            assert node.tokens().tolist() == tokens
        for view, tokens in views:
            assert memoryview(view).tolist() == tokens

    holds(check, conversations(max_blocks=4), st.data())


# --- Law 2: verbatim ------------------------------------------------------------------------


@each_model
def test_law_2_a_sampled_span_is_what_was_pushed(name):
    profile = profile_of(name, "strict")

    def check(ids: list[int], talk: Conversation) -> None:
        drive = Talk(name, "strict", talk)
        drive.answer(talk.items, ids)
        node = drive.node
        sampled = [span for span in node.spans() if span.origin == "sampled"]
        stop = next((i for i, token in enumerate(ids) if token in profile.stop_token_ids), None)
        heard = ids if stop is None else ids[: stop + 1]
        tokens = node.tokens().tolist()
        got = [token for span in sampled for token in tokens[span.start : span.end]]
        if stop is None:
            assert got == heard
        else:  # a final stop token may be replaced by the family's close
            assert got[: len(heard) - 1] == heard[:-1]
            assert len(got) - len(heard) in (-1, 0)

    holds(check, noise(profile), conversations(max_blocks=2))


@each_model
def test_law_2_tokens_that_no_tokenizer_gives_stay(name):
    """Case 4 (docs/faults.md): sampled [198, 198] is "\\n\\n", which re-encodes to one token."""
    profile = profile_of(name, "strict")
    newline = profile.encode("\n").tolist()
    assert len(newline) == 1
    assert profile.encode("\n\n").tolist() != newline * 2
    drive = Talk(name, "strict", Conversation((), None, (), (), thinking=True))
    stop = profile.encode_output(b'{"text": "x"}')[-1]
    said = [*profile.encode("a").tolist(), *newline, *newline, *profile.encode("b").tolist()]
    first = drive.open([{"role": "user", "content": "u"}])
    before = first.prompt.tolist()
    first.push([*said, stop])
    first.finish()
    drive.node = first.commit()
    second = drive.open([{"role": "user", "content": "v"}])
    assert second.kind == "extend"
    assert second.prompt.tolist()[: len(before) + len(said)] == before + said


# --- Law 3: whole ---------------------------------------------------------------------------


@each_trust
@each_model
def test_law_3_spans_partition_and_spell_their_items(name, trust):
    model = model_of(name)

    def check(talk: Conversation) -> None:
        drive = Talk(name, trust, talk)
        *warm, last = talk.turns
        for items in warm:
            drive.warm(items)
        turn = drive.open(last)
        prompt, spans = turn.prompt.tolist(), turn.spans()
        edges = [(0, 0), *((span.start, span.end) for span in spans), (len(prompt), len(prompt))]
        for (_, end), (start, _) in pairwise(edges):
            assert end == start
        text = naive.render(
            model, talk.items, talk.instructions, talk.tools, thinking=talk.thinking
        )
        assert model.spell(prompt) == model.sayable(text)
        for span in spans:
            spelled = model.spell(prompt[span.start : span.end])
            for item in talk.items[slice(*span.items)] if span.kind == "item" else ():
                if item.get("type") != "reasoning":  # a template may leave it out
                    assert model.sayable(_words(item).strip("\n")) in spelled

    holds(check, conversations())


def _words(item: dict[str, Any]) -> str:
    return item.get("arguments") or naive._text(item.get("content") or item.get("output") or "")


@each_model
def test_law_3_spans_of_an_answered_turn_partition_too(name):
    profile = profile_of(name, "strict")

    def check(ids: list[int], talk: Conversation) -> None:
        drive = Talk(name, "strict", talk)
        drive.answer(talk.items, ids)
        end = 0
        for span in drive.node.spans():
            assert span.start == end
            end = span.end
        assert end == drive.node.token_count

    holds(check, noise(profile), conversations(max_blocks=2))


# --- Law 4: cut-safe ------------------------------------------------------------------------


@each_model
def test_law_4_every_encoder_is_the_reference(name):
    profile, model = profile_of(name, "strict"), model_of(name)

    def check(text: str) -> None:
        for control, expected in ((True, model.encode_text), (False, model.encode_bare)):
            for encode in (profile.encode, profile.encode_reference):
                same_ids(encode(text, control=control).tolist(), expected(text), model)

    holds(check, texts(adversarial=True, max_pieces=12), examples=500)


@each_trust
@each_model
def test_law_4_the_pieces_make_what_the_whole_makes(name, trust):
    """Needs no template: the prompt's own text, encoded at once, is the prompt."""
    model = model_of(name)

    def check(talk: Conversation) -> None:
        drive = Talk(name, trust, talk)
        *warm, last = talk.turns
        for items in warm:
            drive.warm(items)
        prompt = drive.open(last).prompt.tolist()
        # A byte that the vocabulary lacks leaves no token, but has split the text.
        assume(all(model.sayable(text) == model.normal(text) for text in _strings(talk)))
        same_ids(prompt, model.encode_text(model.spell(prompt).decode()), model)

    holds(check, conversations())


def _strings(talk: Conversation) -> list[str]:
    """What a client wrote; of tools, the JSON."""
    thoughts = [
        naive._text(item.get("content") or "") + naive._text(item.get("summary") or "")
        for item in talk.items
    ]
    tools = [json.dumps(tool, ensure_ascii=False) for tool in talk.tools]
    return [*thoughts, *tools, *map(_words, talk.items), talk.instructions or ""]


# --- Law 5: same as naive -------------------------------------------------------------------


@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@each_trust
@each_model
def test_law_5_any_split_into_turns_is_the_naive_prompt(name, trust, adversarial):
    def check(talk: Conversation) -> None:
        drive = Talk(name, trust, talk)
        *warm, last = talk.turns
        for items in warm:
            drive.warm(items)
            if not is_assistants(items[-1]):
                turn = drive.open([])
                same_ids(turn.prompt.tolist(), drive.naive(), drive.model)
                turn.abort()
        turn = drive.open(last)
        drive.items += last
        same_ids(turn.prompt.tolist(), drive.naive(), drive.model)

    holds(check, conversations(adversarial=adversarial), examples=400)


@each_trust
@each_model
def test_law_5_a_changed_header_is_the_naive_prompt(name, trust):
    """Instructions and tools are not inherited: a turn that brings others renders others."""

    def check(talk: Conversation, other: Conversation) -> None:
        drive = Talk(name, trust, talk)
        *warm, last = talk.turns
        for items in warm:
            drive.warm(items)
        drive.around = other
        turn = drive.open(last)
        drive.items += last
        same_ids(turn.prompt.tolist(), drive.naive(), drive.model)

    holds(check, conversations(adversarial=True), conversations(adversarial=True, max_blocks=0))


@each_model
def test_law_5_around_sampled_spans(name):
    """Answers of the family's own form, canonical ids or not: outside the sampled spans the ids
    are the naive ones; inside, the skeleton of added tokens is."""
    profile, model = profile_of(name, "compat"), model_of(name)
    starts = model.added_tokens["<|im_start|>"]

    def messages_of(ids: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = []
        for token_id in ids:
            if token_id == starts:
                found.append([])
            found[-1].append(token_id)
        return found

    def check(talk: Conversation, data: st.DataObject) -> None:
        drive = Talk(name, "compat", talk)
        sampled: list[int] = []  # which messages hold a sampled span
        owed: list[dict[str, Any]] = []
        for items in [*talk.turns, [{"role": "user", "content": "go on"}]]:
            new = [*owed, *items]
            turn = drive.open(new)
            prompt = turn.prompt.tolist()
            turn.abort()
            before, drive.items = drive.items, [*drive.items, *new]
            compare(prompt, drive.naive(), sampled)
            drive.items = before
            answer, ids = data.draw(samples(profile, thinks=talk.thinking))
            deltas = drive.answer(new, ids)
            sampled.append(len(messages_of(prompt)) - 1)
            assert merged(deltas) == spoken(answer, model)
            owed = outputs_for(items_of(deltas), "done")

    def compare(found: list[int], expected: list[int], sampled: list[int]) -> None:
        ours, theirs = messages_of(found), messages_of(expected)
        assert model.skeleton(found) == model.skeleton(expected)
        assert len(ours) == len(theirs)
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if index in sampled:
                assert model.spell(mine) == model.spell(other)
            else:
                same_ids(mine, other, model)

    holds(check, conversations(max_blocks=3), st.data(), examples=300)


def spoken(answer: Answer, model: naive.Model) -> list[tuple[str, str]]:
    """What the deltas of an answer must come to: its texts, as the tokenizer normalises them."""
    whole = []
    if answer.reasoning is not None:
        whole.append(("reasoning", answer.reasoning))
    if answer.text is not None:
        whole.append(("text", answer.text))
    for call_name, arguments in answer.calls:
        whole += [("call", call_name), ("arguments", arguments)]
    return [(kind, model.normal(text).decode()) for kind, text in whole]


@each_model
def test_law_5_a_sampled_answer_is_a_message_of_its_own(name):
    """Nothing that a client adds joins it: the model has ended it."""
    drive = Talk(name, "compat", Conversation((), None, (), (), thinking=True))
    ids = drive.profile.encode_output(b'{"text": "said"}')
    drive.answer([{"role": "user", "content": "u"}], ids)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    new = [call, {"type": "function_call_output", "call_id": "c", "output": "o"}]
    turn = drive.open(new)
    assert turn.kind == "extend"
    drive.items += new
    same_ids(turn.prompt.tolist(), drive.naive(), drive.model)


@each_model
def test_law_5_nothing_new_after_a_sampled_answer_keeps_it(name):
    """Qwen3's template would write an empty think block into it; what was sampled is the truth."""
    drive = Talk(name, "strict", Conversation((), None, (), (), thinking=True))
    drive.answer([{"role": "user", "content": "u"}], drive.profile.encode_output(b'{"text": "a"}'))
    known = drive.node.tokens().tolist()
    turn = drive.open([])
    assert turn.kind == "extend"
    assert turn.prompt.tolist()[: len(known)] == known


@each_model
def test_law_5_an_assistants_message_may_come_last(name):
    """Qwen3 writes an empty think block into an assistant's last message, and takes it back when
    something follows."""
    around = Conversation((), "i", (), (), thinking=True)
    for trust in TRUSTS:
        drive = Talk(name, trust, around)
        drive.warm([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}])
        for new in ([], [{"role": "user", "content": "v"}]):
            turn = drive.open(new)
            before = list(drive.items)
            drive.items += new
            same_ids(turn.prompt.tolist(), drive.naive(), drive.model)
            drive.items = before
            turn.abort()


def test_law_5_a_turn_that_brings_nothing_is_not_in_the_way():
    """Reasoning that was cut off goes with the next question, and what closed it too."""
    drive = Talk("qwen3", "strict", Conversation((), None, (), (), thinking=True))
    ask = [{"role": "user", "content": "u"}]
    drive.answer(ask, drive.profile.encode("<think>\nhm", control=True).tolist())
    drive.warm([])
    prompt = drive.open(ask).prompt.tolist()
    drive.items += ask
    same_ids(prompt, drive.naive(), drive.model)


# --- Strict: content forges nothing ---------------------------------------------------------


@each_model
def test_strict_content_holds_no_added_token(name):
    """Every added token of the model, spelled in every place that a client can write to."""
    model = model_of(name)
    forged = "".join(model.added_tokens)
    items = [
        {"role": "developer", "content": forged},
        {"role": "user", "content": forged},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": forged}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": forged}]},
        {"type": "function_call", "call_id": forged, "name": forged, "arguments": forged},
        {"type": "function_call_output", "call_id": forged, "output": forged},
    ]
    parameters = {"type": "object", "properties": {forged: {"description": forged}}}
    tool = {"type": "function", "name": "f", "description": forged, "parameters": parameters}
    around = Conversation((), forged, (tool,), (), thinking=True)
    plain = json.loads(json.dumps(items).replace(json.dumps(forged)[1:-1], "x"))
    plain_tool = json.loads(json.dumps(tool).replace(json.dumps(forged)[1:-1], "x"))
    prompt = Talk(name, "strict", around).open(items).prompt.tolist()
    expected = naive.encode(model, plain, "x", [plain_tool])
    assert model.skeleton(prompt) == model.skeleton(expected)


# --- Law 6: chunk-blind ---------------------------------------------------------------------


@each_model
def test_law_6_any_split_into_pushes_says_the_same(name):
    profile = profile_of(name, "strict")
    around = Conversation((), None, (), (), thinking=True)

    def say(ids: list[int], cuts: Sequence[int]) -> tuple[Any, ...]:
        drive = Talk(name, "strict", around)
        turn = drive.open([{"role": "user", "content": "u"}])
        edges = [0, *sorted(cuts), len(ids)]
        deltas = []
        for start, end in pairwise(edges):
            deltas += turn.push(ids[start:end])
        deltas += turn.finish()
        counts = (turn.sampled, turn.stopped, turn.reasoning_tokens)
        node = turn.commit()
        return merged(deltas), counts, node.tokens().tolist()

    def check(ids: list[int], data: st.DataObject) -> None:
        cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
        whole = say(ids, [])
        assert say(ids, cuts) == whole
        assert say(ids, range(1, len(ids))) == whole

    holds(check, noise(profile) | samples(profile).map(lambda pair: pair[1]), st.data())


@each_model
def test_law_6_no_delta_is_empty_or_half_a_character(name):
    profile = profile_of(name, "strict")
    around = Conversation((), None, (), (), thinking=True)
    ids = profile.encode_output(raw({"text": "👩‍👩‍👧‍👦 中文 e\u0301 שלום"}))
    turn = Talk(name, "strict", around).open([{"role": "user", "content": "u"}])
    deltas = [delta for token_id in ids for delta in turn.push([token_id])] + turn.finish()
    assert all(delta.text or delta.kind == "call" for delta in deltas)
    assert "\ufffd" not in "".join(delta.text for delta in deltas)


# --- Law 7: flat ----------------------------------------------------------------------------


@each_model
def test_law_7_what_is_rendered_does_not_grow_with_history(name):
    around = Conversation((), "i" * 1000, (), (), thinking=True)
    drive = Talk(name, "strict", around)
    ids = drive.profile.encode_output(b'{"text": "an answer"}')
    rendered = []
    for _ in range(200):
        turn = drive.open([{"role": "user", "content": "the same question"}])
        rendered.append(turn.rendered)
        assert turn.kind in ("cold", "extend")
        turn.push(ids)
        turn.finish()
        drive.node = turn.commit()
    assert len(set(rendered[1:])) == 1
    assert rendered[1] < 40
