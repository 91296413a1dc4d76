"""What the server says: one JSON object per event, encoded once.

An event's ``body`` is sent as one text frame over WebSocket, and as ``event:`` and ``data:`` lines
over HTTP. Bodies are put together from fragments: the encoder sees only what is new in an event.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from turnwire.errors import TurnwireError


class Event(NamedTuple):
    """One server event: its ``type``, and ``body``, a JSON object in UTF-8."""

    type: str
    body: bytes


class Usage(NamedTuple):
    """Tokens of one response. ``cached_tokens`` is what the engine reported, else 0 (DESIGN §4)."""

    input_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


_encoder = msgspec.json.Encoder()
encode = _encoder.encode
"""Any plain value as JSON."""


def error_event(
    error: TurnwireError, *, sequence_number: int = 0, stream_id: str | None = None
) -> Event:
    """The nested ``error`` event of a WebSocket (protocol §6.1), for failures before
    ``response.created``. It ends its turn: nothing may follow it for that request.
    """
    raise NotImplementedError


def error_body(error: TurnwireError) -> bytes:
    """The body of an HTTP error: ``{"error": {message, type, param, code}}`` (protocol §14)."""
    raise NotImplementedError


def error_headers(error: TurnwireError) -> dict[str, str]:
    """HTTP headers that go with an error: ``retry-after`` where a wait is known."""
    raise NotImplementedError
