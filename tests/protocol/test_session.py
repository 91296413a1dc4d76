"""A connection's rules, one by one. test_session_model.py walks them at random."""

from __future__ import annotations

import json

import pytest

from turnwire.errors import (
    EngineError,
    InvariantError,
    OverloadedError,
    PreviousResponseNotFoundError,
)
from turnwire.protocol.events import Event, error_event
from turnwire.protocol.session import Cancel, Close, Limits, Outcome, Send, Session, Start, Ticket


def create(stream_id: str | None = None, **fields) -> str:
    body = {"type": "response.create", "model": "m", "input": "hi"} | fields
    if stream_id is not None:
        body["stream_id"] = stream_id
    return json.dumps(body)


def session(**limits) -> Session[str]:
    return Session(Limits(**limits), now=0.0)


def started(actions) -> Ticket[str]:
    (action,) = actions
    assert isinstance(action, Start)
    return action.ticket


def errors(actions) -> list[tuple[str | None, str | None]]:
    """(stream_id, code) of the error events, which must be all there is."""
    said = []
    for action in actions:
        assert isinstance(action, Send), action
        body = json.loads(action.event.body)
        assert body["type"] == "error"
        said.append((body.get("stream_id"), body["error"]["code"]))
    return said


def end(over, ticket, response_id, outcome=Outcome.COMPLETED, *, now=1.0, terminal=()):
    """Begin, if need be, and end a turn; its state is named after its id."""
    if ticket.response_id is None:
        over.begin(ticket, response_id)
    usable = outcome in {Outcome.COMPLETED, Outcome.INCOMPLETE}
    return over.ended(
        ticket,
        response_id=response_id,
        state=f"state of {response_id}" if usable else None,
        outcome=outcome,
        now=now,
        terminal=terminal,
    )


def turn(over, response_id, outcome=Outcome.COMPLETED, **fields):
    """A whole turn on an idle lane; returns the parent it found."""
    ticket = started(over.receive(create(**fields), 1.0))
    parent = over.begin(ticket, response_id)
    assert end(over, ticket, response_id, outcome) == []
    return parent


# Lanes. The numbers of cases are those of docs/faults.md


def test_a_lane_is_first_in_first_out_and_never_overlaps():
    over = session()
    first = started(over.receive(create("a", user="1"), 1.0))
    assert over.receive(create("a", user="2"), 1.0) == []
    assert over.receive(create("a", user="3"), 1.0) == []
    assert (over.active, over.queued) == (1, 2)
    second = started(end(over, first, "r1"))
    third = started(end(over, second, "r2"))
    assert [ticket.request.user for ticket in (first, second, third)] == ["1", "2", "3"]
    assert end(over, third, "r3") == []
    assert (over.active, over.queued) == (0, 0)


def test_lanes_run_together_and_the_default_lane_is_one_of_them():
    over = session()
    lanes = [started(over.receive(create(name), 1.0)).lane for name in (None, "a", "b")]
    assert lanes == [None, "a", "b"]
    assert over.active == 3


def test_a_pipelined_continuation_finds_its_parent():
    # The id is known from response.created, the parent is not complete yet.
    over = session()
    first = started(over.receive(create(), 1.0))
    over.begin(first, "r1")
    assert over.receive(create(previous_response_id="r1"), 1.0) == []
    second = started(end(over, first, "r1"))
    assert over.begin(second, "r2") == "state of r1"


def test_the_seventeenth_waits_and_the_oldest_starts_next():
    over = session()
    tickets = [started(over.receive(create(f"lane{n}"), 1.0)) for n in range(16)]
    assert over.receive(create("late"), 1.0) == []
    assert over.receive(create("lane3"), 1.0) == []
    assert over.receive(create("later"), 1.0) == []
    assert started(end(over, tickets[3], "r3")).lane == "late"
    # lane3's second is older than the one on "later", and its lane is free by now.
    assert started(end(over, tickets[0], "r0")).lane == "lane3"
    assert started(end(over, tickets[1], "r1")).lane == "later"


def test_thirty_two_names_for_ever_and_the_default_lane_besides():
    over = session()
    for n in range(32):
        turn(over, f"r{n}", stream_id=f"s{n}")
    refused = over.receive(create("one-more"), 1.0)
    assert errors(refused) == [("one-more", "websocket_stream_limit_reached")]
    turn(over, "again", stream_id="s5")
    turn(over, "default")


