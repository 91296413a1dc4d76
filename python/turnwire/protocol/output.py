"""One response on the wire, from ``response.created`` to its one terminal event.

Deltas go in, encoded events come out: items, ids, indices and sequence numbers are made here, by
the grammar in :mod:`turnwire.protocol.lifecycle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from turnwire.errors import InvariantError
from turnwire.protocol.events import Event, ResponseObject, encode, lane_fragment
from turnwire.protocol.lifecycle import (
    CALLS,
    ITEM_OF,
    ITEMS,
    OPENED_BY,
    RESPONSE,
    TERMINAL,
    ItemKind,
    ResponsePhase,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnwire.errors import TurnwireError
    from turnwire.protocol.events import Usage
    from turnwire.protocol.frames import CreateRequest


DeltaKind: TypeAlias = Literal[
    "reasoning", "text", "call", "arguments", "custom_call", "input", "search_call", "query"
]


class DeltaLike(Protocol):
    """A piece of what the model says; :class:`turnwire._core.Delta` is one.

    ``reasoning`` and ``text`` carry ``text``; ``call`` begins a function call and carries
    ``call_id``, ``name`` and ``namespace``; ``arguments`` carries ``text``. ``custom_call`` and
    ``input`` are the same for a custom tool, ``search_call`` and ``query`` for a search for tools.
    A delta of another kind, or a new call, ends the item before it.
    """

    @property
    def kind(self) -> DeltaKind:
        """What it is a piece of."""

    @property
    def text(self) -> str:
        """The piece itself; empty for a call."""

    @property
    def call_id(self) -> str:
        """The call's id, for a call."""

    @property
    def name(self) -> str:
        """The tool's name, for a call."""

    @property
    def namespace(self) -> str | None:
        """The namespace that the tool stands in, for a call."""


_PREFIX: dict[ItemKind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "tool_search_call": "tsc",
}

# What a call is made with.
_SAID: dict[ItemKind, bytes] = {
    "function_call": b"arguments",
    "custom_tool_call": b"input",
    "tool_search_call": b"arguments",
}

# Constant tails of items and events, by kind. `logprobs` is there although always empty, since
# LiveKit validates with openai-python's strict models; without `summary` Codex drops the item.
_PART = {
    "message": b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[]}',
    "reasoning": b'{"type":"reasoning_text","text":%b}',
}
_LOGPROBS = b',"logprobs":[]'


class _Item:
    """One output item in the making: its fragments, and the pieces it has got so far."""

    __slots__ = (
        "_after",
        "_before",
        "_name",
        "delta_type",
        "head",
        "kind",
        "mid",
        "pieces",
        "place",
        "tail",
    )

    def __init__(
        self, kind: ItemKind, item_id: str, index: int, lane: bytes, *, call: DeltaLike | None
    ) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        encoded_id = encode(item_id)
        content = b"" if kind in _SAID else b',"content_index":0'
        self.place = b'%b,"output_index":%d,"item_id":%b%b' % (lane, index, encoded_id, content)
        # A delta event is head, sequence number, mid, text, tail: an agent's turn is mostly deltas.
        self.delta_type = ITEMS[kind].delta
        self.head = b'{"type":"%b","sequence_number":' % (self.delta_type or "").encode()
        self.mid = self.place + b',"delta":'
        self.tail = (_LOGPROBS if kind == "message" else b"") + b"}"
        self._name = b"" if call is None else encode(call.name)
        if call is not None:
            self._before = b'{"id":%b,"type":"%b","status":"' % (encoded_id, kind.encode())
            namespace = (
                b"" if call.namespace is None else b',"namespace":%b' % encode(call.namespace)
            )
            searches = kind == "tool_search_call"
            name = b',"execution":"client"' if searches else b',"name":%b' % self._name
            self._after = b'","call_id":%b%b%b,"%b":' % (
                encode(call.call_id),
                namespace,
                name,
                _SAID[kind],
            )
        elif kind == "message":
            self._before = b'{"id":%b,"type":"message","status":"' % encoded_id
            self._after = b'","role":"assistant","content":['
        else:
            self._before = (
                b'{"id":%b,"type":"reasoning","summary":[],"encrypted_content":null,"status":"'
                % encoded_id
            )
            self._after = b'","content":['

    def text(self) -> bytes:
        """Everything so far, as a JSON string; what a search is made with is JSON itself."""
        text = "".join(self.pieces)
        if self.kind != "tool_search_call":
            return encode(text)
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError:
            return encode(text) if text else b"{}"
        return text.encode()

    def part(self, text: bytes) -> bytes:
        """Encode the item's content part with ``text``, a JSON string."""
        return _PART[self.kind] % text

    def done(self, text: bytes) -> bytes:
        """Encode the fields with which the item's ``*.done`` event repeats the whole ``text``."""
        if self.kind == "function_call":
            # `name` is required by OpenAI's OpenAPI schema, though its SDK has dropped it.
            return b',"name":%b,"arguments":%b' % (self._name, text)
        if self.kind == "custom_tool_call":
            return b',"input":%b' % text
        return b',"text":%b%b' % (text, _LOGPROBS if self.kind == "message" else b"")

    def render(self, status: str, text: bytes | None) -> bytes:
        """Encode the item; ``text`` None is the item as announced, before its part."""
        if self.kind in _SAID:
            empty = b"{}" if self.kind == "tool_search_call" else b'""'
            return b"%b%b%b%b}" % (self._before, status.encode(), self._after, text or empty)
        content = b"" if text is None else self.part(text)
        return b"%b%b%b%b]}" % (self._before, status.encode(), self._after, content)


