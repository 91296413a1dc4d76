"""What the protocol's tests share: deltas to push, an automaton over events, a strict oracle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter

from turnwire.protocol.lifecycle import ITEMS, TERMINAL

if TYPE_CHECKING:
    from turnwire.protocol.events import Event
    from turnwire.protocol.output import DeltaKind


@dataclass(frozen=True)
class Piece:
    """A delta, as the core would make it."""

    kind: DeltaKind
    text: str = ""
    call_id: str = ""
    name: str = ""
    namespace: str | None = None


@pytest.fixture(scope="session")
def piece() -> type[Piece]:
    return Piece


class Automaton:
    """Reads one response's events and raises AssertionError at the first that may not come.

    Its arrows are the tables of lifecycle.py; what it adds is what tables cannot say: dense
    indices, one id per item, wholes that equal the sum of their deltas.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.expected: tuple[str, ...] = ("response.created",)
        self.delta = ""
        self.kind = ""
        self.text = ""
        self.ended = False

    def feed(self, event: Event) -> None:
        body = json.loads(event.body)
        assert not self.ended, f"{event.type} after the terminal event"
        assert body["type"] == event.type
        assert body["sequence_number"] == len(self.events)
        assert body.get("stream_id") == (self.events or [body])[0].get("stream_id")
        self.events.append(body)
        if event.type == "response.in_progress" and len(self.events) > 1:
            self.keep_alive(body)
        elif event.type == self.delta:
            self.place(body)
            assert body["delta"], "an empty delta"
            self.text += body["delta"]
        elif event.type == "response.failed" and len(self.events) > 1:
            self.terminal(body)
        else:
            assert event.type in self.expected, f"{event.type} instead of {self.expected}"
            self.follow(event.type, body)

    def follow(self, event_type: str, body: dict[str, Any]) -> None:
        if event_type == "response.created":
            # A cancel may arrive before the first in_progress.
            self.expected = ("response.incomplete",)
        elif event_type in {name for name, _ in TERMINAL.values()}:
            self.terminal(body)
        elif event_type == "response.output_item.added":
            self.added(body)
        elif event_type == "response.content_part.added":
            self.place(body)
            assert body["part"]["text"] == ""
            self.delta, self.expected = self.grammar.delta, self.grammar.closing[:1]
        elif event_type == "response.output_item.done":
            self.done(body)
        else:
            self.place(body)
            (whole,) = (body[key] for key in ("text", "arguments", "input", "part") if key in body)
            assert (whole["text"] if "part" in body else whole) == self.text
            self.delta = ""
            position = self.grammar.closing.index(event_type)
            self.expected = self.grammar.closing[position + 1 : position + 2]

    @property
    def grammar(self) -> Any:
        return ITEMS[self.kind]

    def keep_alive(self, body: dict[str, Any]) -> None:
        response = body["response"]
        assert response["status"] == "in_progress"
        shown = response["output"]
        assert shown[: len(self.items)] == self.items
        if self.open is None:
            assert len(shown) == len(self.items)
            if self.expected == ("response.incomplete",):
                self.expected = (
                    "response.output_item.added",
                    *(name for name, _ in TERMINAL.values()),
                )
        else:
            (item,) = shown[len(self.items) :]
            assert item["id"] == self.open["id"]
            assert self.grammar.delta is None or text_of(item) == self.text

    def added(self, body: dict[str, Any]) -> None:
        assert body["output_index"] == len(self.items)
        item = self.open = body["item"]
        assert item["id"], "an item without an id"
        assert item["id"] not in {done["id"] for done in self.items}
        assert item["status"] == "in_progress"
        assert not text_of(item)
        self.kind, self.text = item["type"], ""
        if len(self.grammar.opening) > 1:
            self.expected = self.grammar.opening[1:2]
        else:
            self.delta, self.expected = self.grammar.delta or "", self.grammar.closing[:1]

    def place(self, body: dict[str, Any]) -> None:
        assert self.open is not None
        assert body["item_id"] == self.open["id"]
        assert body["output_index"] == len(self.items)
        assert body.get("content_index", 0) == 0

    def done(self, body: dict[str, Any]) -> None:
        item = body["item"]
        assert self.open is not None
        assert body["output_index"] == len(self.items)
        fixed = ("id", "type", "call_id", "namespace", "name", "role")
        assert {key: item.get(key) for key in fixed} == {key: self.open.get(key) for key in fixed}
        assert self.grammar.delta is None or text_of(item) == self.text
        self.items.append(item)
        self.open = None
        incomplete = item["status"] == "incomplete"
        assert incomplete or item["status"] == "completed"
        self.expected = (
            ("response.incomplete",)
            if incomplete
            else (
                "response.output_item.added",
                *(name for name, _ in TERMINAL.values()),
            )
        )

    def terminal(self, body: dict[str, Any]) -> None:
        response = body["response"]
        assert (body["type"], response["status"]) in TERMINAL.values()
        assert response["output"] == self.items
        first = self.events[0]["response"]
        changing = {"status", "completed_at", "error", "incomplete_details", "output", "usage"}
        for key in first.keys() - changing:
            assert response[key] == first[key]
        assert response.keys() == first.keys()
        self.ended = True


def text_of(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    if item["type"] == "tool_search_call":  # JSON; a text is what was sampled that is none
        given = item["arguments"]
        return given if isinstance(given, str) else json.dumps(given) if given else ""
    return "".join(part["text"] for part in item["content"])


@pytest.fixture(scope="session")
def automaton() -> type[Automaton]:
    return Automaton


_ON_SOCKET: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
_ON_SSE: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="session")
def oracle():
    """openai-python's own models, strictly: the other reading of what an event is."""

    def check(event: Event) -> Any:
        # `error` is flat over SSE and never sent there; steering is for sockets only.
        if event.type != "error" and not event.type.startswith("response.steer."):
            _ON_SSE.validate_json(event.body, strict=True)
        model = _ON_SOCKET.validate_json(event.body, strict=True)
        assert model.type == event.type
        return model

    return check