def test_a_refused_create_uses_up_no_name():
    over = session(max_named_lanes=1)
    assert errors(over.receive(create("x", temperature=9), 1.0)) == [("x", "invalid_value")]
    assert errors(over.receive(create("y", model=None), 1.0)) == [
        ("y", "missing_required_parameter")
    ]
    turn(over, "r1", stream_id="z")
    refused = over.receive(create("x"), 1.0)
    assert errors(refused) == [("x", "websocket_stream_limit_reached")]


def test_a_failed_turn_does_use_up_its_name():
    over = session(max_named_lanes=1)
    turn(over, "r1", Outcome.FAILED, stream_id="x")
    refused = over.receive(create("y"), 1.0)
    assert errors(refused) == [("y", "websocket_stream_limit_reached")]


@pytest.mark.parametrize("stream_id", ["", "a b", "é", "x" * 257, 7, [], {}, True])
def test_a_bad_stream_id_is_refused_without_echo(stream_id):
    over = session()
    frame = json.dumps({"type": "response.create", "model": "m", "stream_id": stream_id})
    assert errors(over.receive(frame, 1.0)) == [(None, "invalid_stream_id")]
    both = json.dumps({"type": "response.create", "temperature": "x", "stream_id": stream_id})
    assert errors(over.receive(both, 1.0)) == [(None, "invalid_stream_id")]


# Refusals keep their place


def test_a_refusal_waits_for_its_place_on_a_busy_lane():
    over = session()
    first = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a", temperature=9), 1.0) == []
    assert over.receive(create("a", temperature="hot"), 1.0) == []
    assert over.receive(create("a", user="2"), 1.0) == []
    last = Event("response.completed", b"{}")
    actions = end(over, first, "r1", terminal=[last])
    assert actions[0] == Send(last)
    assert errors(actions[1:3]) == [("a", "invalid_value"), ("a", "invalid_value")]
    assert started(actions[3:]).request.user == "2"


def test_a_refusal_on_an_idle_lane_is_answered_at_once():
    over = session()
    started(over.receive(create("a"), 1.0))
    assert errors(over.receive(create("b", background=True), 1.0)) == [
        ("b", "unsupported_parameter")
    ]
    assert errors(over.receive(create(background=True), 1.0)) == [(None, "unsupported_parameter")]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("nonsense", None),
        ("[1]", None),
        (b"\xff\xff", None),
        ("{}", "missing_required_parameter"),
        ('{"type":"response.append","stream_id":"a"}', "invalid_value"),
        ('{"type":"response.inject"}', "invalid_value"),
        ('{"type":"' + "x" * 10_000 + '"}', "invalid_value"),
        ('{"type":"response.steer","previous_response_id":7}', "invalid_value"),
    ],
)
def test_junk_is_answered_once_and_the_socket_lives(frame, code):
    over = session()
    ticket = started(over.receive(create(), 1.0))
    (action,) = over.receive(frame, 1.0)
    body = json.loads(action.event.body)
    assert body["status"] == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["code"] == code
    assert "stream_id" not in body
    assert len(action.event.body) < 600
    assert end(over, ticket, "r1") == []


def test_processed_is_swallowed():
    # Any reply is read as the first event of Codex's next turn.
    over = session()
    assert over.receive('{"type":"response.processed","response_id":"r1"}', 1.0) == []
    assert over.receive('{"type":"response.processed"}', 1.0) == []


def test_binary_frames_are_read_like_text():
    started(session().receive(create("a", user="ü").encode(), 1.0))


# The queue


def test_a_full_queue_is_answered_at_once_and_holds_its_bound():
    over = session(max_queued=2)
    first = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a"), 1.0) == []
    assert over.receive(create("a", temperature=9), 1.0) == []
    (action,) = over.receive(create("a"), 1.0)
    body = json.loads(action.event.body)
    assert (body["status"], body["stream_id"]) == (429, "a")
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert body["headers"] == {"retry-after": "1"}
    assert errors(over.receive(create("a", temperature=9), 1.0)) == [("a", "rate_limit_exceeded")]
    # What can start at once never waits, so a full queue does not concern it.
    started(over.receive(create("b"), 1.0))
    assert len(end(over, first, "r1")) == 1
    assert over.queued == 1


