"""What a grammar says; that llama.cpp obeys it is in test_llamacpp.py."""

from __future__ import annotations

import json

import pytest

from turnwire.engine.base import JsonConstraint, ToolCallConstraint
from turnwire.engine.grammar import (
    MAX_SCHEMA_BYTES,
    PROBE_TEXT,
    json_grammar,
    probe_grammars,
    tool_call_grammar,
)
from turnwire.errors import UnsupportedParameterError


def forced(*tools: tuple[str, bytes], many: bool = False) -> ToolCallConstraint:
    return ToolCallConstraint(open="<tool_call>\n", close="\n</tool_call>", tools=tools, many=many)


def probe_grammar(name: str, schema: bytes) -> str:
    ((probe, refusal),) = probe_grammars(forced((name, schema)))
    assert refusal.param == "tools"
    assert f"'{name}'" in refusal.message
    return probe


def schema_in(grammar: str) -> dict:
    line = next(line for line in grammar.splitlines() if "%json" in line)
    return json.loads(line.partition("%json ")[2])


def test_one_call_of_one_tool():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    grammar = tool_call_grammar(forced(("find", json.dumps(schema).encode())), {2, 0})
    assert grammar.splitlines()[:5] == [
        "%llguidance {}",
        "start: one <[0,2]>",
        r'one: "<tool_call>\n{\"name\": " call "}\n</tool_call>"',
        "call: call0",
        r'call0: "\"find\", \"arguments\": " arguments0',
    ]
    assert schema_in(grammar) == {
        **schema,
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    }


def test_several_calls_of_several_tools():
    grammar = tool_call_grammar(forced(("f", b"{}"), ("g", b""), many=True), ())
    assert r'start: one ("\n" one)*' + "\n" in grammar
    assert "call: call0 | call1\n" in grammar


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"type": "object"}),
        (True, {"type": "object"}),
        (None, {"type": "object"}),
        ({"type": "object"}, {"type": "object"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
        (
            {"properties": {"a": {}}, "additionalProperties": True},
            {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        ),
    ],
)
def test_arguments_are_an_object(schema, expected):
    found = schema_in(probe_grammar("f", json.dumps(schema).encode()))
    del found["x-guidance"]
    assert found == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (b"{", "no JSON schema"),
        (b"[]", "no JSON schema object"),
        (b"false", "no JSON schema object"),
        (b'{"description": "' + b"x" * MAX_SCHEMA_BYTES + b'"}', "more than 65536 bytes"),
        (b'{"items":' * 80 + b"{}" + b"}" * 80, "nested"),
        (b"[" * 60_000, "no JSON schema"),
    ],
)
def test_schemas_that_are_none(schema, reason):
    with pytest.raises(UnsupportedParameterError, match=reason) as caught:
        probe_grammar("f", schema)
    assert caught.value.param == "tools"
    assert "'f'" in caught.value.message


def test_names_and_keywords_cannot_leave_their_quotes():
    name = 'f" | /.*/ | "'
    grammar = tool_call_grammar(forced((name, b'{"title": "a\\nstart: /.*/"}')), {2})
    assert len(grammar.splitlines()) == 6
    assert json.dumps(json.dumps(name) + ', "arguments": ') in grammar
    assert json.dumps(PROBE_TEXT) in probe_grammar(name, b"{}")


STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        ({"type": "array"}, {"type": "array"}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "additionalProperties": False}),
    ],
)
def test_an_answer_is_one_value_and_a_stop_id(schema, expected):
    constraint = JsonConstraint(json.dumps(schema).encode())
    grammar = json_grammar(constraint, {7, 2})
    assert grammar.splitlines()[1] == "start: value <[2,7]>"
    assert schema_in(grammar) == expected | {"x-guidance": STYLE}
    ((probe, refusal),) = probe_grammars(constraint)
    assert schema_in(probe) == schema_in(grammar)
    assert json.dumps(PROBE_TEXT) in probe
    assert refusal.param == "text.format.schema"


@pytest.mark.parametrize("schema", [b"{", b"[]", b"x" * (MAX_SCHEMA_BYTES + 1)])
def test_a_schema_of_an_answer_that_is_none_is_refused(schema):
    with pytest.raises(UnsupportedParameterError) as caught:
        json_grammar(JsonConstraint(schema), ())
    assert caught.value.param == "text.format.schema"
