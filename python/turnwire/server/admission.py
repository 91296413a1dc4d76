"""May it, and which model: the checks before a connection or a turn costs anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from turnwire.errors import MissingParameterError, ModelNotFoundError, OverloadedError
from turnwire.policy.auth import KeyRing, OriginPolicy, Principal
from turnwire.policy.limits import Gauge

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from starlette.types import Scope

    from turnwire.config import Config

DRAINING = "The server is shutting down. Please retry on a new connection."

ANY_MODEL = "*"


class Admission:
    """One server's gate. ``draining`` closes it for everything new."""

    def __init__(self, config: Config, *, model: str) -> None:
        self.model = model
        """The name under which the model is listed."""
        self.draining = False
        self._names = {model, *config.model.aliases}
        self._origins = OriginPolicy(config.server.origins)
        self._keys = KeyRing(
            {name: key.get_secret_value() for name, key in config.auth.keys.items()},
            everywhere=config.auth.anonymous == "everywhere",
        )
        limits = config.limits
        self._connections = Gauge(
            "connections",
            total=limits.connections,
            per_principal=limits.connections_per_principal,
        )
        self._turns = Gauge(
            "concurrent responses", total=limits.turns, per_principal=limits.turns_per_principal
        )

    def identify(self, scope: Scope) -> Principal:
        """Return who calls. Raises OriginError, AuthenticationError.

        The origin is checked on every request, not only on upgrades: a page may also POST to
        localhost without asking (a "simple" cross-site request).
        """
        headers = Headers(scope=scope)
        self._origins.check(headers.get("origin"))
        listener, _ = scope.get("server") or (None, None)
        return self._keys.identify(headers.get("authorization"), listener=listener)

    def connection(self, principal: Principal) -> AbstractContextManager[None]:
        """Count a connection for the length of a ``with`` block. Raises RateLimitError."""
        self.check_open()
        return self._connections.hold(principal)

    def turn(self, principal: Principal) -> AbstractContextManager[None]:
        """Count a turn for the length of a ``with`` block. Raises RateLimitError."""
        self.check_open()
        return self._turns.hold(principal)

    def check_open(self) -> None:
        """Raise OverloadedError while draining."""
        if self.draining:
            raise OverloadedError(DRAINING)

    def check_model(self, name: str | None) -> str:
        """Return the model to name in the response. Raises when it is absent or not served.

        A model is not inherited from ``previous_response_id``.
        """
        if not name:
            raise MissingParameterError("Missing required parameter: 'model'.", param="model")
        if name not in self._names and ANY_MODEL not in self._names:
            raise ModelNotFoundError(
                f"The model '{name}' does not exist. This server serves '{self.model}'.",
                param="model",
            )
        return name

    def known_model(self, name: str) -> bool:
        """Whether ``GET /v1/models/{name}`` finds it."""
        return name in self._names