def test_the_queue_is_bounded_in_bytes():
    big = create("a", user="u" * 500)
    over = session(max_queued_bytes=len(big) + 10)
    first = started(over.receive(big, 1.0))
    assert over.receive(big, 1.0) == []
    assert errors(over.receive(create("a"), 1.0)) == [("a", "rate_limit_exceeded")]
    second = started(end(over, first, "r1"))
    assert over.receive(big, 1.0) == []
    started(end(over, second, "r2"))


def test_size_counts_bytes_not_characters():
    over = session()
    frame = create("a", user="🌍").replace("\\ud83c\\udf0d", "🌍")
    assert started(over.receive(frame, 1.0)).size == len(frame.encode())


def test_a_flood_does_not_grow():
    over = session()
    started(over.receive(create(), 1.0))
    for _ in range(5_000):
        over.receive(create(), 1.0)
        over.receive(create(temperature=9), 1.0)
    assert over.queued == 64


# Continuation and eviction


def test_the_latest_of_each_lane_can_be_continued_from_any_lane():
    over = session()
    turn(over, "r1", stream_id="a")
    turn(over, "r2", stream_id="b")
    assert turn(over, "r3", previous_response_id="r1") == "state of r1"
    assert turn(over, "r4", previous_response_id="r2", stream_id="a") == "state of r2"
    # a's latest is r4 now.
    assert turn(over, "r5", previous_response_id="r1") is None


def test_a_lane_has_no_memory_of_its_own():
    over = session()
    turn(over, "r1", stream_id="a")
    assert turn(over, "r2", stream_id="a") is None


def test_unknown_ids_are_left_to_the_store():
    assert turn(session(), "r1", previous_response_id="resp_missing") is None


def test_ids_do_not_cross_connections():
    # case 23: the id of a store:false response never leaves its connection.
    turn(session(), "r1")
    assert turn(session(), "r2", previous_response_id="r1") is None


def test_a_warm_up_is_chainable():
    # case 20: what a generate:false committed is there for the next turn.
    over = session()
    turn(over, "warm", generate=False, input="warm content")
    assert turn(over, "r1", previous_response_id="warm", input=[]) == "state of warm"


def test_two_forks_see_the_parent_only():
    # case 24: routed, concurrent, and each from the same parent.
    over = session()
    turn(over, "parent")
    a = started(over.receive(create("a", previous_response_id="parent"), 1.0))
    b = started(over.receive(create("b", previous_response_id="parent"), 1.0))
    assert over.begin(a, "ra") == over.begin(b, "rb") == "state of parent"
    assert (a.lane, b.lane) == ("a", "b")


def test_a_started_fork_has_pinned_its_parent():
    # The fork recipe of OpenAI's guide, step by step.
    over = session()
    turn(over, "r1", stream_id="main")
    critic = started(over.receive(create("critic", previous_response_id="r1"), 1.0))
    turn(over, "r2", stream_id="main", previous_response_id="r1")
    assert over.begin(critic, "r3") == "state of r1"
    assert turn(over, "r4", stream_id="third", previous_response_id="r1") is None


def test_a_queued_fork_has_not():
    # What it names is looked up when it starts.
    over = session(max_active=1)
    turn(over, "r1", stream_id="main")
    main = started(over.receive(create("main", previous_response_id="r1"), 1.0))
    assert over.receive(create("fork", previous_response_id="r1"), 1.0) == []
    fork = started(end(over, main, "r2"))
    assert over.begin(fork, "r3") is None


def test_a_failed_continuation_evicts_its_parent():
    # Case 27: the same socket goes on with full input.
    over = session()
    turn(over, "r1")
    assert turn(over, "r2", Outcome.FAILED, previous_response_id="r1") == "state of r1"
    assert turn(over, "r3", Outcome.FAILED, previous_response_id="r1") is None
    assert turn(over, "r4") is None
    assert turn(over, "r5", previous_response_id="r4") == "state of r4"


def test_a_failed_fork_on_another_lane_preserves_it():
    over = session()
    turn(over, "r1", stream_id="a")
    turn(over, "r2", Outcome.FAILED, stream_id="b", previous_response_id="r1")
    assert turn(over, "r3", stream_id="c", previous_response_id="r1") == "state of r1"


