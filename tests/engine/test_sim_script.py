from __future__ import annotations

import json

import pytest

from turnwire.engine.base import LastItem
from turnwire.engine.sim.script import UNSCRIPTED_TEXT, Playbook, Script
from turnwire.errors import ConfigError

FULL = {
    "tokens_per_second": 100,
    "prefill_tokens_per_second": 1000,
    "prefill_overhead_ms": 1.5,
    "coalesce_ms": 10,
    "jitter": 0.1,
    "seed": 7,
    "max_sequences": 4,
    "cache_blocks": 100,
    "context_length": 4096,
    "rules": [
        {
            "when": {"type": "message", "contains": "hello", "turn": 1},
            "answer": {
                "reasoning": "hm",
                "text": "Hi",
                "calls": [{"name": "f", "arguments": {"a": 1}}],
            },
            "delay": {"first_token_ms": 5, "after_tokens": 2, "ms": 30},
            "fault": {"kind": "die", "after_tokens": 3, "restart_ms": 10},
            "times": 1,
        },
        {"when": {"type": "function_call_output", "name": "f"}, "answer": {"ids": [198, 198]}},
        {
            "when": {"type": "message"},
            "answer": {"calls": [{"name": "g", "arguments": "{not json"}]},
        },
    ],
    "default": {"answer": {"text": "?"}},
}


def test_reads_every_key():
    script = Script.parse(json.dumps(FULL))
    assert script.settings.tokens_per_second == 100
    assert script.settings.max_sequences == 4
    first, second, third = script.rules
    assert first.when.contains == "hello"
    assert first.delay.ms == 30
    assert first.fault is not None
    assert first.fault.kind == "die"
    assert json.loads(first.answer.encoder_input()) == {
        "reasoning": "hm",
        "text": "Hi",
        "calls": [{"name": "f", "arguments": '{"a": 1}'}],
    }
    assert second.answer.ids == (198, 198)
    assert third.answer.calls[0].arguments_json == "{not json"
    assert script.default.answer.text == "?"


def test_an_empty_script_says_that_it_is_the_sim():
    assert Script.parse("{}").default.answer.text == UNSCRIPTED_TEXT
    assert "sim" in UNSCRIPTED_TEXT


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        ({"token_per_second": 5}, None, "token_per_second"),
        ({"tokens_per_second": 0}, "tokens_per_second", "> 0"),
        ({"rules": {}}, "rules", "array"),
        ({"rules": [{}, {"whenn": {}}]}, "rules[1]", "whenn"),
        ({"rules": [{"when": {"typ": "message"}}]}, "rules[0].when", "typ"),
        ({"rules": [{"answer": {"ids": [-1]}}]}, "rules[0].answer.ids[0]", ">= 0"),
        ({"rules": [{"answer": {"ids": [1], "text": "x"}}]}, "rules[0].answer", "excludes"),
        ({"rules": [{"fault": {"kind": "explode"}}]}, "rules[0].fault.kind", "explode"),
        ({"rules": [{"times": 0}]}, "rules[0].times", ">= 1"),
        ({"default": {"when": {}}}, "default", "when"),
        ({"default": {"delay": {"ms": "1"}}}, "default.delay.ms", "float"),
    ],
)
def test_mistakes_name_their_place(change, place, reason):
    with pytest.raises(ConfigError) as caught:
        Script.parse(json.dumps({**FULL, **change}), source="my.json")
    assert caught.value.param == place
    assert reason in caught.value.message
    assert caught.value.message.startswith("my.json")


def test_not_json_and_not_there(tmp_path):
    with pytest.raises(ConfigError, match="not valid JSON"):
        Script.parse("{")
    with pytest.raises(ConfigError, match="No such file"):
        Script.load(tmp_path / "absent.json")
    path = tmp_path / "script.json"
    path.write_text(json.dumps(FULL))
    assert Script.load(path) == Script.parse(json.dumps(FULL))


def test_rules_match_in_order_on_the_last_item():
    book = Playbook(Script.parse(json.dumps(FULL)))

    def said(item: LastItem | None, turn: int = 1) -> object:
        answer = book.choose(item, turn).answer
        return answer.text or answer.ids or answer.calls[0].name

    hello = LastItem("message", "well, hello there")
    assert said(hello, turn=2) == "g"
    assert said(hello) == "Hi"
    assert said(hello) == "g"  # `times` is used up
    assert said(LastItem("function_call_output", "42", "f")) == (198, 198)
    assert said(LastItem("function_call_output", "42", "other")) == "?"
    assert said(LastItem("reasoning", "")) == "?"
    assert said(None) == "?"
