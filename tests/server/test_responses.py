"""Stored responses over HTTP: shown, listed, deleted, and nobody else's; prompts counted ahead."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from running import MODEL, RunningServer, connect

KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789abc"}
TOOL = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def client(server: RunningServer, who: str = "alice"):
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        yield session


@pytest.fixture
def server(serve) -> RunningServer:
    return serve({"default": {"answer": {"text": "Hello."}}}, auth={"keys": KEYS})


@pytest.fixture
def sdk(server: RunningServer):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=KEYS["alice"], max_retries=0, timeout=20
    ) as made:
        yield made


async def ask(session: aiohttp.ClientSession, given: Any = "hello", **fields: Any) -> Any:
    body = {"model": MODEL, "input": given, **fields}
    async with session.post("/v1/responses", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def get(session: aiohttp.ClientSession, path: str, method: str = "GET") -> tuple[int, Any]:
    async with session.request(method, path) as answer:
        return answer.status, await answer.json()


def test_openai_python_retrieves_lists_and_deletes(sdk):
    first = sdk.responses.create(model=MODEL, input="Hi", metadata={"a": "b"})
    assert sdk.responses.retrieve(first.id) == first
    given = [
        {"role": "developer", "content": "Be terse."},
        {"role": "user", "content": [{"type": "input_text", "text": "2"}]},
    ]
    for number in range(3):
        given.append({"role": "user", "content": f"more {number}"})
    second = sdk.responses.create(model=MODEL, input=given, previous_response_id=first.id)
    page = sdk.responses.input_items.list(second.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["more 2", "more 1"]
    assert page.has_more
    everything = list(sdk.responses.input_items.list(second.id, limit=2, order="asc"))
    texts = [item.content[0].text for item in everything]
    assert texts == ["Be terse.", "2", "more 0", "more 1", "more 2"]
    assert {item.type for item in everything} == {"message"}
    assert len({item.id for item in everything}) == 5
    again = list(sdk.responses.input_items.list(second.id, order="asc"))
    assert [item.id for item in again] == [item.id for item in everything]
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        sdk.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    # A child goes on.
    sdk.responses.create(model=MODEL, input="x", previous_response_id=second.id)


def test_openai_python_counts_what_a_create_then_costs(sdk, server):
    first = sdk.responses.create(model=MODEL, input="Hi", instructions="Be terse.")
    counted = sdk.responses.input_tokens.count(
        model=MODEL, input="Hi", instructions="Be terse.", tools=[TOOL]
    )
    made = sdk.responses.create(model=MODEL, input="Hi", instructions="Be terse.", tools=[TOOL])
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens
    counted = sdk.responses.input_tokens.count(input="And?", previous_response_id=first.id)
    made = sdk.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    assert counted.input_tokens == made.usage.input_tokens
    assert len(server.engine.prompts) == 3, "counting samples nothing"


async def test_a_prompt_that_is_too_long_is_counted_too(serve):
    server = serve({"context_length": 1000}, auth={"keys": KEYS})
    async with client(server) as session:
        body = {"input": "word " * 2000}
        async with session.post("/v1/responses/input_tokens", json=body) as answer:
            counted = await answer.json()
        assert counted["input_tokens"] > 2000
        async with session.post("/v1/responses", json={**body, "model": MODEL}) as answer:
            assert (await answer.json())["error"]["code"] == "context_length_exceeded"
        for wrong, param in (({"input": 7}, "input"), ({"input": "x", "model": "y"}, "model")):
            async with session.post("/v1/responses/input_tokens", json=wrong) as answer:
                assert answer.status in (400, 404)
                assert (await answer.json())["error"]["param"] == param


async def test_what_is_deleted_has_openais_shape(server):
    async with client(server) as session:
        made = await ask(session)
        path = f"/v1/responses/{made['id']}"
        assert await get(session, path, "DELETE") == (
            200,
            {"id": made["id"], "object": "response", "deleted": True},
        )
        expected = {
            "error": {
                "message": f"Response with id '{made['id']}' not found.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        }
        for method, below in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            assert await get(session, path + below, method) == (404, expected)


async def test_somebody_elses_id_reads_like_one_that_never_was(server):
    async with client(server) as alice, client(server, "bob") as bob:
        made = await ask(alice, "ALICE-CANARY")
        for method, below in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            theirs = await get(bob, f"/v1/responses/{made['id']}{below}", method)
            never = await get(bob, f"/v1/responses/resp_never{below}", method)
            shown = never[1]["error"]["message"].replace("resp_never", made["id"])
            assert theirs == (404, {"error": {**never[1]["error"], "message": shown}})
        body = {"model": MODEL, "input": "x", "previous_response_id": made["id"]}
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            async with bob.post(path, json=body) as answer:
                assert (await answer.json())["error"]["code"] == "previous_response_not_found"
        assert (await get(alice, f"/v1/responses/{made['id']}"))[0] == 200


async def test_without_a_key_nothing_is_told(server):
    async with client(server) as alice:
        made = await ask(alice)
    async with aiohttp.ClientSession(server.url) as nobody:
        for method, path in (
            ("GET", made["id"]),
            ("DELETE", made["id"]),
            ("GET", made["id"] + "/input_items"),
            ("POST", "input_tokens"),
        ):
            assert (await get(nobody, f"/v1/responses/{path}", method))[0] == 401


async def test_what_was_not_to_be_stored_is_not_there(server):
    async with client(server) as session:
        made = await ask(session, store=False)
        assert (await get(session, f"/v1/responses/{made['id']}"))[0] == 404


async def test_a_response_made_over_websocket_is_there(server):
    headers = {"authorization": f"Bearer {KEYS['alice']}"}
    async with connect(server, additional_headers=headers) as socket:
        made = await socket.response("over websocket")
    async with client(server) as session:
        status, shown = await get(session, f"/v1/responses/{made['id']}")
        assert status == 200
        assert shown == made
        _, items = await get(session, f"/responses/{made['id']}/input_items")
    assert items["data"][0]["content"] == [{"type": "input_text", "text": "over websocket"}]
    assert items["data"][0]["role"] == "user"
    assert (items["first_id"], items["has_more"]) == (items["data"][0]["id"], False)


async def test_items_of_every_kind_are_listed_as_they_were_sent(server):
    call = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "a b"}
    thought = {"type": "reasoning", "id": "rs_mine", "summary": []}
    said = {"role": "assistant", "content": "ok"}
    async with client(server) as session:
        made = await ask(session, [{"role": "user", "content": "x"}, thought, call, output, said])
        path = f"/v1/responses/{made['id']}/input_items?order=asc"
        _, listed = await get(session, path)
        empty = await ask(session, [], previous_response_id=made["id"])
        nothing = await get(session, f"/v1/responses/{empty['id']}/input_items")
    _, reasoning, called, returned, assistant = listed["data"]
    assert reasoning == thought
    assert called == {"id": called["id"], **call}
    assert called["id"].startswith("fc_")
    assert returned == {"id": returned["id"], **output}
    assert assistant["content"][0] == {
        "type": "output_text",
        "text": "ok",
        "annotations": [],
        "logprobs": [],
    }
    assert nothing == (
        200,
        {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False},
    )


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=a", "limit"),
        ("limit=", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("order=up", "order"),
        ("after=msg_never", "after"),
        ("include[]=secrets", "include[0]"),
    ],
)
async def test_a_wrong_page_is_refused_by_name(server, query, param):
    async with client(server) as session:
        made = await ask(session)
        status, answer = await get(session, f"/v1/responses/{made['id']}/input_items?{query}")
    assert (status, answer["error"]["param"]) == (400, param)
    assert answer["error"]["type"] == "invalid_request_error"


async def test_the_edges_of_a_page(server):
    async with client(server) as session:
        made = await ask(session, [{"role": "user", "content": str(n)} for n in range(100)])
        path = f"/v1/responses/{made['id']}/input_items"
        _, page = await get(session, path)
        assert (len(page["data"]), page["has_more"]) == (20, True)
        _, page = await get(
            session, path + "?limit=100&order=asc&include[]=reasoning.encrypted_content"
        )
        assert (len(page["data"]), page["has_more"]) == (100, False)
        last = page["last_id"]
        _, page = await get(session, f"{path}?limit=1&order=asc&after={last}")
        assert (page["data"], page["has_more"], page["last_id"]) == ([], False, None)


async def test_only_background_responses_are_streamed_again(server):
    async with client(server) as session:
        made = await ask(session)
        path = f"/v1/responses/{made['id']}"
        status, answer = await get(session, path + "?stream=true")
        assert (status, answer["error"]["param"]) == (400, "stream")
        assert (await get(session, path + "?stream=false"))[0] == 200


async def test_other_methods_and_paths_are_refused(server):
    async with client(server) as session:
        made = await ask(session)
        path = f"/v1/responses/{made['id']}"
        for method, below, status in (
            ("PUT", "", 405),
            ("POST", "", 405),
            ("DELETE", "/input_items", 405),
            ("GET", "/nothing", 404),
            ("GET", "/input_items/x", 404),
        ):
            assert (await get(session, path + below, method))[0] == status
