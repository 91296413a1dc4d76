"""What one more turn costs: ``chains.open`` of about 500 new tokens at several lengths of history.

* extend: the conversation goes on at its tip;
* fork: another turn has the tip, so its tokens are copied once;
* rebase: other instructions, all else the same;
* found: the whole conversation is sent again and recognised (its items are parsed and compared,
  nothing of it is rendered);
* generic: extend, where no native renderer prints the template, so that it is run over all of it;
* cold: everything is new, our renderer and fastokens over all of it.

The model is Qwen 3; the others of ``models.py`` extend.

``make bench`` measures and records; the test suite runs it once, for correctness only.
``test_peers.py`` measures what others do for the same turn.
"""

from __future__ import annotations

import json

import pytest

from agent import NEW_TOKENS, Agent, Opening, agent_of, generic_profile
from models import MODELS, QWEN
from oracle import naive, vocabulary
from sizes import FAMILY_SIZES, SIZES

pytestmark = pytest.mark.timeout(900)

KINDS = ("extend", "fork", "rebase", "found", "generic", "cold")


@pytest.mark.parametrize("history", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open(benchmark, measured, kind, history):
    """turnwire: parse, render and encode what is new."""
    agent = Agent(history, generic_profile()) if kind == "generic" else agent_of(history)
    opening = Opening(agent, agent.node, [])
    work = opening.open
    if kind == "fork":
        holder = Opening(agent, agent.node, [])  # has the tip while it lives
        holder.open(next(holder.pool))
    elif kind == "rebase":
        work = opening.open_under_another_header
    elif kind in {"found", "cold"}:
        opening = Opening(agent, None, agent.items)
        work = opening.open_unknown if kind == "cold" else opening.open
    rounds = 300 if kind == "extend" else max(10, min(300, 1_000_000 // history))
    benchmark.pedantic(work, setup=opening.prepare, rounds=rounds, warmup_rounds=5)
    turn = opening.turn
    assert turn is not None
    assert turn.kind == {"found": "extend", "generic": "extend"}.get(kind, kind)
    assert kind in {"cold", "rebase"} or turn.rendered < 2 * NEW_TOKENS
    measured(
        contender=f"turnwire {kind}",
        history_tokens=history,
        prompt_tokens=len(turn.prompt),
        new_tokens=turn.rendered,
    )
    turn.abort()


@pytest.mark.parametrize("history", FAMILY_SIZES)
@pytest.mark.parametrize("model", [model for model in MODELS if model != QWEN])
def test_other_families_extend(benchmark, measured, model, history):
    agent = agent_of(history, model)
    opening = Opening(agent, agent.node, [])
    benchmark.pedantic(opening.open, setup=opening.prepare, rounds=300, warmup_rounds=5)
    turn = opening.turn
    assert turn is not None
    assert turn.kind == "extend"
    assert turn.rendered < 2 * NEW_TOKENS
    measured(
        contender=f"turnwire extend, {model}",
        history_tokens=history,
        prompt_tokens=len(turn.prompt),
        new_tokens=turn.rendered,
    )
    turn.abort()


def test_all_come_to_the_same_ids():
    """The contenders do the same work: no special token is spelled in what they are given."""
    agent = agent_of(10_000)
    model = vocabulary.qwen3()
    spelled = any(token in text for token in model.added_tokens for text in agent.texts())
    new = agent.output("plain text")
    turn = agent.chains.open(agent.node, json.dumps([new]).encode(), **agent.header)
    expected = naive.encode(
        model,
        [*agent.items, new],
        agent.instructions,
        agent.tools,
        trust="strict" if spelled else "compat",
    )
    assert turn.prompt.tolist() == expected
    turn.abort()
