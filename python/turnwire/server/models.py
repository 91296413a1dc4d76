"""``GET /v1/models``: the one model that is served, under each of its names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turnwire.errors import ModelNotFoundError
from turnwire.server.access import route_path
from turnwire.server.http import json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Send

    from turnwire.server.app import Service


class ModelEndpoints:
    """The paths ``/v1/models`` and below."""

    def __init__(self, started: Callable[[], Awaitable[Service]]) -> None:
        self._started = started
        self._created = int(time.time())

    async def list_all(self, request: Request, send: Send) -> Response:
        """Answer with the model."""
        del send
        service = await self._started()
        service.admission.identify(request.scope)
        return json_response({"object": "list", "data": [self._describe(service.admission.model)]})

    async def show(self, request: Request, send: Send) -> Response:
        """Answer for one name. Raises ModelNotFoundError."""
        del send
        service = await self._started()
        service.admission.identify(request.scope)
        name = route_path(request.scope).removeprefix("/v1/models/")
        if not service.admission.known_model(name):
            raise ModelNotFoundError(f"The model '{name}' does not exist.", param="model")
        return json_response(self._describe(name))

    def _describe(self, model: str) -> dict[str, object]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "turnwire"}
