"""Lists of items, page by page: what ``GET …/input_items`` answers with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from turnwire.errors import InvalidValueError
from turnwire.protocol.events import encode
from turnwire.protocol.validate import check_choice, check_includes, check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
_ORDERS = ("asc", "desc")

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
}

_items = msgspec.json.Decoder(list[dict[str, Any]])


class Page(NamedTuple):
    """Which part of a list is wanted."""

    limit: int
    newest_first: bool
    after: str | None
    """The id of the item before the page."""


def page_of(query: Mapping[str, str], includes: Sequence[str] = ()) -> Page:
    """Read a query string. Raises InvalidValueError that names the parameter."""
    check_includes(includes)
    order = query.get("order", "desc")
    check_choice("order", order, _ORDERS)
    given = query.get("limit", str(DEFAULT_LIMIT))
    if not (given.removeprefix("-").isdecimal() and given.isascii() and len(given) < 10):
        raise InvalidValueError("Invalid type for 'limit': expected an integer.", param="limit")
    check_range("limit", int(given), 1, MAX_LIMIT)
    return Page(int(given), order == "desc", query.get("after"))


def input_items(given: bytes, new_id: Callable[[str, int], str]) -> list[dict[str, Any]]:
    """Make the items of a request's ``input``, each with an id, messages in their full form.

    ``new_id`` names the item with that prefix and index that came without an id.
    """
    if given.startswith(b'"'):
        items = [{"role": "user", "content": msgspec.json.decode(given)}]
    else:
        items = _items.decode(given)
    return [_whole(item, index, new_id) for index, item in enumerate(items)]


def listed(items: Sequence[Mapping[str, Any]], page: Page) -> bytes:
    """Encode one page. Raises InvalidValueError when ``after`` names none of the items."""
    ordered = list(reversed(items)) if page.newest_first else list(items)
    start = 0
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise InvalidValueError(f"Item with id '{page.after[:64]}' not found.", param="after")
        start = ids.index(page.after) + 1
    shown = ordered[start : start + page.limit]
    return encode(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": start + page.limit < len(ordered),
        }
    )


def _whole(item: dict[str, Any], index: int, new_id: Callable[[str, int], str]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    given = item.get("id")
    name = given if isinstance(given, str) and given else new_id(_PREFIXES.get(kind, "item"), index)
    whole = {
        "id": name,
        "type": kind,
        **{key: item[key] for key in item if key not in ("id", "type")},
    }
    if kind == "message":
        if isinstance(whole.get("content"), str):
            whole["content"] = [_part(whole["role"], whole["content"])]
        whole.setdefault("status", "completed")
    return whole


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
