from __future__ import annotations

import pytest

from turnwire.engine.sim.minimal import minimal_value
from turnwire.errors import EngineError


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        (True, {}),
        ({"type": "object"}, {}),
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 2}, "xx"),
        ({"type": ["integer", "null"], "minimum": 3}, 3),
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "number", "minimum": 2.5}, 2.5),
        ({"type": "number", "exclusiveMinimum": 2}, 3),
        ({"type": "integer", "maximum": -4}, -4),
        ({"type": "integer", "exclusiveMaximum": 0}, -1),
        ({"type": "integer"}, 0),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["", ""]),
        ({"enum": ["celsius", "kelvin"]}, "celsius"),
        ({"const": 5}, 5),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A~1B"}, "b": {"type": "string"}},
                "required": ["a"],
                "$defs": {"A/B": {"type": "integer"}},
            },
            {"a": 0},
        ),
    ],
)
def test_smallest_value(schema, value):
    assert minimal_value(schema) == value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "^a+$"}, "pattern"),
        ({"allOf": [{}]}, "allOf"),
        (False, "allows none"),
        ({"type": "tuple"}, "tuple"),
        ({"$ref": "https://elsewhere"}, "outside"),
        ({"$ref": "#/$defs/none"}, "no '#/"),
        ({"$ref": "#"}, "recursive"),
    ],
)
def test_says_what_it_cannot_do(schema, reason):
    with pytest.raises(EngineError, match=reason):
        minimal_value(schema)