class ResponseStream:
    """One response, from ``response.created`` to its one terminal event.

    Call ``created``, ``in_progress``, ``push`` as often as there are deltas, then exactly one of
    ``completed``, ``incomplete``, ``cancelled``, ``failed``; anything else raises InvariantError,
    so that no second terminal event can exist.

    ``echo_tools``, ``echo_instructions`` and ``echo_tool_choice`` are JSON from the core and are
    spliced in as they are. ``new_id`` makes an item id from its prefix: ``new_id("msg")`` is
    ``"msg_…"``; the prefixes are ``msg``, ``rs``, ``fc``, ``ctc`` and ``tsc``. ``created_at`` is in
    seconds.
    ``stream_id`` is echoed on every event, and absent on the default lane (None). ``temperature``
    and ``top_p`` are what the engine uses when the request names none (default: the API's, 1).
    Without ``has_verbosity`` the model cannot be told how much to say, and ``medium`` is echoed.
    """

    __slots__ = (
        "_done",
        "_index",
        "_item",
        "_lane",
        "_new_id",
        "_object",
        "_phase",
        "_response",
        "_sequence",
    )

    def __init__(
        self,
        request: CreateRequest,
        *,
        response_id: str,
        created_at: int,
        model: str,
        stream_id: str | None,
        new_id: Callable[[str], str],
        store: bool,
        echo_tools: bytes = b"[]",
        echo_instructions: bytes = b"null",
        echo_tool_choice: bytes = b'"auto"',
        temperature: float | None = None,
        top_p: float | None = None,
        has_verbosity: bool = False,
    ) -> None:
        self._object = ResponseObject(
            request,
            response_id=response_id,
            created_at=created_at,
            model=model,
            store=store,
            echo_tools=echo_tools,
            echo_instructions=echo_instructions,
            echo_tool_choice=echo_tool_choice,
            temperature=temperature,
            top_p=top_p,
            has_verbosity=has_verbosity,
        )
        self._new_id = new_id
        self._lane = lane_fragment(stream_id)
        self._phase = ResponsePhase.NEW
        self._sequence = 0
        self._index = 0
        self._item: _Item | None = None
        self._done: list[bytes] = []
        self._response = self._object.render("in_progress", b"")

    def created(self) -> list[Event]:
        """``response.created``, once."""
        self._step("created")
        return [self._lifecycle("response.created")]

    def in_progress(self) -> list[Event]:
        """``response.in_progress``; again, as a keep-alive, at any time until the terminal event.

        openai-node replaces its whole snapshot by the one in the event, so a later one carries
        the items so far, an open one with the text it has.
        """
        self._step("in_progress")
        if self._index:
            output = list(self._done)
            if self._item is not None:
                output.append(self._item.render("in_progress", self._item.text()))
            self._response = self._object.render("in_progress", b",".join(output))
        return [self._lifecycle("response.in_progress")]

    def push(self, deltas: Iterable[DeltaLike]) -> list[Event]:
        """Make the events of some deltas, in order. Empty texts make none.

        Raises InvariantError for what continues a call without one before it.
        """
        self._step("push")
        events: list[Event] = []
        item = self._item
        for delta in deltas:
            kind = delta.kind
            text = delta.text
            if item is None or kind in CALLS or item.kind != ITEM_OF[kind]:
                if not text and kind not in CALLS:
                    continue
                if kind not in OPENED_BY:
                    raise InvariantError(f"a delta of kind '{kind}' with no item to continue")
                if item is not None:
                    self._close(item, "completed", events)
                item = self._open(delta, events)
            if text:
                item.pieces.append(text)
            if text and item.delta_type is not None:
                body = b"%b%d%b%b%b" % (
                    item.head,
                    self._sequence,
                    item.mid,
                    encode(text),
                    item.tail,
                )
                self._sequence += 1
                events.append(Event(item.delta_type, body))
        return events

    def completed(self, usage: Usage, *, completed_at: int) -> list[Event]:
        """End whole; ``completed_at`` is in Unix seconds.

        A turn that ends in calls for the client to answer is whole; Codex fails on ``incomplete``.
        """
        return self._end("completed", "completed", usage=usage, completed_at=completed_at)

    def incomplete(
        self, reason: Literal["max_output_tokens", "content_filter"], usage: Usage
    ) -> list[Event]:
        """End short: the last item is closed as ``incomplete``."""
        return self._end("incomplete", "incomplete", usage=usage, reason=reason)

    def cancelled(self, usage: Usage) -> list[Event]:
        """End as cancelled: ``response.incomplete`` with status ``cancelled``."""
        return self._end("cancelled", "incomplete", usage=usage)

    def failed(self, error: TurnwireError) -> list[Event]:
        """End in ``response.failed``; an open item stays open and is no part of the output."""
        return self._end("failed", None, error=error)

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been made."""
        return self._phase is ResponsePhase.ENDED

    @property
    def response(self) -> bytes:
        """The Response object as JSON, as the newest lifecycle event carries it."""
        return self._response

    def _step(self, verb: str) -> None:
        self._phase = step(RESPONSE, self._phase, verb)

    def _event(self, event_type: str, fields: bytes) -> Event:
        body = b'{"type":"%b","sequence_number":%d%b}' % (
            event_type.encode(),
            self._sequence,
            fields,
        )
        self._sequence += 1
        return Event(event_type, body)

    def _lifecycle(self, event_type: str) -> Event:
        return self._event(event_type, b'%b,"response":%b' % (self._lane, self._response))

    def _open(self, delta: DeltaLike, events: list[Event]) -> _Item:
        kind = ITEM_OF[delta.kind]
        call = delta if kind in _SAID else None
        item = _Item(kind, self._new_id(_PREFIX[kind]), self._index, self._lane, call=call)
        self._item = item
        self._index += 1
        for event_type in ITEMS[kind].opening:
            if event_type == "response.output_item.added":
                fields = self._item_fields(item.render("in_progress", None))
            else:
                fields = b'%b,"part":%b' % (item.place, item.part(b'""'))
            events.append(self._event(event_type, fields))
        return item

    def _close(self, item: _Item, status: str, events: list[Event]) -> None:
        text = item.text()
        whole = item.render(status, text)
        for event_type in ITEMS[item.kind].closing:
            if event_type == "response.output_item.done":
                fields = self._item_fields(whole)
            elif event_type == "response.content_part.done":
                fields = b'%b,"part":%b' % (item.place, item.part(text))
            else:
                fields = item.place + item.done(text)
            events.append(self._event(event_type, fields))
        self._done.append(whole)
        self._item = None

    def _item_fields(self, item: bytes) -> bytes:
        return b'%b,"output_index":%d,"item":%b' % (self._lane, self._index - 1, item)

    def _end(
        self,
        verb: str,
        item_status: str | None,
        *,
        usage: Usage | None = None,
        completed_at: int | None = None,
        reason: str | None = None,
        error: TurnwireError | None = None,
    ) -> list[Event]:
        self._step(verb)
        events: list[Event] = []
        if self._item is not None and item_status is not None:
            self._close(self._item, item_status, events)
        event_type, status = TERMINAL[verb]
        self._response = self._object.render(
            status,
            b",".join(self._done),
            usage=usage,
            completed_at=completed_at,
            reason=reason,
            error=error,
        )
        events.append(self._lifecycle(event_type))
        return events
