"""Forced tool calls, and answers in JSON, as grammars for llama.cpp.

The grammar is in the Lark dialect of llguidance, which the xllamacpp wheel is built with: it takes
JSON schemas as they are, in Rust, with limits of its own. Two traps (docs/engines.md):

- llama.cpp samples *without* any constraint, and without an error, when llguidance refuses a
  grammar. Every new schema must therefore be probed first: see :func:`probe_grammars`.
- Left to itself, llguidance ends with the vocabulary's end-of-text token, not with the family's
  stop token, so the grammar spells the stop ids out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine.base import JsonConstraint
from turnwire.errors import UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from turnwire.engine.base import Constraint, ToolCallConstraint

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
        rules.append(_json_rule(f"arguments{i}", _arguments_schema(name, schema)))
        choices.append(f"call{i}")
    begin = _quote(constraint.open + '{"name": ')
    finish = _quote("}" + constraint.close)
    one = f"{begin} call {finish}"
    many = f" ({_quote(chr(10))} one)*" if constraint.many else ""
    start = f"start: one{many}{_end(stop_token_ids)}\none: {one}\ncall: {' | '.join(choices)}\n"
    return _HEADER + start + "".join(rules)


def json_grammar(constraint: JsonConstraint, stop_token_ids: Iterable[int]) -> str:
    """Write the grammar of one JSON value, then one of ``stop_token_ids``.

    Raises UnsupportedParameterError for a schema that cannot be read.
    """
    return f"{_HEADER}start: value{_end(stop_token_ids)}\n" + _json_rule(
        "value", _answer_schema(constraint.schema)
    )


def probe_grammars(constraint: Constraint) -> Iterator[tuple[str, UnsupportedParameterError]]:
    """Yield, for each schema, a grammar that compiles iff the schema does, and what if it does not.

    Such a grammar begins with :data:`PROBE_TEXT`. Raises UnsupportedParameterError for a schema
    that cannot be read.
    """
    unenforced = "use features that cannot be enforced"
    if isinstance(constraint, JsonConstraint):
        rule = _json_rule("value", _answer_schema(constraint.schema))
        probe = f"{_HEADER}start: {_quote(PROBE_TEXT)} value\n{rule}"
        yield probe, _unsupported_format("uses features that cannot be enforced")
        return
    for name, schema in constraint.tools:
        rule = _json_rule("arguments", _arguments_schema(name, schema))
        probe = f"{_HEADER}start: {_quote(PROBE_TEXT)} arguments\n{rule}"
        yield probe, _unsupported_tool(name, unenforced)


def _unsupported_tool(name: str, reason: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"A call of the tool '{name}' cannot be forced: its parameters {reason}.", param="tools"
    )


def _unsupported_format(reason: str) -> UnsupportedParameterError:
    param = "text.format.schema"
    return UnsupportedParameterError(f"The schema at '{param}' {reason}.", param=param)


def _json_rule(rule: str, schema: dict[str, Any]) -> str:
    return f"{rule}: %json {json.dumps(schema, ensure_ascii=False)}\n"


def _end(stop_token_ids: Iterable[int]) -> str:
    stop = ",".join(str(token) for token in sorted(stop_token_ids))
    return f" <[{stop}]>" if stop else ""


def _arguments_schema(name: str, schema: bytes) -> dict[str, Any]:
    root = _read(schema, lambda reason: _unsupported_tool(name, f"are {reason}"))
    if not any(keyword in root for keyword in _SHAPING):
        root["type"] = "object"
    return _closed(root)


def _answer_schema(schema: bytes) -> dict[str, Any]:
    return _closed(_read(schema, lambda reason: _unsupported_format(f"is {reason}")))


def _read(schema: bytes, refusal: Callable[[str], UnsupportedParameterError]) -> dict[str, Any]:
    """Return a schema's root. ``refusal`` gets what it is instead of one that can be enforced."""
    if len(schema) > MAX_SCHEMA_BYTES:
        raise refusal(f"a schema of more than {MAX_SCHEMA_BYTES} bytes")
    try:
        node = msgspec.json.decode(schema or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise refusal("no JSON schema") from error
    if node is None or node is True:
        node = {}
    if not isinstance(node, dict):
        raise refusal("no JSON schema object")
    if _depth(node) > MAX_SCHEMA_DEPTH:
        raise refusal(f"nested more than {MAX_SCHEMA_DEPTH} deep")
    return dict(node)


def _closed(root: dict[str, Any]) -> dict[str, Any]:
    """Allow no properties but those that are listed, where the schema leaves that open.

    That is a subset of what the schema allows; otherwise small models invent some.
    """
    if root.get("properties") and not any(
        keyword in root for keyword in ("additionalProperties", "patternProperties", *_SHAPING[1:])
    ):
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
