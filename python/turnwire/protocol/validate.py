"""What a create may ask for, as far as it does not depend on history.

Every option of the API is honoured, or refused with an error that names it; what is only echoed is
listed in docs/compatibility.md.
"""

from __future__ import annotations

from typing import Literal

from turnwire.protocol.frames import CreateRequest


def validate(request: CreateRequest, transport: Literal["websocket", "http"]) -> None:
    """Refuse what cannot be served. Raises InvalidValueError, MissingParameterError,
    UnsupportedParameterError, and InvalidStreamIdError over WebSocket.
    """
    raise NotImplementedError
