"""The smallest value that a JSON schema allows: what the sim calls a tool with when it must.

A forced ``tool_choice`` promises the client a call. A script that has none for that turn would
break the promise, so the sim makes one up. It covers what tool schemas in practice use; anything
else is an EngineError that names the keyword, and the script can spell the call out.
"""

from __future__ import annotations

import math
from typing import Any, cast

from turnwire.errors import EngineError

_MAX_DEPTH = 32


def minimal_value(schema: object) -> object:
    """Find a small value valid under ``schema``. Raises EngineError for what it cannot satisfy."""
    return _value(schema, schema, 0)


def _value(schema: object, root: object, depth: int) -> object:
    if depth > _MAX_DEPTH:
        raise EngineError("The sim cannot make up a value: the schema is too deep or recursive.")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise EngineError("The sim cannot make up a value: a schema allows none.")
    node = cast("dict[str, Any]", schema)
    if "$ref" in node:
        return _value(_resolve(node["$ref"], root), root, depth + 1)
    for keyword in ("allOf", "not", "pattern", "patternProperties", "if"):
        if keyword in node:
            raise EngineError(f"The sim cannot make up a value for a schema with `{keyword}`.")
    if "const" in node:
        return node["const"]
    for keyword in ("enum", "examples"):
        if node.get(keyword):
            return node[keyword][0]
    if "default" in node:
        return node["default"]
    for keyword in ("anyOf", "oneOf"):
        if node.get(keyword):
            return _value(node[keyword][0], root, depth + 1)
    return _typed(node, root, depth)


def _typed(node: dict[str, Any], root: object, depth: int) -> object:
    kind = node.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "string":
            return "x" * int(node.get("minLength", 0))
        case "integer" | "number":
            return _number(node, kind)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            items = node.get("items", {"type": "null"})
            count = int(node.get("minItems", 0))
            return [_value(items, root, depth + 1) for _ in range(count)]
        case "object" | None:
            properties = node.get("properties", {})
            return {
                name: _value(properties.get(name, True), root, depth + 1)
                for name in node.get("required", ())
            }
        case _:
            raise EngineError(f"The sim cannot make up a value of type {kind!r}.")


def _number(node: dict[str, Any], kind: str) -> object:
    if "minimum" in node:
        low = node["minimum"]
        return math.ceil(low) if kind == "integer" else low
    if "exclusiveMinimum" in node:
        return math.floor(node["exclusiveMinimum"]) + 1
    if "maximum" in node:
        return min(0, math.floor(node["maximum"]))
    if "exclusiveMaximum" in node:
        return min(0, math.ceil(node["exclusiveMaximum"]) - 1)
    return 0


def _resolve(reference: object, root: object) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise EngineError("The sim cannot follow a `$ref` outside the schema.")
    found = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise EngineError(f"The schema has no {reference!r}.")
        found = found[name]
    return found
