"""What a transport gives a turn: the request, and the way back to its client."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwire._core import Node
    from turnwire.errors import TurnwireError
    from turnwire.policy.auth import Principal
    from turnwire.protocol.events import Event
    from turnwire.protocol.frames import CreateRequest
    from turnwire.protocol.session import Outcome
    from turnwire.server.interruption import Interruption


class ClientGoneError(Exception):
    """The client has disconnected, or does not read: there is nobody left to answer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended that had begun."""

    response_id: str
    outcome: Outcome
    terminal: Sequence[Event]
    """The last events; the very last is the terminal one."""
    response: bytes
    """The final Response object as JSON."""
    state: Node | None = None
    """What a continuation starts from; None when nothing was committed."""
    error: TurnwireError | None = None
    """Why, when the outcome is FAILED."""


class Exchange(Protocol):
    """One request on its way through a turn. The transports implement it.

    A turn calls ``begin`` once, first. Then either ``refuse`` once, or ``send`` any number of times
    and ``end`` once. ``send``, ``refuse`` and ``end`` raise ClientGoneError.
    """

    request: CreateRequest
    principal: Principal
    stream_id: str | None
    connection: str | None
    """The WebSocket connection's id; None over HTTP."""
    affinity: str
    """Same value, same prefix cache where the engine has several."""
    interruption: Interruption

    def begin(self, response_id: str) -> Node | None:
        """Return the parent, if the connection holds it; None sends the turn to the store."""
        ...

    async def send(self, events: Sequence[Event]) -> None:
        """Write events that are not the last ones, in order."""
        ...

    async def refuse(self, error: TurnwireError) -> None:
        """End the turn before ``response.created``: no response exists."""
        ...

    async def end(self, ending: Ending) -> None:
        """End the turn: publish the state, then write the last events; clients go on at once."""
        ...


def new_id(prefix: str) -> str:
    """Return an id that cannot be guessed: 192 random bits behind ``prefix``."""
    return f"{prefix}_{secrets.token_hex(24)}"
