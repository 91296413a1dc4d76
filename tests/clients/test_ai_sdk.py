"""The Vercel AI SDK (npm ``ai`` with ``@ai-sdk/openai``) over HTTP, as its own process.

It sends the whole conversation with each step: without the reasoning, which it cannot keep without
encrypted content, and with arguments that it has parsed and written anew.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clients.loop import (
    ANSWER,
    CALLS,
    FILES,
    QUESTION,
    SCRIPT,
    assert_only_new_tails_were_encoded,
    turn_records,
)
from running import MODEL

NODE = Path(__file__).parent / "node"


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_tool_loop(serve, tmp_path, how):
    running = serve(SCRIPT, log={"debug": True})
    if not (NODE / "node_modules" / "@ai-sdk").exists():
        pytest.fail("the AI SDK is missing: run `make py-test`, which installs it (no skips)")
    ran = subprocess.run(
        [
            "node",
            str(NODE / "ai_sdk.mjs"),
            how,
            f"{running.url}/v1",
            MODEL,
            QUESTION,
            json.dumps(FILES),
        ],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["errors"] == []
    assert seen["text"] == ANSWER
    steps = seen["steps"]
    assert [step["ended"] for step in steps] == ["tool-calls", "tool-calls", "stop"]
    assert [step["calls"] for step in steps] == [[list(c) for c in calls] for calls in CALLS]
    if how == "stream":
        assert seen["streamed"] == "".join(step["text"] for step in steps)
    records = turn_records(running)
    assert len(records) == 3
    assert_only_new_tails_were_encoded(records, running.engine.recordings)
