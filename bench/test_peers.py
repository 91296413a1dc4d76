"""What others do for the same turn: parse the body, render and encode the whole conversation.

* jinja2 + HF: what a server in Python does by the book;
* minijinja + fastokens: the fastest libraries there are, over everything, each turn; with and
  without fastokens' own cache of segments that it has seen. The ids stay in Rust's buffer
  (``encode_batch_flat``): no list is made of them.
* msgspec parse: reading the body of a client that sends everything, and nothing else.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import fastokens
import minijinja
import msgspec
import pytest

from agent import Opening, agent_of
from oracle import naive, vocabulary
from sizes import SIZES

pytestmark = pytest.mark.timeout(900)

SEGMENT_CACHE_BYTES = 1 << 30


class Pool:
    """Conversations in full with a new last output each time, as chat messages."""

    def __init__(self, history: int) -> None:
        self.agent = agent_of(history)
        self.new = itertools.cycle([self.agent.output(text) for text in self.agent.texts()])
        self.lengths: list[int] = []

    def items(self) -> tuple[tuple[list[dict[str, Any]]], dict[str, Any]]:
        return ([*self.agent.items, next(self.new)],), {}

    def chat(self) -> tuple[tuple[list[dict[str, Any]]], dict[str, Any]]:
        ((items,), _) = self.items()
        return (naive.messages(items, self.agent.instructions),), {}


@cache
def environment() -> minijinja.Environment:
    return minijinja.Environment(
        templates={"chat": vocabulary.qwen3().template},
        trim_blocks=True,
        lstrip_blocks=True,
        pycompat=True,
        filters={"tojson": lambda value: json.dumps(value, ensure_ascii=False)},
    )


@cache
def encoder(segment_cache: bool) -> fastokens.Tokenizer:
    tokenizer = fastokens.Tokenizer.from_file(str(vocabulary.qwen3_path() / "tokenizer.json"))
    tokenizer.enable_segment_cache(SEGMENT_CACHE_BYTES if segment_cache else 0)
    return tokenizer


@pytest.mark.parametrize("history", SIZES)
@pytest.mark.parametrize("segment_cache", [False, True])
def test_minijinja_and_fastokens(benchmark, measured, segment_cache, history):
    pool = Pool(history)
    tools = naive.tool_definitions(pool.agent.tools)
    render, tokenizer = environment().render_template, encoder(segment_cache)

    def encode(chat: list[dict[str, Any]]) -> None:
        text = render("chat", messages=chat, tools=tools, add_generation_prompt=True)
        ids, _ = tokenizer.encode_batch_flat([text])
        pool.lengths.append(len(ids) // 4)

    rounds = max(10, min(100, 1_000_000 // history))
    benchmark.pedantic(encode, setup=pool.chat, rounds=rounds, warmup_rounds=3)
    measured(
        contender="minijinja + fastokens" + (", segment cache" if segment_cache else ""),
        history_tokens=history,
        prompt_tokens=pool.lengths[-1],
        new_tokens=pool.lengths[-1],
    )


@pytest.mark.parametrize("history", SIZES)
def test_jinja2_and_hugging_face(benchmark, measured, history):
    pool, model = Pool(history), vocabulary.qwen3()

    def encode(items: list[dict[str, Any]]) -> None:
        ids = naive.encode(model, items, pool.agent.instructions, pool.agent.tools)
        pool.lengths.append(len(ids))

    rounds = 1 if benchmark.disabled else max(3, min(50, 500_000 // history))
    benchmark.pedantic(encode, setup=pool.items, rounds=rounds)
    measured(
        contender="jinja2 + HF",
        history_tokens=history,
        prompt_tokens=pool.lengths[-1],
        new_tokens=pool.lengths[-1],
    )


@pytest.mark.parametrize("history", SIZES)
def test_parsing_the_body(benchmark, measured, history):
    agent = agent_of(history)
    opening = Opening(agent, None, agent.items)
    parse = msgspec.json.Decoder().decode
    benchmark.pedantic(parse, setup=opening.prepare, rounds=100, warmup_rounds=5)
    measured(
        contender="msgspec parse",
        history_tokens=history,
        prompt_tokens=agent.node.token_count if agent.node else 0,
        new_tokens=0,
    )


def test_the_fast_peer_does_the_same_work():
    """Its text is jinja2's, and its ids are those of Hugging Face ``tokenizers``."""
    pool, model = Pool(10_000), vocabulary.qwen3()
    ((items,), _) = pool.items()
    agent = pool.agent
    text = naive.render(model, items, agent.instructions, agent.tools)
    chat = naive.messages(items, agent.instructions)
    tools = naive.tool_definitions(agent.tools)
    rendered = environment().render_template(
        "chat", messages=chat, tools=tools, add_generation_prompt=True
    )
    assert rendered == text
    for segment_cache in (False, True):
        ids, _ = encoder(segment_cache).encode_batch_flat([text])
        assert memoryview(ids).cast("I").tolist() == model.encode_text(text)
