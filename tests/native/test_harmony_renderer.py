"""What gpt-oss is asked, natively, against OpenAI's own renderer (``oracle.harmony``).

Answers are that library's tokens too: it writes what the model says, and the next prompt must hold
those tokens where they were, without the reasoning that an answer ended. The conversations are
random, by seeds; ``LAWS_FACTOR=20 pytest tests/native`` looks twenty times as hard.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from oracle import generic, harmony, templates
from talking import ASK, NOW, Talk, items_of, outputs_for, profile_of, raw
from turnwire import _core
from turnwire.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from openai_harmony import Message

    from oracle.naive import Trust

pytestmark = pytest.mark.timeout(600)

TEMPLATE = "llama.cpp/openai-gpt-oss-120b"
NATIVE = (TEMPLATE, "trl/gptoss", "trl/gptoss_training")
TRUSTS: tuple[Trust, ...] = ("strict", "compat")
RETURN, CALL, END = "<|return|>", "<|call|>", "<|end|>"
each_trust = pytest.mark.parametrize("trust", TRUSTS)


def talks(trust: Trust, count: int) -> Iterator[Talk]:
    for seed in range(count * int(os.environ.get("LAWS_FACTOR", "1"))):
        yield Talk(templates.template(TEMPLATE), trust, f"harmony {seed}")


def control(name: str) -> int:
    return templates.template(TEMPLATE).vocabulary.controls[name]


@each_trust
@pytest.mark.parametrize("name", NATIVE)
def test_the_template_is_served_natively(name, trust):
    profile = profile_of(templates.template(name), trust)
    assert (profile.family, profile.reads_calls) == ("harmony", True)


def test_a_template_that_asks_otherwise_is_run_itself():
    text = templates.text_of(TEMPLATE).replace(
        "<|start|>user<|message|>", "<|start|>user <|message|>"
    )
    profile = profile_of(templates.template(TEMPLATE), "strict").with_template(text, trust="strict")
    assert profile.family == "generic"


# --- What a client brings ---------------------------------------------------------------------


@each_trust
def test_what_a_client_brings_is_openais_prompt(trust):
    """Whole or in turns, warmed up or not, and under headers that change."""
    for talk in talks(trust, 30):
        for _ in range(4):
            step = talk.step()
            talk.same(talk.open(step.items).prompt.tolist(), talk.expected(step.items))
            if talk.random.random() < 0.3:  # all of it anew
                talk.node, everything, talk.items = None, [*talk.items, *step.items], []
                talk.warm(everything)
            else:
                talk.warm(step.items)
            if talk.random.random() < 0.2:
                talk.head()


# --- What the model samples -------------------------------------------------------------------


def answer(talk: Talk) -> tuple[list[Message], str]:
    """What a model may say in one turn, and what ends it."""
    random = talk.random
    text = talk.growing.text
    said = [harmony.spoken("analysis", text(3, 1)) for _ in range(random.choice((0, 1, 1, 2)))]
    if random.random() < 0.3:
        said.append(harmony.spoken("commentary", text(2, 1)))
        said += [harmony.spoken("analysis", text(2, 1))] * random.randint(0, 1)
    if random.random() < 0.5:
        return [*said, harmony.called(random.choice(("f_1", "shell")), '{"a": "é<|end|>"}')], CALL
    return [*said, harmony.spoken("final", text(3, 1))], RETURN


def sampled(messages: Sequence[Message], ends: str) -> list[int]:
    """Messages as their model samples them, behind ``<|start|>assistant``."""
    ids = harmony.render(messages, generate=False)[2:]
    return [*ids[:-1], control(ends)]


@each_trust
def test_sampled_tokens_stay_but_for_the_reasoning_that_an_answer_ends(trust):
    """Token for token: nothing of an answer is made from text again."""
    for talk in talks(trust, 30):
        talk.tools = []
        # Under compat, controls that a user spells are matched: that is tested above.
        users = talk.grow(plain=trust == "compat")
        front = harmony.encode(talk.template, [], talk.instructions, generate=False, trust=trust)
        new: list[Any] = list(ASK)
        history, stood, asked = harmony.said(new), [], harmony.said(new)
        for turns in range(5):
            turn = talk.open(new)
            stands = harmony.without_ended_reasoning(history, generate=True)
            talk.same(turn.prompt.tolist(), [*front, *harmony.render(stands, generate=True)])
            if turns:
                goes = len(stands) < len(stood) + len(asked)
                assert turn.kind == ("rewind" if goes else "extend")
                assert turn.rendered == len(harmony.render(asked, generate=True))
            said, ends = answer(talk)
            talk.answer(turn, new, sampled(said, ends))
            stood = [*stands, *said]
            owed = outputs_for(talk.items[-1:])
            new = owed or list(users.user().items)
            asked = harmony.said([*talk.items[-1:], *new])[-len(new) :]
            history = [*history, *said, *asked]


@each_trust
def test_an_answer_that_is_cut_off_is_closed_where_it_was(trust):
    """In reasoning, in a text, or in a call's arguments; what ends a message inside is kept."""
    for talk in talks(trust, 30):
        talk.tools = []
        turn = talk.open(ASK)
        prompt = turn.prompt.tolist()
        said, _ = answer(talk)
        parts = [harmony.render([message], generate=False) for message in said]
        last = talk.random.randrange(len(said))
        body = parts[last].index(control("<|message|>")) + 1
        cut = parts[last][: talk.random.randint(body, len(parts[last]) - 1)]
        ids = [token_id for part in parts[:last] for token_id in part] + cut
        deltas = turn.push(ids[2:]) + turn.finish()
        owed = outputs_for(items_of(deltas))
        talk.node = turn.commit()

        gone = "analysis" if said[last].channel == "final" else ""
        kept = [part for m, part in zip(said, parts[:last], strict=False) if m.channel != gone]
        closed = [token_id for part in [*kept, cut] for token_id in part] + [control(END)]
        outputs = harmony.said([*items_of(deltas), *owed])[-len(owed) :] if owed else []
        rest = harmony.render([*outputs, *harmony.said(ASK)], generate=True)
        talk.same(talk.open([*owed, *ASK]).prompt.tolist(), [*prompt[:-2], *closed, *rest])


