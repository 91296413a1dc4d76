"""The tables are whole, and the automaton made from them refuses what they do not allow."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses.responses_server_event import ResponsesServerEvent

from turnwire.errors import InvariantError
from turnwire.protocol.events import Event, Usage
from turnwire.protocol.frames import decode_create
from turnwire.protocol.lifecycle import (
    ITEM_OF,
    ITEMS,
    LANE,
    OPENED_BY,
    RESPONSE,
    SESSION,
    TERMINAL,
    TICKET,
    LanePhase,
    ResponsePhase,
    SessionPhase,
    TicketPhase,
    step,
)
from turnwire.protocol.output import ResponseStream

if TYPE_CHECKING:
    import enum

MACHINES = [
    (RESPONSE, ResponsePhase, ResponsePhase.NEW, {ResponsePhase.ENDED}),
    (TICKET, TicketPhase, TicketPhase.WAITING, {TicketPhase.ENDED}),
    (LANE, LanePhase, LanePhase.IDLE, set()),
    (SESSION, SessionPhase, SessionPhase.OPEN, {SessionPhase.CLOSED}),
]


@pytest.mark.parametrize(("table", "phases", "start", "ends"), MACHINES)
def test_every_phase_has_a_row_and_is_reached(table, phases, start, ends):
    assert set(table) == set(phases)
    reached, todo = set(), [start]
    while todo:
        phase = todo.pop()
        if phase not in reached:
            reached.add(phase)
            todo += table[phase].values()
    assert reached == set(phases)
    assert {phase for phase in phases if not table[phase]} == ends


@settings(deadline=None)
@given(st.sampled_from(MACHINES), st.data())
def test_step_follows_arrows_and_nothing_else(machine, data):
    table, phases, _, _ = machine
    verbs = sorted({verb for row in table.values() for verb in row} | {"nonsense"})
    phase: enum.Enum = data.draw(st.sampled_from(list(phases)))
    verb = data.draw(st.sampled_from(verbs))
    if verb in table[phase]:
        assert step(table, phase, verb) is table[phase][verb]
    else:
        with pytest.raises(InvariantError, match=verb):
            step(table, phase, verb)


def test_terminal_verbs_are_those_that_end_a_response():
    ending = {
        verb
        for row in RESPONSE.values()
        for verb, phase in row.items()
        if phase is ResponsePhase.ENDED
    }
    assert ending == set(TERMINAL)


def test_every_event_name_exists():
    known = {
        event.model_fields["type"].annotation.__args__[0]
        for event in _members(ResponsesServerEvent)
    }
    said = {name for name, _ in TERMINAL.values()} | {"response.created", "response.in_progress"}
    for grammar in ITEMS.values():
        said |= {*grammar.opening, *grammar.closing} | ({grammar.delta} - {None})
    assert said <= known


def _members(union):
    annotated = union.__origin__ if hasattr(union, "__origin__") else union
    return annotated.__args__


def test_delta_kinds_cover_items():
    assert set(ITEM_OF.values()) == set(ITEMS)
    assert set(ITEM_OF) - OPENED_BY == {"arguments", "input", "query"}


@pytest.fixture(scope="module")
def events(piece) -> list[Event]:
    ids = itertools.count()
    response = ResponseStream(
        decode_create(b"{}"),
        response_id="resp_1",
        created_at=1,
        model="m",
        stream_id=None,
        new_id=lambda prefix: f"{prefix}_{next(ids)}",
        store=True,
    )
    return [
        *response.created(),
        *response.in_progress(),
        *response.push([piece("reasoning", "a"), piece("text", "b"), piece("call", name="f")]),
        *response.completed(Usage(1), completed_at=1),
    ]


def renumbered(events: list[Event]) -> list[Event]:
    """The same with dense sequence numbers, so that only the order can be wrong."""
    bodies = [json.loads(event.body) | {"sequence_number": n} for n, event in enumerate(events)]
    return [Event(body["type"], json.dumps(body).encode()) for body in bodies]


def accepts(automaton, events) -> bool:
    reader = automaton()
    try:
        for event in renumbered(events):
            reader.feed(event)
    except AssertionError:
        return False
    return reader.ended


def test_automaton_accepts_the_true_stream(automaton, events):
    assert accepts(automaton, events)


def test_automaton_refuses_any_event_dropped_doubled_or_moved(automaton, events):
    for index, event in enumerate(events):
        rest = events[:index] + events[index + 1 :]
        assert not accepts(automaton, rest), f"without {event.type} at {index}"
        doubled = [*events[:index], event, *events[index:]]
        # A doubled in_progress is the keep-alive, and only that.
        assert accepts(automaton, doubled) == (event.type == "response.in_progress")
        for other in range(len(rest) + 1):
            if other != index:
                moved = [*rest[:other], event, *rest[other:]]
                assert not accepts(automaton, moved), f"{event.type} from {index} to {other}"
