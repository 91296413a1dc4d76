"""Who may connect, and how a refusal reads. Case numbers are of docs/faults.md."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from running import RunningServer, connect, wait_for

KEY = "sk-test-0123456789abcdef"
OTHER = "sk-other-0123456789abcd"
KEYS = {"keys": {"alice": KEY, "bob": OTHER}}


def bearer(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


async def refusal(server: RunningServer, path: str = "/v1/responses", **options: Any):
    """The status, error object and headers of a refused upgrade."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws://127.0.0.1:{server.port}{path}", **options):
            pass
    response = refused.value.response
    error = json.loads(response.body)["error"]
    assert set(error) == {"type", "code", "message", "param"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    return response.status_code, error, response.headers


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses",
        "/responses",
        "/v1/codex/responses",
        "/v1/responses?model=x",
        "/v1/responses/",
    ],
)
async def test_every_path_that_clients_derive_is_served(serve, path):
    server: RunningServer = serve()
    async with connect(f"ws://127.0.0.1:{server.port}{path}") as socket:
        assert (await socket.response("hello"))["status"] == "completed"


async def test_behind_a_proxy_that_strips_a_prefix(serve):
    server: RunningServer = serve(server={"root_path": "/llm"})
    async with connect(server) as socket:
        assert (await socket.response("hello"))["status"] == "completed"


async def test_a_client_that_sends_no_whole_request_is_dropped(serve):
    server: RunningServer = serve(server={"request_seconds": 0.2})
    for sent in (b"", b"GET /v1/resp", b"GET /v1/responses HTTP/1.1\r\nHost: x\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(3):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
    async with connect(server) as socket:
        await asyncio.sleep(0.4)
        assert (await socket.response("an upgrade has no such end"))["status"] == "completed"


async def test_another_path_is_404(serve):
    status, error, _ = await refusal(serve(), "/v1/nothing")
    assert (status, error["code"]) == (404, "not_found")


async def test_case_30_websocket_off_is_426_and_close(serve):
    status, error, _ = await refusal(serve(websocket={"enabled": False}))
    assert (status, error["code"]) == (426, "websocket_disabled")


async def test_an_offered_subprotocol_is_echoed(serve):
    async with connect(serve(), subprotocols=["a", "b"]) as socket:
        assert socket.connection.subprotocol == "a"


async def test_compression_is_not_offered_by_default(serve):
    async with connect(serve()) as socket:
        assert not socket.connection.protocol.extensions
    async with connect(serve(websocket={"compression": True})) as socket:
        assert socket.connection.protocol.extensions
        assert (await socket.response("hello"))["status"] == "completed"


@pytest.mark.parametrize(
    ("allowed", "origin", "passes"),
    [
        ((), None, True),
        ((), "https://evil.example", False),
        ((), "null", False),
        ((), "http://127.0.0.1:8787", False),
        (("https://app.example",), "https://app.example", True),
        (("https://app.example",), "HTTPS://APP.example", True),
        (("https://app.example/",), "https://app.example", True),
        (("https://app.example",), "https://app.example:444", False),
        (("https://app.example",), "http://app.example", False),
        (("https://app.example",), "https://evil.app.example", False),
        (("https://app.example",), "https://app.example.evil", False),
        (("https://app.example",), "null", False),
        (("*",), "https://any.example", True),
        (("*",), "null", True),
    ],
)
async def test_case_40_origins(serve, allowed, origin, passes):
    server = serve(server={"origins": allowed})
    if passes:
        async with connect(server, origin=origin) as socket:
            assert (await socket.response("hello"))["status"] == "completed"
    else:
        status, error, _ = await refusal(server, origin=origin)
        assert (status, error["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", KEY]
)
async def test_a_wrong_key_is_401(serve, header):
    headers = {} if header is None else {"Authorization": header}
    status, error, sent = await refusal(serve(auth=KEYS), additional_headers=headers)
    assert (status, error["code"]) == (401, "invalid_api_key")
    assert KEY not in str(sent)


async def test_a_right_key_connects(serve):
    server = serve(auth=KEYS)
    for key in (KEY, OTHER):
        async with connect(server, **bearer(key)) as socket:
            assert (await socket.response("hello"))["status"] == "completed"


async def test_stored_responses_belong_to_one_key(serve):
    server = serve(auth=KEYS)
    async with connect(server, **bearer(KEY)) as alice:
        response = await alice.response("mine")
    async with connect(server, **bearer(OTHER)) as bob:
        error = await bob.error("yours", previous_response_id=response["id"])
        assert error["error"]["code"] == "previous_response_not_found"
        never = await bob.error("yours", previous_response_id="resp_never")
        assert never["error"]["code"] == error["error"]["code"]
    async with connect(server, **bearer(KEY)) as alice:
        again = await alice.response("mine", previous_response_id=response["id"])
        assert again["status"] == "completed"


async def test_too_many_connections_are_429(serve):
    server: RunningServer = serve(limits={"connections": 2})
    async with connect(server), connect(server):
        status, error, headers = await refusal(server)
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        assert float(headers["retry-after"]) > 0
    await wait_for(lambda: not server.app.connections)
    async with connect(server) as socket:
        assert (await socket.response("hello"))["status"] == "completed"


async def test_connections_of_one_key_are_limited(serve):
    server = serve(auth=KEYS, limits={"connections_per_principal": 1})
    async with connect(server, **bearer(KEY)):
        status, _, _ = await refusal(server, **bearer(KEY))
        assert status == 429
        async with connect(server, **bearer(OTHER)) as bob:
            assert (await bob.response("hello"))["status"] == "completed"
