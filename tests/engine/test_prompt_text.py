"""A prompt's kept JSON text is the text that the standard library writes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from engine.engine_support import ids_view
from turnwire.engine import prompt_text
from turnwire.engine.prompt_text import PromptTexts

Steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # whose prompt
        st.integers(0, 60),  # how much of the last one stays
        st.lists(st.integers(0, 2**32 - 1), max_size=40),
    ),
    max_size=12,
)


@given(steps=Steps, step=st.sampled_from([3, 16, 1000]), budget=st.sampled_from([0, 500, 10**6]))
def test_any_sequence_of_prompts_is_written_as_json_writes_it(steps, step, budget):
    original, prompt_text.STRETCH_IDS = prompt_text.STRETCH_IDS, step
    try:
        texts, last = PromptTexts(budget), {0: [], 1: [], 2: []}
        for who, kept, new in steps:
            prompt = last[who] = last[who][:kept] + new
            written = b"".join(texts.write(str(who), ids_view(prompt)))
            assert json.loads(written) == prompt
            assert written.decode() == json.dumps(prompt, separators=(",", ":"))
            assert texts.weight <= budget
    finally:
        prompt_text.STRETCH_IDS = original


def test_only_what_is_new_is_written(monkeypatch):
    written: list[int] = []
    write = prompt_text._written

    def counting(ids: bytes):
        written.append(len(ids) // 4)
        return write(ids)

    monkeypatch.setattr(prompt_text, "_written", counting)
    texts, prompt = PromptTexts(), list(range(50_000))
    texts.write("a", ids_view(prompt))
    assert sum(written) == 50_000
    for turn in range(40):
        written.clear()
        prompt = [*prompt, *range(turn, turn + 100)]
        texts.write("a", ids_view(prompt))
        assert written == [100]
    written.clear()
    texts.write("a", ids_view(prompt))  # the same once more
    assert written == []


def test_a_branch_keeps_the_trunk(monkeypatch):
    texts, trunk = PromptTexts(), list(range(40_000))
    texts.write("a", ids_view([*trunk, 1, 2, 3]))
    for branch in range(3):
        texts.write("a", ids_view([*trunk, 7, branch]))
    monkeypatch.setattr(prompt_text, "STRETCH_IDS", 0)  # nothing long can be written any more
    assert texts.write("a", ids_view([*trunk, 1, 2, 3]))[0] == b"["


def test_memory_is_bounded_by_dropping_who_was_silent_longest():
    texts = PromptTexts(budget=300_000)
    for name in "abcdef":
        texts.write(name, ids_view(range(10_000)))
        assert texts.weight <= 300_000
    kept = list(texts._chains)
    assert kept == list("abcdef")[-len(kept) :]
    assert 1 <= len(kept) < 6
