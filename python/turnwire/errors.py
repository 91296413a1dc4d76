"""Every failure, and how it reads on the wire.

    TurnwireError
    ├── RequestError                    the client's mistake; nothing is lost, the socket stays
    │   ├── InvalidValueError           400 invalid_value
    │   ├── MissingParameterError       400 missing_required_parameter
    │   ├── UnsupportedParameterError   400 unsupported_parameter
    │   ├── UnpairedCallError           400 (no code): an output without its call, or the reverse
    │   ├── ContextLengthError          400 context_length_exceeded
    │   ├── PreviousResponseNotFoundError  400 previous_response_not_found
    │   ├── InvalidStreamIdError        400 invalid_stream_id
    │   ├── StreamLimitError            400 websocket_stream_limit_reached
    │   ├── ConnectionLimitError        400 websocket_connection_limit_reached  [connection]
    │   ├── AuthenticationError         401 invalid_api_key                     [connection]
    │   ├── OriginError                 403 origin_not_allowed                  [connection]
    │   ├── ModelNotFoundError          404 model_not_found
    │   ├── NotFoundError               404 not_found
    │   │   └── ResponseNotFoundError   404 (no code)
    │   ├── MethodNotAllowedError       405 method_not_allowed
    │   ├── TooLargeError               413 request_too_large
    │   ├── UpgradeRequiredError        426 websocket_disabled                  [connection]
    │   └── RateLimitError              429 rate_limit_exceeded
    ├── ServerError                     ours or the engine's; details are logged, never sent
    │   ├── EngineError                 500 server_error: the engine failed during a turn
    │   ├── InvariantError              500 server_error: a law was broken, our bug
    │   └── OverloadedError             503 server_is_overloaded
    │       └── StoreUnavailableError   503 server_is_overloaded: the database is down
    └── StartupError                    the process cannot start                [process]
        ├── ConfigError                 a setting is wrong
        └── ProfileError                a model's files cannot be used

The native core raises these very classes (rust/py/src/error.rs names them). ``type``, ``code``
and ``status`` follow OpenAI's error object; see docs/protocol.md for the catalogue, and
docs/design.md for how far each reaches.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Reach = Literal["frame", "turn", "connection", "process"]
"""How far a failure reaches: what it ends besides itself."""


class TurnwireError(Exception):
    """The root. ``message`` is for the client (or, for a StartupError, the operator).

    ``param`` is the request parameter at fault as a path (``input[3].call_id``), or None.
    """

    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    status: ClassVar[int] = 500
    reach: ClassVar[Reach] = "turn"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def public_message(self) -> str:
        """What the client may read: the message, unless the fault is the server's own."""
        return self.message


class RequestError(TurnwireError):
    """The client's mistake."""

    type = "invalid_request_error"
    status = 400


class InvalidValueError(RequestError):
    """A parameter has a value or a type that the API does not allow."""

    code = "invalid_value"


class MissingParameterError(RequestError):
    """A required parameter is absent."""

    code = "missing_required_parameter"


class UnsupportedParameterError(RequestError):
    """The API allows the parameter; this server does not serve it."""

    code = "unsupported_parameter"


class UnpairedCallError(RequestError):
    """A tool output without its call, or a call without its output (OpenAI sends no code)."""


class ContextLengthError(RequestError):
    """The prompt leaves no room in the model's context."""

    code = "context_length_exceeded"


class PreviousResponseNotFoundError(RequestError):
    """``previous_response_id`` names nothing that this connection or principal may continue."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id}' not found.",
            param="previous_response_id",
        )


class InvalidStreamIdError(RequestError):
    """``stream_id`` is malformed. The reply carries no ``stream_id``."""

    code = "invalid_stream_id"

    def __init__(self) -> None:
        super().__init__(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and "
            "may only contain letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
        )


class StreamLimitError(RequestError):
    """One more distinct ``stream_id`` than a connection may name."""

    code = "websocket_stream_limit_reached"

    def __init__(self, limit: int) -> None:
        super().__init__(
            "This WebSocket connection has reached its maximum number of distinct stream IDs "
            f"({limit}). Reuse an existing stream_id or open a new WebSocket connection.",
            param="stream_id",
        )


class ConnectionLimitError(RequestError):
    """The connection has lived as long as it may."""

    code = "websocket_connection_limit_reached"
    reach = "connection"

    def __init__(self, minutes: int) -> None:
        super().__init__(
            f"Responses websocket connection limit reached ({minutes} minutes). "
            "Create a new websocket connection to continue.",
        )


class AuthenticationError(RequestError):
    """No key, or one that is not known."""

    code = "invalid_api_key"
    status = 401
    reach = "connection"


class OriginError(RequestError):
    """A browser's page that is not on the allow-list (cross-site WebSocket hijacking)."""

    code = "origin_not_allowed"
    status = 403
    reach = "connection"


class ModelNotFoundError(RequestError):
    """No such model is served here."""

    code = "model_not_found"
    status = 404


class NotFoundError(RequestError):
    """No such path or object."""

    code: ClassVar[str | None] = "not_found"
    status = 404


class ResponseNotFoundError(NotFoundError):
    """No stored response of that id, or somebody else's (OpenAI sends no code)."""

    code = None

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id[:256]}' not found.")


class MethodNotAllowedError(RequestError):
    """The path exists; the method is not for it."""

    code = "method_not_allowed"
    status = 405


class TooLargeError(RequestError):
    """A frame or body over the limit."""

    code = "request_too_large"
    status = 413


class UpgradeRequiredError(RequestError):
    """WebSocket is off: upon HTTP 426 Codex goes on over plain HTTP at once."""

    code = "websocket_disabled"
    status = 426
    reach = "connection"


class RateLimitError(RequestError):
    """Too much at once. ``retry_after`` is in seconds."""

    type = "rate_limit_exceeded"
    code = "rate_limit_exceeded"
    status = 429

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class ServerError(TurnwireError):
    """Not the client's fault. ``message`` is logged; the client reads ``public_message``."""

    code = "server_error"

    @property
    def public_message(self) -> str:
        """No details: they are logged."""
        return "The server had an error while processing your request."


class EngineError(ServerError):
    """The engine failed, or died, during a turn."""

    @property
    def public_message(self) -> str:
        """No details; that a retry may help."""
        return "The inference engine failed while processing your request. You can retry it."


class InvariantError(ServerError):
    """A law of the core was broken, or the core panicked: our bug."""


class OverloadedError(ServerError):
    """No capacity now, for instance while draining or while the engine restarts."""

    code = "server_is_overloaded"
    status = 503

    @property
    def public_message(self) -> str:
        """The message: there is nothing to hide in being busy."""
        return self.message


class StoreUnavailableError(OverloadedError):
    """The database of stored responses cannot be reached. ``store`` is its kind."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"The store of responses ({store}) is not available at the moment. Please retry later."
        )


class StartupError(TurnwireError):
    """The process cannot start; the message is for its operator."""

    reach = "process"


class ConfigError(StartupError):
    """A setting is wrong. ``param`` names it."""


class ProfileError(StartupError):
    """A tokenizer, a template or a model file cannot be used."""
