"""jinja2 as ``transformers`` sets it up for chat templates, and as strict trust needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.nodes

from oracle import naive
from oracle.hidden import marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2.parser import Parser


def environment() -> jinja2.Environment:
    """For texts as they are."""
    made = naive._environment()
    made.add_extension(_Generation)
    return made


def masked_environment() -> jinja2.Environment:
    """For placeholders: ``tojson`` marks them."""
    made = environment()
    made.filters["tojson"] = _tojson
    return made


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: transformers marks there what the model said, and prints it."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = jinja2.nodes.CallBlock(self.call_method("_printed"), [], [], body)
        return block.set_lineno(line)

    def _printed(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return marked(naive._tojson(value, **options), ascii_only=ensure_ascii)
