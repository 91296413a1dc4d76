"""The session against a naive model: one list of creates, scanned from the start each time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from turnwire.errors import InvariantError, OverloadedError
from turnwire.protocol.events import Event
from turnwire.protocol.session import Cancel, Close, Limits, Outcome, Send, Session, Start, Ticket

LIMITS = Limits(max_active=2, max_named_lanes=3, max_queued=3, lifetime=100.0)
NAMES = st.sampled_from([None, "a", "b", "c", "d"])
GOOD = {Outcome.COMPLETED, Outcome.INCOMPLETE}


@dataclass(eq=False)
class Entry:
    """One create that was not answered at once."""

    lane: str | None
    parent: str | None
    refused: str | None = None
    ticket: Ticket[str] | None = None
    found: str | None = None
    response_id: str | None = None
    stopping: bool = False


@dataclass
class Model:
    """What docs/protocol.md says, without a thought for cost."""

    entries: list[Entry] = field(default_factory=list)
    names: set[str | None] = field(default_factory=lambda: {None})
    latest: dict[str | None, str] = field(default_factory=dict)
    closing: str | None = None
    told: bool = False
    closed: bool = False

    def active(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.ticket is not None]

    def heads(self) -> list[Entry]:
        """Creates that nothing older on their lane is in the way of, oldest first."""
        seen: set[str | None] = set()
        heads = []
        for entry in self.entries:
            if entry.lane not in seen and entry.ticket is None:
                heads.append(entry)
            seen.add(entry.lane)
        return heads

    def free(self, lane: str | None) -> bool:
        return all(entry.lane != lane for entry in self.entries)

    def full(self) -> bool:
        return len(self.entries) - len(self.active()) >= LIMITS.max_queued

    def evict(self, lane: str | None, parent: str | None) -> None:
        if parent is not None and self.latest.get(lane) == parent:
            del self.latest[lane]

    def settle(self) -> tuple[list[tuple[str | None, str]], list[Entry]]:
        """Everything that happens now: (answers, starts)."""
        answers, starts = [], []
        while refused := [e for e in self.heads() if e.refused or self.closing]:
            entry = refused[0]
            self.entries.remove(entry)
            if entry.refused:
                self.evict(entry.lane, entry.parent)
            answers.append((entry.lane, entry.refused or self.closing))
        while (heads := self.heads()) and len(self.active()) + len(starts) < LIMITS.max_active:
            ready = [entry for entry in heads if entry not in starts]
            if not ready:
                break
            known = self.latest.values()
            ready[0].found = ready[0].parent if ready[0].parent in known else None
            starts.append(ready[0])
        return answers, starts


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.session: Session[str] = Session(LIMITS, now=0.0)
        self.model = Model()
        self.now = 1.0
        self.ids: list[str] = []

    # The two sides, compared

    def expect(self, actions, answers, starts, *, cancels=(), terminal=()) -> None:
        events = [action.event for action in actions if isinstance(action, Send)]
        assert events[: len(terminal)] == list(terminal), "the turn's own end goes out first"
        said = [json.loads(event.body) for event in events[len(terminal) :]]
        errors = [(body.get("stream_id"), body["error"]["code"]) for body in said]
        closes = [action for action in actions if isinstance(action, Close)]
        if self.model.closing and not self.model.active() and not starts and not self.model.closed:
            self.model.closed = True
            told = self.model.told or any(code == self.model.closing for _, code in answers)
            if self.model.closing == "websocket_connection_limit_reached" and not told:
                answers = [*answers, (None, self.model.closing)]
            assert closes == [Close(1012, "service restart")]
            assert actions[-1] is closes[0]
        else:
            assert not closes
        assert Counter(errors) == Counter(answers)
        for lane in {lane for lane, _ in answers}:
            mine = [code for name, code in errors if name == lane]
            assert mine == [code for name, code in answers if name == lane]
        self.model.told = self.model.told or any(
            code == "websocket_connection_limit_reached" for _, code in answers
        )
        tickets = [action.ticket for action in actions if isinstance(action, Start)]
        assert [ticket.lane for ticket in tickets] == [entry.lane for entry in starts]
        for ticket, entry in zip(tickets, starts, strict=True):
            entry.ticket = ticket
            assert ticket.request.previous_response_id == entry.parent
        assert [a.ticket for a in actions if isinstance(a, Cancel)] == [e.ticket for e in cancels]

    # Rules

    @rule(
        lane=NAMES,
        data=st.data(),
        fault=st.sampled_from([None, None, None, "value", "type"]),
    )
    def create(self, lane, data, fault) -> None:
        model = self.model
        latest = [model.latest.get(lane), *model.latest.values()]
        parents = [None, "resp_missing", *latest, *latest, *self.ids[-3:]]
        parent = data.draw(st.sampled_from(parents))
        body = {"type": "response.create", "model": "m", "input": "x"}
        body |= {} if lane is None else {"stream_id": lane}
        body |= {} if parent is None else {"previous_response_id": parent}
        body |= {"value": {"temperature": 9}, "type": {"temperature": []}}.get(fault, {})
        actions = self.session.receive(json.dumps(body), self.now)
        if model.closed:
            assert actions == []
            return
        if fault != "type" and lane not in model.names and len(model.names) > 3:
            self.expect(actions, [(lane, "websocket_stream_limit_reached")], [])
            return
        refused = "invalid_value" if fault else None
        if model.closing and fault != "type":
            refused = model.closing
        # What cannot be read, and what is refused for the server's sake, evicts nothing.
        evicts = parent if fault == "value" and not model.closing else None
        if refused and model.free(lane):
            model.evict(lane, evicts)
            self.expect(actions, [(lane, refused)], [])
            return
        entry = Entry(lane, evicts if refused else parent, refused)
        at_once = model.free(lane) and len(model.active()) < LIMITS.max_active and not refused
        if model.full() and not at_once:
            self.expect(actions, [(lane, "rate_limit_exceeded")], [])
            return
        model.entries.append(entry)
        if not refused:
            model.names.add(lane)
        self.expect(actions, *model.settle())

    @precondition(lambda self: any(e.response_id is None for e in self.model.active()))
    @rule(data=st.data())
    def begin(self, data) -> None:
        self.name(data.draw(st.sampled_from([e for e in self.model.active() if not e.response_id])))

    def name(self, entry: Entry) -> None:
        entry.response_id = f"resp_{len(self.ids)}"
        self.ids.append(entry.response_id)
        assert self.session.begin(entry.ticket, entry.response_id) == entry.found

    @precondition(lambda self: self.model.active())
    @rule(
        data=st.data(),
        outcome=st.sampled_from([*Outcome, Outcome.COMPLETED]),
        commits=st.sampled_from([True, True, True, False]),
    )
    def end(self, data, outcome, commits) -> None:
        model = self.model
        entry = data.draw(st.sampled_from(model.active()))
        if entry.response_id is None and commits:
            self.name(entry)
        state = entry.response_id if commits and outcome in GOOD else None
        terminal = [Event("response.completed", b'{"n":%d}' % len(self.ids))]
        actions = self.session.ended(
            entry.ticket,
            response_id=entry.response_id,
            state=state,
            outcome=outcome,
            now=self.now,
            terminal=terminal,
        )
        assert entry.ticket.ended
        model.entries.remove(entry)
        if model.closed:
            assert actions == []
            return
        if outcome is Outcome.FAILED:
            model.evict(entry.lane, entry.parent)
        elif state is not None:
            model.latest[entry.lane] = state
        self.expect(actions, *model.settle(), terminal=terminal)
        with pytest.raises(InvariantError):
            self.session.ended(
                entry.ticket, response_id=None, state=None, outcome=outcome, now=self.now
            )

    @rule(lane=NAMES, by_id=st.booleans(), data=st.data())
    def cancel(self, lane, by_id, data) -> None:
        frame = {"type": "response.cancel"} | ({} if lane is None else {"stream_id": lane})
        targets = [e for e in self.model.active() if e.lane == lane]
        if by_id:
            frame["response_id"] = data.draw(st.sampled_from(["resp_missing", *self.ids[-6:]]))
            targets = [e for e in self.model.active() if e.response_id == frame["response_id"]]
        actions = self.session.receive(json.dumps(frame), self.now)
        targets = [e for e in targets if not e.stopping and not self.model.closed]
        for entry in targets:
            entry.stopping = True
        self.expect(actions, [], [], cancels=targets)

    @rule(frame=st.sampled_from(['{"type":"response.processed"}', "{", '{"type":"x"}']))
    def other(self, frame) -> None:
        actions = self.session.receive(frame, self.now)
        if self.model.closed or "processed" in frame:
            assert actions == []
        else:
            self.expect(actions, [(None, None if frame == "{" else "invalid_value")], [])

    @precondition(lambda self: len(self.ids) > 5)
    @rule()
    def expire(self) -> None:
        self.now = 101.0
        actions = self.session.expire(self.now)
        if self.model.closed:
            assert actions == []
            return
        self.model.closing = self.model.closing or "websocket_connection_limit_reached"
        self.expect(actions, *self.model.settle())

    @precondition(lambda self: len(self.ids) > 10)
    @rule()
    def drain(self) -> None:
        actions = self.session.drain(OverloadedError("draining"))
        if self.model.closed:
            assert actions == []
            return
        self.model.closing = self.model.closing or "server_is_overloaded"
        self.expect(actions, *self.model.settle())

    @precondition(lambda self: len(self.ids) > 14)
    @rule()
    def disconnect(self) -> None:
        told = [a.ticket for a in self.session.disconnect()]
        if not self.model.closed:
            assert told == self.in_lane_order([e for e in self.model.active() if not e.stopping])
        else:
            assert told == []
        for entry in self.model.active():
            entry.stopping = True
        self.model.entries = self.model.active()
        self.model.closed = True

    def in_lane_order(self, entries):
        tickets = {entry.ticket for entry in entries}
        return [a.ticket for lane in self.session._lanes for a in [lane] if a.ticket in tickets]

    @invariant()
    def bounds(self) -> None:
        model = self.model
        assert self.session.active == len(model.active()) <= LIMITS.max_active
        assert self.session.queued == len(model.entries) - len(model.active())
        assert self.session.queued <= LIMITS.max_queued
        assert self.session.closed == model.closed
        running = [entry.lane for entry in model.active()]
        assert len(running) == len(set(running)), "two turns on one lane"
        if not model.closed:
            kept = {lane.name: lane.latest[0] for lane in self.session._lanes if lane.latest}
            assert kept == model.latest


SessionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSession = SessionMachine.TestCase
