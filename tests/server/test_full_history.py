"""Clients that send their whole conversation every time, and pay for what is new in it.

Over HTTP without ``previous_response_id``, and over a new WebSocket after the old one is lost.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import aiohttp

from running import MODEL, RunningServer, answer_to, calls_of, connect, text_of

LS = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}
LOOP = {
    "rules": [
        {
            "when": {"contains": f"step {step}"},
            # With a space that clients which parse arguments do not send back.
            "answer": {"reasoning": "So.", "calls": [{"name": "ls", "arguments": '{"a":  1}'}]},
        }
        for step in (1, 2)
    ],
    "default": {"answer": {"reasoning": "Enough.", "text": "Done."}},
}
DEBUG = {"log": {"debug": True}}
TWO_KEYS = {"auth": {"keys": {"ann": "sk-ann-0123456789abcdef", "bob": "sk-bob-0123456789abcdef"}}}


def respelled(item: dict[str, Any]) -> dict[str, Any]:
    """An output item as a client sends it back that parses arguments and keeps no ids."""
    kept = {key: value for key, value in item.items() if key not in {"id", "status"}}
    if item["type"] == "function_call":
        kept["arguments"] = json.dumps(json.loads(item["arguments"]), separators=(",", ":"))
    return kept


async def tool_loop(post: Any, echo: Any = lambda item: item) -> list[dict[str, Any]]:
    """Three turns, each with everything so far as its input."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "step 1"}]
    responses = []
    for step in (2, 3, 4):
        response = await post({"model": MODEL, "input": items, "tools": [LS], "store": False})
        responses.append(response)
        items = [*items, *map(echo, response["output"])]
        items += [answer_to(call, f"step {step}") for call in calls_of(response)]
    return responses


def assert_only_the_new_tail_was_rendered(server: RunningServer) -> None:
    """The engine saw, each turn, the tokens of the turn before, ids as sampled."""
    seen = server.engine.recordings
    assert len(seen) == 3
    for earlier, later in pairwise(seen):
        known = earlier.prompt + earlier.output
        assert later.prompt[: len(known)] == known


async def records(server: RunningServer, **headers: str) -> list[dict[str, Any]]:
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.get("/debug/turns") as answer,
    ):
        found: list[dict[str, Any]] = (await answer.json())["data"]
        return found


async def test_http_with_full_history(serve):
    for echo in (lambda item: item, respelled):
        server: RunningServer = serve(LOOP, **DEBUG)
        async with aiohttp.ClientSession(server.url) as session:

            async def post(body: dict[str, Any], session: Any = session) -> dict[str, Any]:
                async with session.post("/v1/responses", json=body) as answer:
                    assert answer.status == 200
                    response: dict[str, Any] = await answer.json()
                    return response

            responses = await tool_loop(post, echo)
        assert text_of(responses[-1]) == "Done."
        assert_only_the_new_tail_was_rendered(server)
        first, *later = await records(server)
        assert first["kind"] == "cold"
        for record in later:
            assert record["kind"] == "extend"
            assert record["rendered_tokens"] == record["prompt_tokens"] - record["reused_tokens"]


async def test_http_without_the_reasoning(serve):
    server: RunningServer = serve(LOOP)
    async with aiohttp.ClientSession(server.url) as session:

        async def post(body: dict[str, Any]) -> dict[str, Any]:
            body["input"] = [item for item in body["input"] if item.get("type") != "reasoning"]
            async with session.post("/v1/responses", json=body) as answer:
                response: dict[str, Any] = await answer.json()
                return response

        await tool_loop(post)
    assert_only_the_new_tail_was_rendered(server)


async def test_a_new_socket_with_the_full_input(serve):
    server: RunningServer = serve(LOOP)

    async def post(body: dict[str, Any]) -> dict[str, Any]:
        async with connect(server) as socket:
            return await socket.response(**body)

    await tool_loop(post)
    assert_only_the_new_tail_was_rendered(server)


async def test_an_edited_history_is_rendered_from_the_edit_on(serve):
    server: RunningServer = serve(**DEBUG)
    async with connect(server) as socket:
        first = await socket.response([{"role": "user", "content": "one"}])
        answered = [{"role": "user", "content": "one"}, *first["output"]]
        await socket.response([*answered, {"role": "user", "content": "two"}])
        await socket.response([*answered, {"role": "user", "content": "another"}])
    *_, last = await records(server)
    prompts = [recording.prompt for recording in server.engine.recordings]
    known = prompts[0] + server.engine.recordings[0].output
    assert prompts[2][: len(known)] == known
    assert last["reused_tokens"] == len(known)
    assert "two" not in server.decode(prompts[2])


async def kinds_of(server: RunningServer, ask: Any, **headers: str) -> list[str]:
    """How the core opened a conversation, the same one sent again by whoever is second, and by
    whoever was first."""
    first = await ask(0, [{"role": "user", "content": "secret"}])
    again = [{"role": "user", "content": "secret"}, *first["output"]]
    for who, question in ((1, "and?"), (0, "so?")):
        await ask(who, [*again, {"role": "user", "content": question}])
    return [record["kind"] for record in await records(server, **headers)]


async def test_nothing_is_shared_between_keys(serve):
    server: RunningServer = serve(**TWO_KEYS, **DEBUG)
    headers = [{"Authorization": f"Bearer {key}"} for key in TWO_KEYS["auth"]["keys"].values()]

    async def ask(who: int, items: list[Any]) -> dict[str, Any]:
        async with connect(server, additional_headers=headers[who]) as socket:
            return await socket.response(items)

    assert await kinds_of(server, ask, **headers[0]) == ["cold", "cold", "extend"]


async def test_the_scope_can_be_narrowed_and_switched_off(serve):
    async def same_socket(server: RunningServer) -> list[str]:
        async with connect(server) as socket:
            return await kinds_of(server, lambda _, items: socket.response(items))

    async def new_sockets(server: RunningServer) -> list[str]:
        async def ask(_: int, items: list[Any]) -> dict[str, Any]:
            async with connect(server) as socket:
                return await socket.response(items)

        return await kinds_of(server, ask)

    for scope, on_one, on_two in [
        # The second to go on from a node has no tape to extend: it forks.
        ("principal", ["cold", "extend", "fork"], ["cold", "extend", "fork"]),
        ("connection", ["cold", "extend", "fork"], ["cold", "cold", "cold"]),
        ("off", ["cold", "cold", "cold"], ["cold", "cold", "cold"]),
    ]:
        memory = {"memory": {"prefix_scope": scope}}
        assert await same_socket(serve(**DEBUG, **memory)) == on_one, scope
        assert await new_sockets(serve(**DEBUG, **memory)) == on_two, scope
