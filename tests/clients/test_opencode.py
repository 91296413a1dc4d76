"""The real opencode (``opencode run``) over HTTP, as its own process, against the sim.

It sends the whole conversation with each step, and no reasoning. Its own tools, ``read`` and
``bash``, do the work.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.loop import ANSWER, QUESTION, assert_only_new_tails_were_encoded, turn_records
from clients.tap import Tap
from running import MODEL

PACKAGE = Path(__file__).parent / "opencode" / "node_modules" / "opencode-linux-x64-baseline"
OPENCODE = PACKAGE / "bin" / "opencode"
COMMAND = "wc -w < notes.txt"

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="opencode is installed for Linux on x86-64 only",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in, with one file; opencode's home is around it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("one two three\n")
    return folder


def script(folder: Path) -> dict[str, Any]:
    """Each answer needs what opencode's own tool has really found."""
    read = {"name": "read", "arguments": {"filePath": str(folder / "notes.txt")}}
    count = {"name": "bash", "arguments": {"command": COMMAND, "description": "Counts words"}}
    return {
        "context_length": 131_072,
        "rules": [
            {
                "when": {"type": "message", "contains": QUESTION},
                "answer": {"reasoning": "I have to read it first.", "calls": [read]},
            },
            {
                "when": {
                    "type": "function_call_output",
                    "name": "read",
                    "contains": "one two three",
                },
                "answer": {"text": "Now I count.", "calls": [count]},
            },
            {
                "when": {"type": "function_call_output", "name": "bash", "contains": "3\n"},
                "answer": {"reasoning": "Three.", "text": ANSWER},
            },
            {
                "when": {"type": "message", "contains": "Say it again"},
                "answer": {"text": f"Again: {ANSWER}"},
            },
        ],
        "default": {"answer": {"text": "The script has no answer to this."}},
    }


def config(port: int) -> dict[str, Any]:
    return {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["openai"],
        "model": f"openai/{MODEL}",
        "provider": {
            "openai": {
                "options": {
                    "baseURL": f"http://127.0.0.1:{port}/v1",
                    "apiKey": "sk-opencode-test-0123456789",
                },
                "models": {
                    MODEL: {
                        "reasoning": True,
                        "tool_call": True,
                        "limit": {"context": 131_072, "output": 8192},
                    }
                },
            }
        },
    }


def opencode_run(folder: Path, port: int, *arguments: str) -> list[dict[str, Any]]:
    """Runs one ``opencode run``; its JSON events. It needs nothing but the server: what it would
    fetch (models, plugins, language servers, itself) is switched off."""
    if not OPENCODE.exists():
        pytest.fail("opencode is missing: run `make py-test`, which installs it (no skips)")
    home = folder.parent
    ran = subprocess.run(
        [str(OPENCODE), "run", "--format", "json", *arguments],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "OPENCODE_CONFIG_CONTENT": json.dumps(config(port)),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "npm_config_offline": "true",
            "NO_PROXY": "*",
            "LANG": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert not [event for event in events if event["type"] == "error"], ran.stdout
    return events


def texts_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["part"]["text"] for event in events if event["type"] == "text"]


def test_tool_loop_and_a_new_process_that_goes_on(serve, folder):
    running = serve(script(folder), log={"debug": True})
    with Tap(("127.0.0.1", running.port)) as tap:
        # With a title, it does not ask the model for one.
        events = opencode_run(folder, tap.port, "--title", "Words", QUESTION)
        assert texts_of(events)[-1] == ANSWER
        tools = [event["part"] for event in events if event["type"] == "tool_use"]
        assert [tool["tool"] for tool in tools] == ["read", "bash"]
        assert [tool["state"]["status"] for tool in tools] == ["completed", "completed"]
        again = opencode_run(folder, tap.port, "--continue", "Say it again.")
    assert texts_of(again) == [f"Again: {ANSWER}"]

    assert not [wire for wire in tap.wires if wire.upgraded]
    sent = b"".join(wire.from_client for wire in tap.wires)
    assert sent.count(b"POST /v1/responses ") == 4
    assert b"previous_response_id" not in sent
    *of_the_loop, resumed = turn_records(running)
    *recordings, last = running.engine.recordings
    assert len(of_the_loop) == 3
    assert_only_new_tails_were_encoded(of_the_loop, recordings)
    # Its system prompt and its tools, of which only the first turn paid.
    assert len(recordings[0].prompt) > 5_000
    # A new question takes the earlier reasoning out of Qwen3's prompt. Nothing is encoded for that:
    # only the question is, which begins behind the end of the answer.
    assert resumed["kind"] == "rewind"
    stop = recordings[-1].output[-1]
    *_, end_of_answer, _ = [at for at, token in enumerate(last.prompt) if token == stop]
    assert resumed["rendered_tokens"] == len(last.prompt) - (end_of_answer + 1)
