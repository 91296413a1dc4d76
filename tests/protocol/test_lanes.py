"""Lanes by themselves; what a session makes of them is in test_session.py."""

from __future__ import annotations

import pytest

from turnwire.errors import EngineError, InvariantError
from turnwire.protocol.actions import Ticket
from turnwire.protocol.frames import CreateRequest
from turnwire.protocol.lanes import Lanes, Refusal


def lanes(**limits) -> Lanes[str]:
    return Lanes(**({"max_active": 2, "max_queued": 2, "max_queued_bytes": 100} | limits))


def request(name: str | None = None, parent: str | None = None) -> CreateRequest:
    return CreateRequest(stream_id=name, previous_response_id=parent)


def start_one(over: Lanes[str], name: str | None = None, parent: str | None = None) -> Ticket[str]:
    assert over.accept(request(name, parent), 10)
    (start,) = over.start_next()
    return start.ticket


def test_the_default_lane_is_there_and_is_no_name():
    over = lanes()
    assert over.get(None) is not None
    assert over.named == 0
    assert over.get("a") is None
    start_one(over, "a")
    assert over.named == 1


def test_running_finds_by_response_id_only_what_runs():
    over = lanes()
    ticket = start_one(over, "a")
    assert over.running("r1") is None
    ticket.response_id = "r1"
    assert over.running("r1") is over.get("a")
    over.end(ticket)
    assert over.running("r1") is None
    assert over.running(None) is None


def test_a_started_ticket_holds_its_parent_until_it_ends():
    over = lanes()
    over.get(None).latest = ("r0", "state")
    ticket = start_one(over, "a", parent="r0")
    over.get(None).evict("r0")
    assert over.find("r0") is None
    assert ticket.parent == "state"
    over.end(ticket)
    assert ticket.parent is None


def test_no_parent_is_no_id():
    over = lanes()
    over.get(None).latest = ("r0", "state")
    assert over.find(None) is None


def test_answers_come_before_starts_and_in_order():
    over = lanes()
    running = start_one(over, "a")
    lane = over.get("a")
    first, second = EngineError("1"), EngineError("2")
    assert over.put_behind(lane, Refusal(first, None))
    assert over.put_behind(lane, Refusal(second, None))
    assert over.next_answer(None) is None
    over.end(running)
    assert over.next_answer(None) == (lane, first)
    assert over.next_answer(None) == (lane, second)
    assert over.next_answer(None) is None
    assert lane.free


def test_the_queue_is_counted_whatever_leaves_it():
    over = lanes(max_active=1)
    running = start_one(over)
    assert over.accept(request(), 60)
    assert over.accept(request("a"), 40)
    assert not over.accept(request("b"), 0), "two wait already"
    assert over.named == 1
    over.end(running)
    closing = EngineError("closing")
    assert over.next_answer(closing)[1] is closing
    assert over.next_answer(closing)[1] is closing
    assert over.queued == 0
    running = start_one(over, "c")
    assert over.accept(request("c"), 100), "and the bytes are free again"
    assert not over.accept(request("c"), 1)
    over.forget()
    assert over.queued == 0
    assert over.get("c").ticket is running


def test_only_a_running_ticket_ends():
    over = lanes()
    with pytest.raises(InvariantError):
        over.end(Ticket(request(), None, 0, 1))
