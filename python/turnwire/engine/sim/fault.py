"""What goes wrong on the wire of ``turnwire sim``, on purpose."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from turnwire.errors import ConfigError

Kind = Literal[
    "slow", "stall", "cut", "reset", "half_chunk", "status", "no_ids", "unknown_id", "wrong_count"
]


class WireFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault; it strikes before the output that follows ``after_tokens`` sampled tokens.

    ``slow``: every output comes ``ms`` late. ``stall``: nothing more comes. ``cut``: the stream
    ends in good order, but early. ``reset``: the connection is reset. ``half_chunk``: half an
    event, then the end. ``status``: the reply is the HTTP status ``status``. ``no_ids``: an answer
    without its ids. ``unknown_id``: an id that no vocabulary has. ``wrong_count``: the usage
    counts one prompt token too many.
    """

    kind: Kind
    after_tokens: Annotated[int, Meta(ge=0)] = 0
    status: Annotated[int, Meta(ge=400, le=599)] = 500
    ms: Annotated[float, Meta(ge=0)] = 100.0
    times: Annotated[int, Meta(ge=1)] | None = None
    """How often it strikes; None: always. Counts only as an option of the whole app."""

    @staticmethod
    def parse(text: str | bytes) -> WireFault:
        """Read a fault's JSON, or its bare kind. Raises ConfigError."""
        raw = text.encode() if isinstance(text, str) else text
        if not raw.lstrip().startswith(b"{"):
            raw = msgspec.json.encode({"kind": raw.decode(errors="replace").strip()})
        try:
            return msgspec.json.decode(raw, type=WireFault)
        except msgspec.DecodeError as error:
            raise ConfigError(f"No such fault: {error}", param="fault") from None


UNKNOWN_ID = 2**32 - 1
