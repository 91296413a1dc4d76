"""Recovery of ids, on events as llama.cpp b11549 sent them."""

from __future__ import annotations

import struct

import pytest

from turnwire.engine.llamacpp_sampled import SampledIds
from turnwire.engine.llamacpp_wire import (
    Chunk,
    Refusal,
    read_refusal,
    read_saved_tokens,
    refused,
)
from turnwire.errors import ContextLengthError, EngineError

# "a😀🎉 日本語 €" and a stop id, sampled after a prompt of ten tokens.
PROMPT = [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]
SAMPLED = [81, 10813, 242, 218, 10813, 232, 227, 17097, 241, 115, 40993, 179, 120, 248, 24927, 2]
EVENTS = [
    Chunk(tokens=(81,), content="a", tokens_predicted=1),
    Chunk(tokens=(218,), content="😀", tokens_predicted=4),
    Chunk(tokens=(227,), content="🎉", tokens_predicted=7),
    Chunk(tokens=(115,), content=" 日", tokens_predicted=10),
    Chunk(tokens=(40993,), content="本", tokens_predicted=11),
    Chunk(tokens=(248,), content="語", tokens_predicted=14),
    Chunk(tokens=(24927,), content=" €", tokens_predicted=15),
    Chunk(tokens=(2,), content="", tokens_predicted=16),
]
FINAL = Chunk(stop=True, stop_type="eos", tokens_predicted=16)
TOKENIZER = {
    "😀": [10813, 242, 218],
    "🎉": [10813, 232, 227],
    " 日": [17097, 241, 115],
    "語": [179, 120, 248],
}


async def play(events, final, *, tokenizer, held) -> tuple[list[list[int]], list[int]]:
    async def tokenize(text: str) -> list[int]:
        return tokenizer.get(text, [])

    async def sequence() -> list[int]:
        return held

    sampled = SampledIds(len(PROMPT), tokenize=tokenize, sequence=sequence)
    handed_out = [await sampled.take(event) for event in events]
    handed_out.append(await sampled.rest(final))
    assert sampled.ids == [token for ids in handed_out for token in ids]
    return handed_out, sampled.ids


async def test_the_tokenizer_knows_the_missing_ids():
    handed_out, ids = await play(EVENTS, FINAL, tokenizer=TOKENIZER, held=[])
    assert ids == SAMPLED
    assert handed_out[1] == [10813, 242, 218]


async def test_else_the_slot_knows_them_at_the_end():
    tokenizer = {**TOKENIZER, "🎉": [10813, 99, 227, 1]}
    held = [*PROMPT, *SAMPLED[:-1]]
    handed_out, ids = await play(EVENTS, FINAL, tokenizer=tokenizer, held=held)
    assert ids == SAMPLED
    assert handed_out[2:8] == [[]] * 6


async def test_what_follows_half_a_character_may_get_no_event_at_all():
    # Sampled "a", half an emoji, "b", stop id: one event, and the last one.
    final = Chunk(stop=True, stop_type="eos", tokens_predicted=4)
    _, ids = await play(EVENTS[:1], final, tokenizer={}, held=[*PROMPT, 81, 10813, 82])
    assert ids == [81, 10813, 82]


async def test_cut_off_within_a_character():
    final = Chunk(stop=True, stop_type="limit", tokens_predicted=3)
    _, ids = await play(EVENTS[:1], final, tokenizer={}, held=[*PROMPT, 81, 10813])
    assert ids == [81, 10813]


async def test_a_slot_that_holds_something_else_is_an_error():
    final = Chunk(stop=True, stop_type="limit", tokens_predicted=3)
    with pytest.raises(EngineError):
        await play(EVENTS[:1], final, tokenizer={}, held=[*PROMPT, 82, 10813])


def test_saved_slots(tmp_path):
    path = tmp_path / "slot"
    packed = [-1, 1, 3, 7, 8, 9, 0]
    path.write_bytes(b"qsgg" + struct.pack(f"<II{len(packed)}i", 4, len(packed), *packed) + b"kv")
    assert read_saved_tokens(path) == [7, 8, 9]
    path.write_bytes(b"qsgg" + struct.pack("<II3i", 2, 3, 7, 8, 9) + b"kv")
    assert read_saved_tokens(path) == [7, 8, 9]
    path.write_bytes(b"else" + struct.pack("<II", 2, 0))
    with pytest.raises(EngineError):
        read_saved_tokens(path)


def test_refusals():
    body = (
        b'{"error":{"code":400,"message":"request (9000 tokens) exceeds the available context size'
        b' (8192 tokens), try increasing it","type":"exceed_context_size_error","n_ctx":8192}}'
    )
    error = read_refusal(400, body)
    assert isinstance(error, ContextLengthError)
    assert error.message.startswith("Request (9000 tokens)")
    assert "HTTP status 502" in read_refusal(502, b"<html>").message
    assert isinstance(refused(Refusal("Compute error.", "server_error")), EngineError)