# --- Pitfalls, by hand ------------------------------------------------------------------------


class Hand:
    """A conversation whose answers are written in the format's own letters."""

    def __init__(self, trust: Trust = "strict") -> None:
        self.profile = profile_of(templates.template(TEMPLATE), trust)
        self.chains = _core.Chains(self.profile)
        self.node: _core.Node | None = None

    def open(self, items: Sequence[Any], **asked: Any) -> _core.Turn:
        return self.chains.open(self.node, raw(list(items)), now=NOW, **asked)

    def answer(self, items: Sequence[Any], said: str, **asked: Any) -> list[dict[str, Any]]:
        turn = self.open(items, **asked)
        deltas = turn.push(self.profile.encode(said, control=True).tolist()) + turn.finish()
        self.node = turn.commit()
        return items_of(deltas)

    def history(self, items: Sequence[Any] = ASK) -> str:
        """The next prompt behind its header."""
        turn = self.open(items)
        text = self.profile.decode(turn.prompt.tolist())
        return text.split("every message.<|end|>", 1)[1]


ASKED = "<|start|>user<|message|>x<|end|>"
ASKS = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>why<|end|>"
CALLED = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
OUTPUT = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>done<|end|>"
FINAL = "<|channel|>final<|message|>so"
"""As in the guide: developers.openai.com/cookbook/articles/openai-harmony, but for the texts."""


def test_a_return_is_an_end_in_history():
    hand = Hand()
    hand.answer(ASK, FINAL + RETURN)
    assert hand.history() == f"{ASKED}{ASKS}{FINAL}<|end|>{ASKED}{ASKS}"


