"""What ``--debug`` shows of a turn's tokens: its spans, each with its text, to its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from turnwire.errors import NotFoundError

if TYPE_CHECKING:
    from turnwire._core import Node, Profile
    from turnwire.server.records import TurnRecords


class DumpedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a response's tokens. Offsets in tokens; items by their number in the chain."""

    start: int
    end: int
    kind: Literal["header", "item", "generation_prompt", "sampled"]
    origin: Literal["rendered", "sampled", "reencoded"]
    items: tuple[int, int]
    item_types: list[str]
    token_ids: list[int]
    text: str


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens of a response: its prompt, and what was sampled."""

    response_id: str
    profile: str
    family: str
    tokens: int
    spans: list[DumpedSpan]


def dump(response_id: str, owner: str, records: TurnRecords, profile: Profile) -> Dump:
    """Return the tokens of ``owner``'s response. Raises NotFoundError when they are not kept."""
    node = records.find(response_id, owner)
    if node is None:
        raise NotFoundError(f"No tokens of a response with the id '{response_id}' are kept.")
    return Dump(
        response_id=response_id,
        profile=profile.name,
        family=profile.family,
        tokens=node.token_count,
        spans=_spans(node, profile),
    )


def _spans(node: Node, profile: Profile) -> list[DumpedSpan]:
    ids, types = node.tokens().tolist(), node.item_types
    return [
        DumpedSpan(
            start=span.start,
            end=span.end,
            kind=span.kind,
            origin=span.origin,
            items=span.items,
            item_types=types[slice(*span.items)],
            token_ids=ids[span.start : span.end],
            text=profile.decode(ids[span.start : span.end]),
        )
        for span in node.spans()
    ]
