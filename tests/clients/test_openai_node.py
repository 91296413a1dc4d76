"""openai-node over WebSocket (``openai/resources/responses/ws``), as its own process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from clients.loop import (
    ANSWER,
    CALLS,
    FILES,
    QUESTION,
    SCRIPT,
    assert_each_turn_goes_on_from_the_last,
)
from running import MODEL

NODE = Path(__file__).parent / "node"


def test_websocket_tool_loop(serve):
    running = serve(SCRIPT)
    if not (NODE / "node_modules" / "openai").exists():
        pytest.fail("openai-node is missing: run `make py-test`, which installs it (no skips)")
    ran = subprocess.run(
        [
            "node",
            str(NODE / "tool_loop.mjs"),
            f"{running.url}/v1",
            MODEL,
            QUESTION,
            json.dumps(FILES),
        ],
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["errors"] == []
    turns = seen["turns"]
    assert [turn["calls"] for turn in turns] == [[list(c) for c in calls] for calls in CALLS]
    assert turns[-1]["streamed"] == ANSWER
    assert [turn["previous"] for turn in turns] == [None, turns[0]["id"], turns[1]["id"]]
    assert seen["events"].count("response.created") == 3
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=3)
