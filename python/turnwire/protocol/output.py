"""One response on the wire, from ``response.created`` to its one terminal event.

Deltas go in, encoded events come out: items, ids, indices and sequence numbers are made here, by
the grammar in :mod:`turnwire.protocol.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from turnwire.errors import TurnwireError
from turnwire.protocol.events import Event, Usage
from turnwire.protocol.frames import CreateRequest


class DeltaLike(Protocol):
    """A piece of what the model says; :class:`turnwire._core.Delta` is one.

    ``reasoning`` and ``text`` carry ``text``; ``call`` begins a function call and carries
    ``call_id`` and ``name``; ``arguments`` carries ``text``.
    """

    @property
    def kind(self) -> Literal["reasoning", "text", "call", "arguments"]: ...
    @property
    def text(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def name(self) -> str: ...


class ResponseStream:
    """One response. Call ``created``, ``in_progress``, ``push`` as often as there are deltas, then
    exactly one of ``completed``, ``incomplete``, ``cancelled``, ``failed``; anything else raises
    InvariantError, so that no second terminal event can exist.

    ``echo_tools``, ``echo_instructions`` and ``echo_tool_choice`` are JSON from the core and are
    spliced in as they are. ``new_id`` makes an item id from its prefix: ``new_id("msg")`` is
    ``"msg_…"``; the prefixes are ``msg``, ``rs`` and ``fc``. ``created_at`` is in Unix seconds.
    ``stream_id`` is echoed on every event, and absent on the default lane (None).
    ``temperature`` and ``top_p`` are the effective values when the server knows better than the
    request (which wins) and the API's default, 1.
    """

    def __init__(
        self,
        request: CreateRequest,
        *,
        response_id: str,
        created_at: int,
        model: str,
        stream_id: str | None,
        new_id: Callable[[str], str],
        echo_tools: bytes = b"[]",
        echo_instructions: bytes = b"null",
        echo_tool_choice: bytes = b'"auto"',
        store: bool,
        temperature: float | None = None,
        top_p: float | None = None,
    ) -> None:
        raise NotImplementedError

    def created(self) -> list[Event]:
        """``response.created``, once."""
        raise NotImplementedError

    def in_progress(self) -> list[Event]:
        """``response.in_progress``; again, as a keep-alive, at any time until the terminal event
        (protocol, corrections)."""
        raise NotImplementedError

    def push(self, deltas: Iterable[DeltaLike]) -> list[Event]:
        """The events of some deltas. Empty texts make none."""
        raise NotImplementedError

    def completed(self, usage: Usage, *, completed_at: int) -> list[Event]:
        """End whole; ``completed_at`` is in Unix seconds. A turn that ends in calls for the client
        to answer is whole."""
        raise NotImplementedError

    def incomplete(
        self, reason: Literal["max_output_tokens", "content_filter"], usage: Usage
    ) -> list[Event]:
        """End short: the last item is closed as ``incomplete``."""
        raise NotImplementedError

    def cancelled(self, usage: Usage) -> list[Event]:
        """End as cancelled: ``response.incomplete`` with status ``cancelled`` (D4)."""
        raise NotImplementedError

    def failed(self, error: TurnwireError) -> list[Event]:
        """End in ``response.failed``; an open item stays open and is no part of the output."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been made."""
        raise NotImplementedError

    @property
    def response(self) -> bytes:
        """The Response object as JSON, as the newest lifecycle event carries it."""
        raise NotImplementedError