def test_a_failure_evicts_only_what_it_names():
    over = session()
    turn(over, "r1", stream_id="a")
    turn(over, "r2", Outcome.FAILED, stream_id="a")
    turn(over, "r3", Outcome.FAILED, stream_id="a", previous_response_id="stored elsewhere")
    assert turn(over, "r4", stream_id="a", previous_response_id="r1") == "state of r1"


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.FAILED])
def test_only_a_failure_evicts(outcome):
    # A cancelled turn leaves the past as it was, and nothing to continue.
    over = session()
    turn(over, "r1")
    turn(over, "r2", outcome, previous_response_id="r1")
    kept = turn(over, "r3", previous_response_id="r1")
    assert kept == ("state of r1" if outcome is Outcome.CANCELLED else None)
    assert turn(over, "r4", previous_response_id="r2") is None


def test_an_incomplete_response_can_be_continued():
    over = session()
    turn(over, "r1", Outcome.INCOMPLETE)
    assert turn(over, "r2", previous_response_id="r1") == "state of r1"


def test_a_filtered_response_cannot():
    # Content-filtered turns abort (docs/design.md, D4); they end as incomplete without a state.
    over = session()
    turn(over, "r0")
    ticket = started(over.receive(create(), 1.0))
    over.begin(ticket, "r1")
    over.ended(ticket, response_id="r1", state=None, outcome=Outcome.INCOMPLETE, now=1.0)
    assert turn(over, "r2", previous_response_id="r1") is None
    assert turn(over, "r3", stream_id="a", previous_response_id="r0") is None  # r2 replaced it


def test_a_refused_continuation_evicts_like_a_failed_one():
    # Open Responses: any 4xx continuation evicts. A full queue is not the request's fault.
    over = session(max_queued=0)
    turn(over, "r1", stream_id="a")
    turn(over, "r2", stream_id="b")
    refused = over.receive(create("a", previous_response_id="r1", temperature=9), 1.0)
    assert errors(refused) == [("a", "invalid_value")]
    assert turn(over, "r3", previous_response_id="r1") is None
    started(over.receive(create("b"), 1.0))
    refused = over.receive(create("b", previous_response_id="r2"), 1.0)
    assert errors(refused) == [("b", "rate_limit_exceeded")]
    assert turn(over, "r4", previous_response_id="r2") == "state of r2"


def test_a_refusal_evicts_when_its_place_has_come():
    over = session()
    turn(over, "r1", stream_id="a")
    running = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a", previous_response_id="r1", temperature=9), 1.0) == []
    fork = started(over.receive(create("b", previous_response_id="r1"), 1.0))
    assert over.begin(fork, "r2") == "state of r1"
    assert errors(end(over, running, "r3", Outcome.CANCELLED)) == [("a", "invalid_value")]
    assert turn(over, "r4", stream_id="c", previous_response_id="r1") is None


def test_the_next_create_finds_what_just_ended():
    # Published before the terminal event can have been read.
    over = session()
    first = started(over.receive(create(), 1.0))
    last = Event("response.completed", b"{}")
    assert end(over, first, "r1", terminal=[last]) == [Send(last)]
    assert turn(over, "r2", previous_response_id="r1") == "state of r1"


def test_an_error_before_created_ends_the_turn_in_order():
    over = session()
    ticket = started(over.receive(create("a", previous_response_id="r0"), 1.0))
    assert over.receive(create("a", user="2"), 1.0) == []
    assert over.begin(ticket, "r1") is None
    event = error_event(PreviousResponseNotFoundError("r0"), stream_id=ticket.lane)
    actions = end(over, ticket, "r1", Outcome.FAILED, terminal=[event])
    assert errors(actions[:1]) == [("a", "previous_response_not_found")]
    assert started(actions[1:]).request.user == "2"


# Cancel


