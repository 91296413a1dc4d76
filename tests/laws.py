"""The laws (docs/design.md) of one random conversation, whatever renders it.

``oracle.generic`` says what every prompt must be. A test module brings the conversations and, where
that matters, what its models are likely to get wrong.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from talking import Talk, items_of, outputs_for, raw
from turnwire.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oracle.growing import Step
    from turnwire import _core


def whole(spans: Sequence[_core.Span], tokens: int, items: int) -> None:
    """Law 3: spans partition so many tokens."""
    end = 0
    for span in spans:
        assert span.start == end
        assert span.end >= span.start
        assert 0 <= span.items[0] <= span.items[1] <= items
        end = span.end
    assert end == tokens


def split_into_turns(
    talk: Talk,
    *,
    draw: Callable[[Talk], Step] = Talk.step,
    seen: Callable[[_core.Turn], None] = lambda _: None,
) -> None:
    """Law 5: a conversation in four turns, warm-ups all, each of which could have been a prompt;
    ``seen`` is shown those turns."""
    for _ in range(4):
        step = draw(talk)
        if talk.expected(step.items) is not None:
            turn = talk.open(step.items)
            talk.same(turn.prompt.tolist(), talk.expected(step.items))
            seen(turn)
            turn.abort()
        if talk.expected(step.items, generate=False) is not None:
            talk.warm(step.items)


def change_headers(talk: Talk, times: int) -> list[Any]:
    """Turns under a header each, and the items of one more: instructions and tools are not
    inherited."""
    for _ in range(times):
        step = talk.step()
        if talk.expected(step.items, generate=False) is not None:
            talk.warm(step.items)
        talk.head()
    return list(talk.step().items)


def around_sampled_answers(
    talk: Talk,
    new: list[Any],
    answered: Callable[[Talk], tuple[list[int], list[int]]],
    *,
    refuses: bool = False,
) -> None:
    """Law 5: five answers, each of some ids and perhaps a stop token, as the template prints them.
    The next prompts read as if a client had sent them, and the ids are those that were sampled;
    ``refuses`` if the template may not take what comes next."""
    close = talk.profile.encode_output(raw({"text": ""}))[-1:]
    sampled: list[list[int]] = []
    for _ in range(5):
        if refuses and talk.expected(new) is None:
            break
        turn = talk.open(new)
        prompt = turn.prompt.tolist()
        assert turn.reencoded == 0
        talk.reads_as(prompt, talk.expected(new))
        spans = [span for span in turn.spans() if span.origin == "sampled"]
        assert [prompt[span.start : span.end] for span in spans] == sampled
        ids, stop = answered(talk)
        talk.answer(turn, new, [*ids, *stop])
        sampled.append([*ids, *close])
        new = outputs_for([i for i in talk.items if i.get("_turn") == talk.turns])
        new = new or list(talk.growing.user().items)


def random_tree(talk: Talk, noise: Callable[[Talk], list[int]]) -> None:
    """Laws 1 and 3: extend, fork, warm up, abort, with whatever a model in trouble samples; every
    node's tokens stay, and spans partition them."""
    nodes: list[tuple[_core.Node, list[int], list[Any], list[Any]]] = []
    owed: list[Any] = []
    for _ in range(6):
        kind = talk.random.choice(("answer", "answer", "warm", "abort", "fork"))
        if kind == "fork" and nodes:
            talk.node, _, talk.items, owed = talk.random.choice(nodes)
        new = [*owed, *talk.growing.any().items]
        before = talk.node.tokens().tolist() if talk.node else []
        try:
            turn = talk._open(new, generate=kind != "warm")
        except InvalidValueError:
            continue
        prompt = turn.prompt.tolist()
        assert prompt[: turn.prefix_len] == before[: turn.prefix_len]
        assert turn.kind in ("cold", "rebase", "rewind") or turn.prefix_len == len(before)
        deltas = turn.push(noise(talk)) if kind != "warm" else []
        if kind == "abort":
            turn.abort()
            continue
        answer = items_of(deltas + turn.finish())
        owed = outputs_for(answer)
        talk.node = turn.commit()
        talk.items = [*talk.items, *new, *answer]
        tokens = talk.node.tokens().tolist()
        assert tokens[: len(prompt)] == prompt
        whole(talk.node.spans(), len(tokens), talk.node.item_count)
        nodes.append((talk.node, tokens, talk.items, owed))
    for node, tokens, _, _ in nodes:
        assert node.tokens().tolist() == tokens


def split_into_pushes(talk: Talk, ask: Sequence[Any], ids: Sequence[int]) -> None:
    """Law 6: the same ids behind ``ask``, at once, in a few pushes and one by one."""

    def say(cuts: Sequence[int]) -> tuple[Any, ...]:
        turn = talk.open(ask)
        deltas = [d for a, b in pairwise((0, *cuts, len(ids))) for d in turn.push(ids[a:b])]
        deltas += turn.finish()
        assert all(delta.text or delta.kind == "call" for delta in deltas)
        counts = (turn.sampled, turn.stopped, turn.reasoning_tokens)
        found = [{k: v for k, v in i.items() if k != "call_id"} for i in items_of(deltas)]
        return found, counts, turn.commit().tokens().tolist()

    alone = say([])
    assert say(sorted(talk.random.choices(range(len(ids) + 1), k=3))) == alone
    assert say(range(1, len(ids))) == alone