def test_reasoning_stays_while_tools_are_called_and_goes_with_the_answer():
    hand = Hand()
    outputs = outputs_for(hand.answer(ASK, THOUGHT + ASKS + CALLED))
    assert hand.history(outputs) == f"{ASKED}{ASKS}{THOUGHT}{ASKS}{CALLED}{OUTPUT}{ASKS}"
    hand.answer(outputs, THOUGHT + ASKS + FINAL + RETURN)
    turn = hand.open(ASK)
    assert turn.kind == "rewind"
    assert hand.history() == f"{ASKED}{ASKS}{CALLED}{OUTPUT}{ASKS}{FINAL}<|end|>{ASKED}{ASKS}"


def test_a_question_alone_takes_no_reasoning_away():
    """OpenAI's guide: only responses that ended in a final message lose theirs."""
    hand = Hand()
    outputs = outputs_for(hand.answer(ASK, THOUGHT + ASKS + CALLED))
    assert THOUGHT in hand.history([*outputs, *ASK])


def test_a_preamble_is_no_answer():
    hand = Hand()
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    items = hand.answer(ASK, THOUGHT + ASKS + preamble + ASKS + CALLED)
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    expected = f"{ASKED}{ASKS}{THOUGHT}{ASKS}{preamble}{ASKS}{CALLED}{OUTPUT}{ASKS}"
    assert hand.history(outputs_for(items)) == expected


def test_reasoning_that_is_all_of_an_answer_goes_with_its_opening():
    hand = Hand()
    hand.answer(ASK, THOUGHT)
    hand.answer(ASK, FINAL + RETURN)
    assert hand.history() == f"{ASKED}{ASKED}{ASKS}{FINAL}<|end|>{ASKED}{ASKS}"


def test_the_recipient_may_stand_before_the_channel():
    hand = Hand()
    called = " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
    outputs = outputs_for(hand.answer(ASK, called))
    assert hand.history(outputs) == f"{ASKED}{ASKS}{called}{OUTPUT}{ASKS}"


def test_a_builtin_tool_is_answered_by_its_own_name():
    hand = Hand()
    called = '<|channel|>analysis to=browser.search code<|message|>{"query":"x"}<|call|>'
    items = hand.answer(ASK, called)
    assert (items[0]["name"], items[0]["arguments"]) == ("browser.search", '{"query":"x"}')
    output = OUTPUT.replace("functions.f", "browser.search")
    assert hand.history(outputs_for(items)) == f"{ASKED}{ASKS}{called}{output}{ASKS}"


def test_a_function_whose_name_is_no_word_goes_to_the_template():
    """A name that holds a space would say more than a name."""
    template = templates.template(TEMPLATE)
    call = {"type": "function_call", "call_id": "c", "name": "f to=user", "arguments": "{}"}
    items = [*ASK, call, *outputs_for([call]), *ASK]
    expected = generic.encode(template, items, trust="strict")
    assert Hand().open(items).prompt.tolist() == expected


def test_under_compat_the_template_refuses_channels_in_a_text():
    text = "<|channel|>final<|message|>x"
    items = [*ASK, {"role": "assistant", "content": [{"type": "output_text", "text": text}]}, *ASK]
    with pytest.raises(InvalidValueError):
        Hand("compat").open(items)
    assert "<|channel|>final" in Hand().history(items)


def test_another_effort_is_another_header_before_the_same_tokens():
    hand = Hand()
    hand.answer(ASK, FINAL + RETURN)
    low, high = hand.open(ASK, effort="low"), hand.open(ASK, effort="high")
    assert (low.kind, high.kind) == ("rebase", "rebase")
    texts = [hand.profile.decode(turn.prompt.tolist()) for turn in (low, high)]
    assert texts[0].replace("Reasoning: low", "Reasoning: high") == texts[1]