@pytest.mark.parametrize("kind", ["response.cancel", "response.interrupt"])
def test_cancel_by_id_by_lane_and_by_default(kind):
    over = session()
    tickets = {name: started(over.receive(create(name), 1.0)) for name in (None, "a", "b")}
    for name, ticket in tickets.items():
        over.begin(ticket, f"r-{name}")
    assert over.receive(json.dumps({"type": kind}), 1.0) == [Cancel(tickets[None])]
    by_lane = json.dumps({"type": kind, "stream_id": "a"})
    assert over.receive(by_lane, 1.0) == [Cancel(tickets["a"])]
    by_id = json.dumps({"type": kind, "response_id": "r-b"})
    assert over.receive(by_id, 1.0) == [Cancel(tickets["b"])]
    # At most once each, and the turn still ends once.
    assert over.receive(by_lane, 1.0) == over.receive(by_id, 1.0) == []
    assert end(over, tickets["a"], "r-a", Outcome.CANCELLED) == []


def test_cancel_reaches_a_turn_that_has_not_begun():
    over = session()
    ticket = started(over.receive(create(), 1.0))
    assert over.receive('{"type":"response.cancel"}', 1.0) == [Cancel(ticket)]
    over.begin(ticket, "r1")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_id": "resp_unknown"},
        {"response_id": 7},
        {"response_id": []},
        {"stream_id": "idle"},
        {"stream_id": "never seen"},
        {"stream_id": 7},
        {"stream_id": {}},
        {"response_id": "r1"},
    ],
)
def test_a_cancel_of_nothing_is_ignored(fields):
    over = session()
    turn(over, "r1", stream_id="idle")
    started(over.receive(create("busy"), 1.0))
    assert over.receive(json.dumps({"type": "response.cancel"} | fields), 1.0) == []


def test_a_cancel_does_not_touch_the_queue():
    # case 26: the next create on the lane runs, after the cancelled turn has ended.
    over = session()
    first = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a", user="2"), 1.0) == []
    assert over.receive('{"type":"response.cancel","stream_id":"a"}', 1.0) == [Cancel(first)]
    last = Event("response.incomplete", b"{}")
    actions = end(over, first, "r1", Outcome.CANCELLED, terminal=[last])
    assert actions[0] == Send(last)
    assert started(actions[1:]).request.user == "2"
    with pytest.raises(InvariantError):
        first.check()


# Steering is declined by its own event, which ends no turn


@pytest.mark.parametrize("stream_id", [None, "a"])
def test_steer_is_declined_on_its_targets_lane(stream_id, oracle):
    over = session()
    ticket = started(over.receive(create(stream_id), 1.0))
    over.begin(ticket, "r1")
    frame = '{"type":"response.steer","previous_response_id":"r1","input":"shorter"}'
    (action,) = over.receive(frame, 1.0)
    model = oracle(action.event)
    assert model.error.code == "steering_not_supported"
    assert model.steer.input == "shorter"
    assert json.loads(action.event.body).get("stream_id") == stream_id
    gone = '{"type":"response.steer","previous_response_id":"r0"}'
    (action,) = over.receive(gone, 1.0)
    assert oracle(action.event).error.code == "response_not_found"


# One end per turn


def test_a_turn_ends_once():
    over = session()
    ticket = started(over.receive(create(), 1.0))
    end(over, ticket, "r1")
    assert ticket.ended
    with pytest.raises(InvariantError):
        end(over, ticket, "r1")
    with pytest.raises(InvariantError):
        over.begin(ticket, "r1")
    with pytest.raises(InvariantError):
        ticket.check()


def test_a_waiting_turn_neither_begins_nor_ends():
    over = session()
    started(over.receive(create(), 1.0))
    waiting = Ticket(object(), None, 0, 2)
    with pytest.raises(InvariantError):
        over.begin(waiting, "r2")
    with pytest.raises(InvariantError):
        over.ended(waiting, response_id="r2", state=None, outcome=Outcome.FAILED, now=1.0)


def test_a_turn_begins_once():
    over = session()
    ticket = started(over.receive(create(), 1.0))
    over.begin(ticket, "r1")
    with pytest.raises(InvariantError):
        over.begin(ticket, "r2")


@pytest.mark.parametrize(
    ("response_id", "outcome"),
    [
        (None, Outcome.COMPLETED),
        ("r2", Outcome.COMPLETED),
        ("r1", Outcome.FAILED),
        ("r1", Outcome.CANCELLED),
    ],
)
def test_a_state_belongs_to_a_committed_turn(response_id, outcome):
    over = session()
    ticket = started(over.receive(create(), 1.0))
    over.begin(ticket, "r1")
    with pytest.raises(InvariantError):
        over.ended(ticket, response_id=response_id, state="s", outcome=outcome, now=1.0)
    assert not ticket.ended


