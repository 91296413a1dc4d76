"""A ticket guards what is said for it."""

from __future__ import annotations

import pytest

from turnwire.errors import InvariantError
from turnwire.protocol.actions import Ticket
from turnwire.protocol.frames import CreateRequest
from turnwire.protocol.lifecycle import TICKET, TicketPhase

SPEAKS = {TicketPhase.ACTIVE, TicketPhase.STOPPING}


@pytest.mark.parametrize("phase", TicketPhase)
def test_only_a_running_turn_may_say_something(phase):
    ticket: Ticket[str] = Ticket(CreateRequest(), "a", 10, 1)
    ticket.phase = phase
    if phase in SPEAKS:
        ticket.check()
    else:
        with pytest.raises(InvariantError, match=phase.value):
            ticket.check()
    assert ticket.ended == (phase is TicketPhase.ENDED)


def test_what_runs_is_what_can_end():
    assert {phase for phase, row in TICKET.items() if "end" in row} == SPEAKS
