"""Many conversations in one set of chains, grown in every way, beside a naive list of items.

A step takes any node so far and goes on from it: with new items, under other instructions or
tools, with or without thinking, as a continuation or as a client that sends everything (in its own
spelling, or edited); then it aborts, warms up, or samples an answer. Whatever happened before, the
prompt must be the naive model's for those items; and what a node holds must never change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from native.test_laws import (
    MODELS,
    holds,
    items_of,
    model_of,
    outputs_for,
    profile_of,
    raw,
    same_ids,
    samples,
)
from oracle import naive
from oracle.conversations import Conversation, conversations, tool_lists
from talking import through_template
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(600)

Items = tuple[dict[str, Any], ...]

GENERIC = ", run"
"""The same model's template with a word changed, which no native renderer prints."""


@dataclass(frozen=True)
class Header:
    instructions: str | None
    tools: tuple[dict[str, Any], ...]

    @property
    def given(self) -> dict[str, bytes]:
        return {"instructions": raw(self.instructions), "tools": raw(list(self.tools))}


@dataclass(frozen=True)
class Known:
    """A committed node, and what it must be."""

    node: _core.Node | None
    items: Items
    tokens: tuple[int, ...]
    owed: Items
    """Outputs that have to come first."""
    found: bool
    """Whether a client that sends everything is recognised at it."""


class World:
    def __init__(self, name: str) -> None:
        self.profile = profile_of(name.removesuffix(GENERIC), "compat")
        self.model = model_of(name.removesuffix(GENERIC))
        if name.endswith(GENERIC):
            template = through_template(self.model.template)
            self.profile = self.profile.with_template(template, trust="compat")
            assert self.profile.family == "generic"
            self.model = replace(self.model, template=template)
        self.opens = self.model.added_tokens["<|im_start|>"]
        self.chains = _core.Chains(self.profile)
        self.known = [Known(None, (), (), (), found=False)]
        self.continued = [self.known[0]]
        self.turns = 0
        self.steps = 0

    def compare(
        self, turn: _core.Turn, items: Items, header: Header, *, generate: bool, thinking: bool
    ) -> None:
        found = turn.prompt.tolist()
        expected = naive.encode(
            self.model,
            items,
            header.instructions,
            header.tools,
            generate=generate,
            thinking=thinking,
            trust="compat",
        )
        spans = turn.spans()
        assert [span.start for span in spans] == [0, *(span.end for span in spans)][:-1]
        sampled = {
            found[: span.start].count(self.opens) for span in spans if span.kind == "sampled"
        }
        ours, theirs = self.messages(found), self.messages(expected)
        assert self.model.skeleton(found) == self.model.skeleton(expected)
        assert len(ours) == len(theirs)
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if index in sampled:
                assert self.model.spell(mine) == self.model.spell(other)
            else:
                same_ids(mine, other, self.model)

    def messages(self, ids: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[]]
        for token_id in ids:
            if token_id == self.opens:
                found.append([])
            found[-1].append(token_id)
        return found


def sent(items: Items, *, respell: bool) -> list[dict[str, Any]]:
    """Items as a client holds them; the oracle's own marks stay at home."""
    plain = [{key: value for key, value in item.items() if key != "_turn"} for item in items]
    if respell:
        for item, held in zip(plain, items, strict=True):
            if item.get("type") == "function_call" and "_turn" in held:
                item["arguments"] = " " + json.dumps(json.loads(item["arguments"]), indent=1)
    return plain


def step(world: World, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(world.known), label="from")
    header = Header(
        data.draw(st.none() | st.sampled_from(("", "Be terse.", "You are.\n")), label="says"),
        tuple(data.draw(st.just([]) | tool_lists(adversarial=False), label="tools")),
    )
    thinking = data.draw(st.booleans(), label="thinks")
    generate = data.draw(st.sampled_from((True, True, True, False)), label="generates")
    talk: Conversation = data.draw(conversations(max_blocks=2), label="brings")
    world.steps += 1
    new = talk.items
    # No two conversations begin alike, nor go on alike from one node: none is found by chance.
    if any(base is other for other in world.continued):
        new = ({"role": "user", "content": f"conversation {world.steps}"}, *new)
    world.continued.append(base)
    new = (*base.owed, *new)

    way = data.draw(st.sampled_from(("continues", "in full", "respelled", "edited")), label="way")
    items, before = (*base.items, *new), base
    if way == "continues" or base.node is None or not base.found:
        request = (base.node, raw(sent(new, respell=False)))
    else:
        if way == "edited":
            # The first item is another: nothing of the past may be used.
            items = ({"role": "user", "content": f"edit {world.steps}"}, *plainly(items))
            before = replace(base, node=None, tokens=())
        request = (None, raw(sent(items, respell=way == "respelled")))
    turn = world.chains.open(
        *request,
        **header.given,
        effort=None if thinking else "none",
        generate=generate,
        scope=b"me",
    )
    assert turn.prompt.tolist()[: turn.prefix_len] == list(before.tokens[: turn.prefix_len])
    if way in {"in full", "respelled"} and base.found:
        assert turn.known_items == len(base.items)
    world.compare(turn, items, header, generate=generate, thinking=thinking)

    end = data.draw(st.sampled_from(("commit", "commit", "abort")), label="end")
    if end == "abort":
        turn.abort()
    elif not generate:
        node = turn.commit()
        tokens = tuple(node.tokens().tolist())
        last = items[-1].get("type", "message")
        world.known.append(Known(node, items, tokens, (), found=last != "reasoning"))
    else:
        _, ids = data.draw(samples(world.profile, thinks=thinking))
        prompt = turn.prompt.tolist()
        deltas = turn.push(ids) + turn.finish()
        node = turn.commit()
        tokens = tuple(node.tokens().tolist())
        assert tokens == (*prompt, *ids)
        said = items_of(deltas)
        world.turns += 1
        answer = tuple({**item, "_turn": world.turns} for item in said)
        world.known.append(
            Known(
                node,
                (*items, *answer),
                tokens,
                tuple(outputs_for(said, "done")),
                found=bool(said) and said[-1]["type"] != "reasoning",
            )
        )
    for known in world.known:
        if known.node is not None:
            assert tuple(known.node.tokens().tolist()) == known.tokens, "a committed token changed"


def plainly(items: Items) -> Items:
    """Items that nobody sampled: to the oracle, adjacent ones may join."""
    return tuple({key: value for key, value in item.items() if key != "_turn"} for item in items)


@pytest.mark.parametrize("name", [*MODELS, "qwen3" + GENERIC])
def test_any_history_is_the_naive_one(name):
    def check(data: st.DataObject) -> None:
        world = World(name)
        for _ in range(data.draw(st.integers(2, 7), label="steps")):
            step(world, data)

    holds(check, st.data(), examples=150)
