"""The canary in a server: every turn is looked at, and a template that parts takes over."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from oracle import templates
from running import connect
from talking import base

if TYPE_CHECKING:
    from running import RunningServer

TEXT = templates.text_of("trl/qwen3")
TURNS = 6
"""So many questions no probe asks."""
PLANTED = TEXT + f"{{% if messages | length == {2 * TURNS - 1} %}}!{{% endif %}}"


def looked_at(server: RunningServer, turns: int) -> tuple[int, int]:
    """(compared, differing), once that many turns were looked at."""

    async def look() -> tuple[int, int]:
        canary = server.app._service.turns.canary
        return canary.compared, canary.differing

    deadline = time.monotonic() + 10
    while sum(counts := server.call(look)) < turns and time.monotonic() < deadline:
        time.sleep(0.01)
    return counts


async def test_every_turn_is_looked_at_when_every_one_is_to_be(serve):
    server = serve(of=base("qwen3").with_template(TEXT), model={"verify_one_in": 1})
    async with connect(server) as socket:
        last = None
        for turn in range(3):
            last = await socket.response("Hello", previous_response_id=last and last["id"])
            assert await asyncio.to_thread(looked_at, server, turn + 1) == (turn + 1, 0)


async def test_none_is_looked_at_when_none_is_to_be(serve):
    server = serve(of=base("qwen3").with_template(PLANTED), model={"verify_one_in": 0})
    async with connect(server) as socket:
        for _ in range(3):
            await socket.response("Hello")
    assert looked_at(server, 0) == (0, 0)


async def test_a_template_that_parts_takes_over_and_is_logged(serve, caplog):
    server = serve(of=base("qwen3").with_template(PLANTED), model={"verify_one_in": 1})
    questions = [{"role": role, "content": "secret"} for role in ("user", "assistant")] * TURNS
    with caplog.at_level(logging.ERROR, logger="turnwire"):
        async with connect(server) as socket:
            odd = await socket.response(questions[:-1])
            assert odd["status"] == "completed"
            assert await asyncio.to_thread(looked_at, server, 1) == (0, 1)
            assert not server.decode(list(server.engine.recordings[-1].prompt)).endswith("!")
            await socket.response(questions[:-1])
    assert server.decode(list(server.engine.recordings[-1].prompt)).endswith("!")
    (record,) = [record for record in caplog.records if "canary" in record.name]
    assert odd["id"] in record.getMessage()
    assert "secret" not in caplog.text
