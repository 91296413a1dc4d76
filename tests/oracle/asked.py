"""Conversations for oracles that are asked over a whole prompt, and what turnwire makes of them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from oracle import naive
from oracle.growing import NOT_OBJECTS, Growing
from talking import raw
from turnwire import _core
from turnwire.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oracle.naive import Item, Message
    from oracle.vocabulary import Vocabulary


@dataclass(frozen=True)
class Asked:
    """A conversation that a client brings."""

    items: list[Item]
    cuts: tuple[int, ...]
    """Item counts at which a turn ends that only warms up."""
    instructions: str | None
    tools: list[Item]
    thinking: bool

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item["type"] == "function_call"]

    @property
    def chat(self) -> list[Message]:
        return naive.messages(self.items, self.instructions)

    @property
    def roles(self) -> list[str]:
        return [message["role"] for message in self.chat]


# --- Where the two are known to part --------------------------------------------------------


def conversations(seed_words: str, known: Vocabulary, *, plain: bool = False) -> Iterator[Asked]:
    """Without end, the same on every run. Most have what oracles agree on: described tools, and
    arguments that are objects in Python's spelling; ``plain`` if most texts spell nothing."""
    for seed in range(1 << 30):
        random = Random(f"{seed_words} {seed}")
        calm = plain and random.random() < 0.9
        growing = Growing(random, known, plain=calm, dumped=random.random() < 0.95)
        if random.random() < 0.95:
            growing._arguments = [t for t in growing._arguments if not re.search("dup|big|1e-", t)]
            growing._odd = growing._arguments
        tools = growing.tools()
        if random.random() < 0.95:
            for tool in tools:
                tool["description"] = tool.get("description") or "Does it."
                tool["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        steps = [growing.any().items for _ in range(random.randint(1, 5))]
        if random.random() < 0.5:
            steps.insert(0, growing.user().items)
        if random.random() < 0.03:
            growing._odd = list(NOT_OBJECTS)
            steps.append(growing.called(objects=False).items)
        if random.random() < 0.01:
            steps.append(({"type": "message", "role": "user", "content": growing.text(900, 400)},))
        items: list[Item] = []
        cuts = set()
        for step in steps:
            cuts.add(len(items))
            items += step
        yield Asked(
            items,
            tuple(sorted(c for c in cuts if c and random.random() < 0.3)),
            growing.instructions(),
            tools,
            random.random() < 0.7,
        )


def ours(profile: _core.Profile, asked: Asked, effort: str | None) -> list[int] | None:
    """turnwire's ids; None where the template refuses the conversation."""
    chains = _core.Chains(profile)
    how: dict[str, Any] = {"instructions": raw(asked.instructions), "tools": raw(asked.tools)}
    how |= {"effort": effort, "now": int(time.time())}
    node = None
    edges = [0, *asked.cuts, len(asked.items)]
    for start, end in pairwise(edges):
        last = end == len(asked.items)
        try:
            turn = chains.open(node, raw(asked.items[start:end]), generate=last, **how)
        except InvalidValueError:  # a template may refuse the part, and take the whole
            return ours(profile, replace(asked, cuts=()), effort) if asked.cuts else None
        if last:
            return turn.prompt.tolist()
        turn.finish()
        node = turn.commit()
    raise AssertionError
