"""The state machines of the protocol, as tables; ``output.py`` and ``session.py`` walk them.

**A response.** It is created, then in progress, then it ends, once. ``response.in_progress`` may be
said again at any time before the end: it is the keep-alive that every client tolerates. Items may
come only while it is in progress. A failure may strike, and a cancel may arrive, as soon as it is
created. Nothing follows the terminal event, because clients charge whatever follows to their next
turn. A cancelled response ends in ``response.incomplete``, since no event is called after it; its
status says ``cancelled`` (docs/design.md, D4).

**An item.** It is announced, its part (if it has one) is announced, its deltas follow, then each
``done`` repeats the whole, innermost first. Items never overlap: the next is announced only after
the last was done, and output indices count up from 0 in that order (openai-node throws otherwise).
A response that ends short closes its last item as ``incomplete``; one that fails leaves an open
item open, because a client would take a closed one for good: Codex runs a call on
``output_item.done``.

**A ticket** is one accepted ``response.create``. It waits on its lane, is active from its start to
its end, and may be told to stop in between, at most once. One that never started can only be
refused. Nothing leads out of ``ENDED``: a second end is a bug that the table catches.

**A lane** is idle or busy with one ticket: first in, first out, and the next starts
only when the last has ended. Lanes do not wait for each other, except for the connection's cap on
active responses.

**A session** is open; then, at its age limit or on drain, closing: it admits and starts nothing
more, and closes when nothing is active. A lost socket closes it at once.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from turnwire.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=enum.Enum)


class ResponsePhase(enum.Enum):
    """Where a response is."""

    NEW = "new"
    CREATED = "created"
    IN_PROGRESS = "in_progress"
    ENDED = "ended"


RESPONSE: Final[Mapping[ResponsePhase, Mapping[str, ResponsePhase]]] = {
    ResponsePhase.NEW: {"created": ResponsePhase.CREATED},
    ResponsePhase.CREATED: {
        "in_progress": ResponsePhase.IN_PROGRESS,
        "cancelled": ResponsePhase.ENDED,
        "failed": ResponsePhase.ENDED,
    },
    ResponsePhase.IN_PROGRESS: {
        "in_progress": ResponsePhase.IN_PROGRESS,
        "push": ResponsePhase.IN_PROGRESS,
        "completed": ResponsePhase.ENDED,
        "incomplete": ResponsePhase.ENDED,
        "cancelled": ResponsePhase.ENDED,
        "failed": ResponsePhase.ENDED,
    },
    ResponsePhase.ENDED: {},
}
"""Verbs of a response stream: what may be said when."""

TERMINAL: Final[Mapping[str, tuple[str, str]]] = {
    "completed": ("response.completed", "completed"),
    "incomplete": ("response.incomplete", "incomplete"),
    "cancelled": ("response.incomplete", "cancelled"),
    "failed": ("response.failed", "failed"),
}
"""Verb → (event type, the response's status in it)."""

ItemKind = Literal["message", "reasoning", "function_call", "custom_tool_call", "tool_search_call"]


class ItemGrammar(NamedTuple):
    """The events of one output item: ``opening``, any number of ``delta``, ``closing``."""

    opening: tuple[str, ...]
    delta: str | None
    """None for an item that comes as a whole."""
    closing: tuple[str, ...]


ITEMS: Final[Mapping[ItemKind, ItemGrammar]] = {
    "message": ItemGrammar(
        opening=("response.output_item.added", "response.content_part.added"),
        delta="response.output_text.delta",
        closing=(
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ),
    ),
    "reasoning": ItemGrammar(
        opening=("response.output_item.added", "response.content_part.added"),
        delta="response.reasoning_text.delta",
        closing=(
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ),
    ),
    "function_call": ItemGrammar(
        opening=("response.output_item.added",),
        delta="response.function_call_arguments.delta",
        closing=("response.function_call_arguments.done", "response.output_item.done"),
    ),
    "custom_tool_call": ItemGrammar(
        opening=("response.output_item.added",),
        delta="response.custom_tool_call_input.delta",
        closing=("response.custom_tool_call_input.done", "response.output_item.done"),
    ),
    "tool_search_call": ItemGrammar(
        opening=("response.output_item.added",),
        delta=None,
        closing=("response.output_item.done",),
    ),
}
"""The order of events per output kind, as OpenAI documents it."""

ITEM_OF: Final[Mapping[str, ItemKind]] = {
    "text": "message",
    "reasoning": "reasoning",
    "call": "function_call",
    "arguments": "function_call",
    "custom_call": "custom_tool_call",
    "input": "custom_tool_call",
    "search_call": "tool_search_call",
    "query": "tool_search_call",
}
"""A core delta's kind → the output item it belongs to."""

OPENED_BY: Final[frozenset[str]] = frozenset(
    {"text", "reasoning", "call", "custom_call", "search_call"}
)
"""Delta kinds that may begin an item; the others only continue the call before them."""

CALLS: Final[frozenset[str]] = frozenset({"call", "custom_call", "search_call"})
"""Delta kinds that always begin an item, without any text."""


class TicketPhase(enum.Enum):
    """Where a ticket is."""

    WAITING = "waiting"
    ACTIVE = "active"
    STOPPING = "stopping"
    ENDED = "ended"


TICKET: Final[Mapping[TicketPhase, Mapping[str, TicketPhase]]] = {
    TicketPhase.WAITING: {"start": TicketPhase.ACTIVE, "refuse": TicketPhase.ENDED},
    TicketPhase.ACTIVE: {"cancel": TicketPhase.STOPPING, "end": TicketPhase.ENDED},
    TicketPhase.STOPPING: {"end": TicketPhase.ENDED},
    TicketPhase.ENDED: {},
}


class LanePhase(enum.Enum):
    """Whether a lane runs a ticket."""

    IDLE = "idle"
    BUSY = "busy"


LANE: Final[Mapping[LanePhase, Mapping[str, LanePhase]]] = {
    LanePhase.IDLE: {"start": LanePhase.BUSY},
    LanePhase.BUSY: {"end": LanePhase.IDLE},
}


class SessionPhase(enum.Enum):
    """Where a connection's session is."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


SESSION: Final[Mapping[SessionPhase, Mapping[str, SessionPhase]]] = {
    SessionPhase.OPEN: {
        "expire": SessionPhase.CLOSING,
        "drain": SessionPhase.CLOSING,
        "disconnect": SessionPhase.CLOSED,
    },
    SessionPhase.CLOSING: {
        "idle": SessionPhase.CLOSED,
        "disconnect": SessionPhase.CLOSED,
    },
    SessionPhase.CLOSED: {},
}


def step(table: Mapping[S, Mapping[str, S]], phase: S, verb: str) -> S:
    """Follow one arrow of a table. Raises InvariantError when there is none."""
    try:
        return table[phase][verb]
    except KeyError:
        raise InvariantError(f"{type(phase).__name__}: no '{verb}' when {phase.value}") from None
