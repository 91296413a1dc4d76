"""Stored responses that outlive the server, and what never reaches a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from databases import Postgres, Redis
from running import RunningServer, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from turnwire._core import Profile

KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789abc"}
THINKING = {"default": {"answer": {"reasoning": "THOUGHT-CANARY", "text": "SAID-CANARY"}}}


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def database(request, tmp_path) -> Iterator[tuple[dict[str, Any], Path]]:
    """A ``store`` section, and the folder that holds all that was ever written by its server."""
    if request.param == "sqlite":
        yield {"kind": "sqlite", "path": tmp_path / "responses.sqlite3"}, tmp_path
        return
    server: Postgres | Redis = Postgres() if request.param == "postgres" else Redis()
    server.start()
    yield {"kind": request.param, "url": server.url}, server.folder
    server.close()


@pytest.fixture
def once(profile: Profile) -> Iterator[Callable[..., RunningServer]]:
    """A server that the test stops itself."""
    servers: list[RunningServer] = []

    def start(script: dict[str, Any] | None = None, **sections: Any) -> RunningServer:
        servers.append(RunningServer(profile, script or {}, **sections).start())
        return servers[-1]

    yield start
    for server in servers:
        if server._thread.is_alive():
            server.stop()


def client(server: RunningServer, key: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=10)


def create(http: httpx.Client, given: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "sim-qwen3", "input": given, **fields}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def holding(folder: Path, text: bytes) -> list[str]:
    """The files below ``folder`` that hold ``text``."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if text in path.read_bytes()]


async def test_a_conversation_goes_on_after_a_restart_with_the_same_ids(database, once):
    section, _ = database
    first = once(THINKING, store=section)
    async with connect(first) as socket:
        a = await socket.response("One", instructions="Be terse.")
        b = await socket.response("Two", previous_response_id=a["id"], instructions="Be terse.")
        fields = {"previous_response_id": b["id"], "instructions": "Be terse."}
        await socket.response("Three", **fields)
    wanted = first.engine.prompts[-1]
    first.stop()
    second = once(THINKING, store=section)
    with client(second) as http:
        create(http, "Three", **fields)
    assert second.engine.prompts[-1] == wanted
    async with connect(second) as socket:
        await socket.response("Three", **fields)
    assert second.engine.prompts[-1] == wanted


async def test_two_servers_share_a_database(database, once):
    section, _ = database
    one, two = once(store=section), once(store=section)
    with client(one) as a, client(two) as b:
        previous = None
        for turn in range(6):
            http = (a, b)[turn % 2]
            previous = create(http, f"turn {turn}", previous_response_id=previous)["id"]
            _written(one, two)
        assert len(two.engine.prompts) == 3
        assert "turn 0" in two.decode(two.engine.prompts[-1])
        # What one of them deletes, the other does not continue, though it has it at hand.
        assert a.delete(f"/v1/responses/{previous}").status_code == 200
        refused = b.post(
            "/v1/responses",
            json={"model": "sim-qwen3", "input": "x", "previous_response_id": previous},
        )
        assert refused.json()["error"]["code"] == "previous_response_not_found"


def _written(*servers: RunningServer) -> None:
    for server in servers:
        queue = server.app._service.recall.store

        async def empty(queue=queue) -> None:
            async with queue._changed:
                await queue._changed.wait_for(lambda: not len(queue))

        server.call(empty)


async def test_what_is_not_to_be_stored_reaches_no_file_and_no_key(database, once):
    """Not by itself, not by a child that is stored, and not by a client that sends it again."""
    section, folder = database
    fine = {"when": {"contains": "STORED"}, "answer": {"text": "fine"}}
    server = once({**THINKING, "rules": [fine]}, store=section)
    async with connect(server) as socket:
        hidden = await socket.response("ASKED-CANARY", store=False)
        told = await socket.response(
            "STORED", previous_response_id=hidden["id"], instructions="none of it"
        )
        await socket.response("x", previous_response_id=told["id"], store=False)
    with client(server) as http:
        create(http, "ASKED-CANARY", store=False)
    _written(server)
    server.stop()
    assert holding(folder, told["id"].encode()), "the stored one is not there"
    for canary in (b"ASKED-CANARY", b"THOUGHT-CANARY", b"SAID-CANARY"):
        assert not holding(folder, canary)