# The end of a connection (case 28)

LIMIT = "websocket_connection_limit_reached"
CLOSE = Close(1012, "service restart")


def test_an_active_turn_finishes_past_the_limit_and_new_creates_are_refused():
    over = session(lifetime=2.0)
    assert over.deadline == 2.0
    ticket = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a", user="queued"), 1.5) == []
    assert over.expire(1.9) == []
    assert over.expire(2.0) == []
    assert errors(over.receive(create("b"), 3.0)) == [("b", LIMIT)]
    assert over.receive(create("a"), 3.0) == []
    last = Event("response.completed", b"{}")
    actions = end(over, ticket, "r1", now=4.0, terminal=[last])
    assert actions[0] == Send(last)
    assert errors(actions[1:3]) == [("a", LIMIT), ("a", LIMIT)]
    assert actions[3:] == [CLOSE]
    assert over.closed
    assert over.receive(create(), 5.0) == over.expire(5.0) == over.disconnect() == []


def test_an_idle_client_is_told_and_closed():
    over = session(lifetime=3600.0)
    actions = over.expire(3600.0)
    body = json.loads(actions[0].event.body)
    assert body["error"]["message"] == (
        "Responses websocket connection limit reached (60 minutes). "
        "Create a new websocket connection to continue."
    )
    assert "stream_id" not in body
    assert actions[1:] == [CLOSE]


def test_a_late_timer_is_noticed_by_the_next_frame():
    over = session(lifetime=2.0)
    actions = over.receive(create("a"), 3.0)
    assert errors(actions[:1]) == [("a", LIMIT)]
    assert actions[1:] == [CLOSE]


def test_a_late_timer_is_noticed_by_the_end_of_a_turn():
    over = session(lifetime=2.0)
    ticket = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a"), 1.0) == []
    actions = end(over, ticket, "r1", now=2.5)
    assert errors(actions[:1]) == [("a", LIMIT)]
    assert actions[1:] == [CLOSE]


def test_what_waits_for_the_cap_is_refused_at_the_limit():
    over = session(lifetime=2.0, max_active=1)
    ticket = started(over.receive(create("a"), 1.0))
    assert over.receive(create("b"), 1.0) == []
    assert errors(over.expire(2.0)) == [("b", LIMIT)]
    assert end(over, ticket, "r1", now=2.1) == [CLOSE]  # told already


def test_no_lifetime_no_end():
    over = session(lifetime=None)
    assert over.deadline is None
    assert over.expire(1e12) == []
    started(over.receive(create(), 1e12))


def test_drain_refuses_and_closes_when_idle():
    over = session()
    ticket = started(over.receive(create("a"), 1.0))
    assert over.receive(create("a"), 1.0) == []
    assert over.drain(OverloadedError("draining")) == []
    assert over.drain(OverloadedError("again")) == []
    assert errors(over.receive(create("b"), 1.0)) == [("b", "server_is_overloaded")]
    actions = end(over, ticket, "r1")
    assert errors(actions[:1]) == [("a", "server_is_overloaded")]
    assert actions[1:] == [CLOSE]


def test_drain_closes_an_idle_socket_without_a_word():
    assert session().drain(EngineError("x")) == [CLOSE]


def test_drain_after_the_limit_changes_nothing():
    over = session(lifetime=2.0)
    started(over.receive(create("a"), 1.0))
    assert over.expire(2.0) == []
    assert over.drain(OverloadedError("draining")) == []
    assert errors(over.receive(create("b"), 3.0)) == [("b", LIMIT)]


def test_disconnect_cancels_what_runs_and_drops_the_rest():
    over = session()
    a = started(over.receive(create("a"), 1.0))
    b = started(over.receive(create("b"), 1.0))
    over.receive(create("a"), 1.0)
    over.receive('{"type":"response.cancel","stream_id":"b"}', 1.0)
    assert over.disconnect() == [Cancel(a)]  # b was told before
    assert over.disconnect() == []
    assert over.queued == 0
    last = Event("response.incomplete", b"{}")
    assert end(over, a, "ra", Outcome.CANCELLED, terminal=[last]) == []
    assert end(over, b, "rb", Outcome.CANCELLED) == []
    assert over.active == 0
