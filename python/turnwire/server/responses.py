"""What HTTP asks about responses: to show, delete and list stored ones, and to count a prompt."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from starlette.responses import Response

from turnwire.errors import InvalidValueError, ResponseNotFoundError
from turnwire.protocol.frames import decode_create
from turnwire.protocol.listing import input_items, listed, page_of
from turnwire.protocol.validate import check_includes, validate
from turnwire.server.http import JsonExchange, json_response, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Send

    from turnwire.config import Config
    from turnwire.server.app import Service
    from turnwire.store.base import StoredResponse

Endpoint: TypeAlias = "Callable[[Request, Send], Awaitable[Response | None]]"
"""Answers by returning a Response, or writes one itself and returns None."""

_INPUT_ITEMS = "input_items"


class ResponseEndpoints:
    """The paths below ``/v1/responses/``."""

    def __init__(self, started: Callable[[], Awaitable[Service]], config: Config) -> None:
        self._started = started
        self._body_bytes = config.limits.body_bytes
        self._one: Mapping[str, Endpoint] = {"GET": self._show, "DELETE": self._delete}
        self._items: Mapping[str, Endpoint] = {"GET": self._list_input}
        self._count: Mapping[str, Endpoint] = {"POST": self._count_input}

    def methods(self, below: str) -> Mapping[str, Endpoint] | None:
        """Return what the path ``below`` ``/v1/responses/`` serves, by method; None for nothing."""
        match below.split("/"):
            case ["input_tokens"]:
                return self._count
            case [_]:
                return self._one
            case [_, "input_items"]:
                return self._items
        return None

    async def _show(self, request: Request, send: Send) -> Response:
        del send
        if request.query_params.get("stream", "false") not in ("false", "False", "0"):
            raise InvalidValueError(
                "This response cannot be streamed because it was not created with background=true.",
                param="stream",
            )
        check_includes(_includes(request))
        response = await self._response(request)
        return Response(response.body, media_type="application/json")

    async def _list_input(self, request: Request, send: Send) -> Response:
        del send
        page = page_of(request.query_params, _includes(request))
        response = await self._response(request)

        def new_id(prefix: str, index: int) -> str:
            told = f"{response.response_id} {index}".encode()
            return f"{prefix}_{hashlib.blake2b(told, digest_size=24).hexdigest()}"

        body = listed(input_items(response.input, new_id), page)
        return Response(body, media_type="application/json")

    async def _delete(self, request: Request, send: Send) -> Response:
        del send
        service = await self._started()
        principal = service.admission.identify(request.scope)
        response_id = _response_id(request)
        if not await service.recall.delete(response_id, principal.name):
            raise ResponseNotFoundError(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def _count_input(self, request: Request, send: Send) -> Response:
        del send
        service = await self._started()
        admission = service.admission
        principal = admission.identify(request.scope)
        wanted = decode_create(await read_body(request, self._body_bytes))
        if wanted.model is None:
            wanted = msgspec.structs.replace(wanted, model=admission.model)
        validate(wanted, "http")
        with admission.turn(principal):
            admission.check_model(wanted.model)
            tokens = await service.turns.count_input(JsonExchange(wanted, principal))
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    async def _response(self, request: Request) -> StoredResponse:
        service = await self._started()
        principal = service.admission.identify(request.scope)
        response_id = _response_id(request)
        response = await service.recall.store.get(response_id, principal.name)
        if response is None:
            raise ResponseNotFoundError(response_id)
        return response


def _response_id(request: Request) -> str:
    parts: list[str] = request.scope["path"].rstrip("/").split("/")
    return parts[-2] if parts[-1] == _INPUT_ITEMS else parts[-1]


def _includes(request: Request) -> list[str]:
    query = request.query_params
    return [*query.getlist("include"), *query.getlist("include[]")]