async def test_a_client_that_sends_all_again_stores_what_it_sent(database, once):
    section, folder = database
    script = {"default": {"answer": {"reasoning": "THOUGHT-CANARY", "text": "fine"}}}
    server = once(script, store=section)
    said = [{"role": "user", "content": "One"}]
    with client(server) as http:
        create(http, said, store=False)
        said += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "Two"}]
        create(http, said, store=False)
        assert server.engine.prompts[-1]
    server.stop()
    assert not holding(folder, b"THOUGHT-CANARY")


async def test_what_is_deleted_is_in_no_file(once, tmp_path):
    section = {"kind": "sqlite", "path": tmp_path / "responses.sqlite3"}
    server = once(store=section)
    with client(server) as http:
        gone = create(http, "DELETED-CANARY")["id"]
        kept = create(http, "kept")["id"]
        _written(server)
        assert holding(tmp_path, b"DELETED-CANARY")
        assert http.delete(f"/v1/responses/{gone}").status_code == 200
        assert not holding(tmp_path, b"DELETED-CANARY")
        assert http.get(f"/v1/responses/{kept}").status_code == 200
    assert tmp_path.joinpath("responses.sqlite3").stat().st_mode & 0o077 == 0


async def test_a_child_of_what_was_deleted_goes_on_after_a_restart(database, once):
    section, _ = database
    first = once(store=section)
    with client(first) as http:
        a = create(http, "FIRST")["id"]
        b = create(http, "SECOND", previous_response_id=a)["id"]
        assert http.delete(f"/v1/responses/{a}").status_code == 200
        create(http, "THIRD", previous_response_id=b)
    wanted = first.engine.prompts[-1]
    first.stop()
    second = once(store=section)
    with client(second) as http:
        create(http, "THIRD", previous_response_id=b)
        assert second.engine.prompts[-1] == wanted
        assert http.get(f"/v1/responses/{a}").status_code == 404


async def test_with_the_database_down_turns_go_on(once):
    database = Redis()
    database.start()
    try:
        server = once(store={"kind": "redis", "url": database.url, "queue": 2})
        with client(server) as http:
            known = create(http, "known")["id"]
            _written(server)
            database.stop()
            child = create(http, "child", previous_response_id=known)["id"]
            create(http, "grandchild", previous_response_id=child)
            refused = http.post("/v1/responses", json={"model": "sim-qwen3", "input": "x"})
            assert refused.status_code == 503
            error = refused.json()["error"]
            assert error["code"] == "server_is_overloaded"
            assert "redis" in error["message"]
            create(http, "not stored", store=False)
            assert http.get(f"/v1/responses/{child}").status_code == 200
            assert http.get(f"/v1/responses/{known}").status_code == 503
            database.start()
            _written(server)
            assert http.get(f"/v1/responses/{known}").status_code == 200
            create(http, "y", previous_response_id=child)
    finally:
        database.close()


def test_a_store_that_cannot_be_had_ends_the_start(profile, tmp_path):
    from turnwire import app  # noqa: PLC0415
    from turnwire.config import Config  # noqa: PLC0415
    from turnwire.errors import ConfigError, StartupError  # noqa: PLC0415

    def start(**section: Any) -> None:
        import asyncio  # noqa: PLC0415

        from turnwire.engine.sim import Script, SimEngine  # noqa: PLC0415

        engine = SimEngine(Script.parse(json.dumps({})), profile, model="m")
        made = app(Config(store=section), profile=profile, engine=engine)
        asyncio.run(made.startup())

    with pytest.raises(ConfigError, match=r"store\.url"):
        start(kind="postgres")
    for kind, url in (
        ("postgres", "postgresql://x@127.0.0.1:1/x"),
        ("redis", "redis://127.0.0.1:1"),
    ):
        with pytest.raises(StartupError, match=kind):
            start(kind=kind, url=url)
    (tmp_path / "file").write_text("no database, but long enough to be looked at as one" * 40)
    with pytest.raises(StartupError, match="file"):
        start(kind="sqlite", path=tmp_path / "file")
