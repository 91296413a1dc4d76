"""A conversation sent in full each time, beside the same one continued by its node: the prompts are
the same, id for id, and no item that was there before is rendered again.

The oracle is the other path: `test_laws.py` holds it to the naive model.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from native.test_laws import (
    Talk,
    each_model,
    holds,
    items_of,
    outputs_for,
    profile_of,
    raw,
    same_ids,
    samples,
)
from oracle.conversations import Conversation, conversations
from turnwire import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(600)


class FullHistory:
    """A client that keeps its items and sends all of them, in its own spelling."""

    def __init__(self, chains: _core.Chains, around: Conversation) -> None:
        self.chains = chains
        self.around = around
        self.items: list[dict[str, Any]] = []

    def open(self, new: Sequence[dict[str, Any]]) -> _core.Turn:
        self.items += new
        around = self.around
        return self.chains.open(
            None,
            raw(self.items),
            instructions=raw(around.instructions),
            tools=raw(list(around.tools)),
            effort=None if around.thinking else "none",
            scope=b"me",
        )


def echoed(items: Sequence[dict[str, Any]], data: st.DataObject) -> list[dict[str, Any]]:
    """Output items as some client returns them: maybe without reasoning, maybe respelled."""
    items = list(items)
    if data.draw(st.booleans(), label="drops reasoning"):
        items = [item for item in items if item["type"] != "reasoning"]
    if data.draw(st.booleans(), label="respells arguments"):
        items = [respelled(item) for item in items]
    return items


def respelled(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "function_call":
        return item
    try:
        value = json.loads(item["arguments"])
    except ValueError:
        return item
    # Only what every JSON library writes the same way: no floats, no white space.
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {**item, "arguments": plain} if "." not in plain and "e" not in plain else item


@each_model
def test_in_full_is_the_same_as_continued(name):
    profile = profile_of(name, "strict")

    def check(talk: Conversation, data: st.DataObject) -> None:
        continued = Talk(name, "strict", talk)
        client = FullHistory(_core.Chains(profile), talk)
        owed: tuple[list[Any], list[Any]] = ([], [])
        for items in [*talk.turns, [{"role": "user", "content": "go on"}]]:
            sent = len(client.items)
            turn = client.open([*owed[1], *items])
            expected = continued.open([*owed[0], *items])
            same_ids(turn.prompt.tolist(), expected.prompt.tolist(), continued.model)
            assert turn.known_items == sent
            assert turn.prefix_len == expected.prefix_len
            expected.abort()
            _, ids = data.draw(samples(profile, thinks=talk.thinking))
            answer = items_of(continued.answer([*owed[0], *items], ids))
            said = items_of(turn.push(ids) + turn.finish())
            turn.commit()
            if not said or said[-1]["type"] == "reasoning":
                return  # an answer without a last word is not found again
            owed = (outputs_for(answer, "done"), outputs_for(said, "done"))
            client.items += echoed(said, data)

    holds(check, conversations(max_blocks=3), st.data(), examples=300)
