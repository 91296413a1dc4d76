"""A forced tool call as a grammar for llama.cpp.

The grammar is in the Lark dialect of llguidance, which the xllamacpp wheel is built with: it takes
JSON schemas as they are, in Rust, with limits of its own. Two traps (docs/engines.md):

- llama.cpp samples *without* any constraint, and without an error, when llguidance refuses a
  grammar. Every new schema must therefore be probed first: :func:`probe_grammar`.
- Left to itself, llguidance ends with the vocabulary's end-of-text token, not with the family's
  stop token, so the grammar spells the stop ids out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.errors import UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnwire.engine.base import ToolCallConstraint

PROBE_TEXT = "\x07"
"""What a grammar that compiles makes the model say to :func:`probe_grammar`, and nothing else
would: no model rings the bell at temperature 0."""

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64

_HEADER = "%llguidance {}\n"

# Arguments as json.dumps writes them, so that they read like those in the training data.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_SHAPING = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref")


def tool_call_grammar(constraint: ToolCallConstraint, stop_token_ids: Iterable[int]) -> str:
    r"""Write the grammar of one forced call, or of several if ``constraint.many``.

    ``<open>{"name": "f", "arguments": {…}}<close>``, several of them joined by ``\n``, then one of
    ``stop_token_ids``. Raises UnsupportedParameterError for a schema that cannot be read.
    """
    rules = []
    choices = []
    for i, (name, schema) in enumerate(constraint.tools):
        literal = json.dumps(name, ensure_ascii=False) + ', "arguments": '
        rules.append(f"call{i}: {_quote(literal)} arguments{i}\n")
        rules.append(_arguments_rule(f"arguments{i}", name, schema))
        choices.append(f"call{i}")
    begin = _quote(constraint.open + '{"name": ')
    finish = _quote("}" + constraint.close)
    one = f"{begin} call {finish}"
    stop = ",".join(str(token) for token in sorted(stop_token_ids))
    end = f" <[{stop}]>" if stop else ""
    many = f" ({_quote(chr(10))} one)*" if constraint.many else ""
    return f"{_HEADER}start: one{many}{end}\none: {one}\ncall: {' | '.join(choices)}\n" + "".join(
        rules
    )


def probe_grammar(name: str, schema: bytes) -> str:
    """Write a grammar that begins with :data:`PROBE_TEXT` and compiles iff the schema does."""
    rule = _arguments_rule("arguments", name, schema)
    return f"{_HEADER}start: {_quote(PROBE_TEXT)} arguments\n{rule}"


def unsupported_schema(name: str, reason: str) -> UnsupportedParameterError:
    """Say that a tool cannot be forced. ``reason`` completes 'its parameters …'."""
    return UnsupportedParameterError(
        f"A call of the tool '{name}' cannot be forced: its parameters {reason}.", param="tools"
    )


def _arguments_rule(rule: str, name: str, schema: bytes) -> str:
    return f"{rule}: %json {json.dumps(_arguments_schema(name, schema), ensure_ascii=False)}\n"


def _arguments_schema(name: str, schema: bytes) -> dict[str, Any]:
    if len(schema) > MAX_SCHEMA_BYTES:
        raise unsupported_schema(name, f"are a schema of more than {MAX_SCHEMA_BYTES} bytes")
    try:
        node = msgspec.json.decode(schema or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise unsupported_schema(name, "are no JSON schema") from error
    if node is None or node is True:
        node = {}
    if not isinstance(node, dict):
        raise unsupported_schema(name, "are no JSON schema object")
    if _depth(node) > MAX_SCHEMA_DEPTH:
        raise unsupported_schema(name, f"are nested more than {MAX_SCHEMA_DEPTH} deep")
    root = dict(node)
    if not any(keyword in root for keyword in _SHAPING):
        root["type"] = "object"
    if root.get("properties") and not any(
        keyword in root for keyword in ("additionalProperties", "patternProperties", *_SHAPING[1:])
    ):
        # A subset of what the schema allows; otherwise small models invent parameters.
        root["additionalProperties"] = False
    root["x-guidance"] = _STYLE
    return root


def _depth(node: object) -> int:
    deepest = 0
    level: list[Any] = [node]
    while level:
        deepest += 1
        children: list[Any] = []
        for parent in level:
            children += parent.values() if isinstance(parent, dict) else parent
        level = [child for child in children if isinstance(child, dict | list)]
    return deepest


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
