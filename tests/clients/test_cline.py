"""The real Cline CLI (provider ``openai-native``) over HTTP, as its own process, against the sim.

It sends the whole conversation with each step, without reasoning and ids. Its own tools,
``read_files`` and ``run_commands``, do the work.

With each it also sends ``truncation: "auto"``, and the hosted tool ``image_generation``, which is
left out.
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

PACKAGE = Path(__file__).parent / "cline" / "node_modules" / "@cline" / "cli-linux-x64"
CLINE = PACKAGE / "bin" / "cline"

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="Cline is installed for Linux on x86-64 only",
    ),
]

SETTINGS = {
    "telemetryOptOut": True,
    "autoUpdateEnabled": False,
    "tools": {"web_search": {"enabled": False}},  # the other hosted tool; this one has a switch
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in, with one file; Cline's home is around it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("one two three\n")
    return folder


def script(folder: Path) -> dict[str, Any]:
    """Each answer needs what Cline's own tool has really found."""
    read = {"name": "read_files", "arguments": {"files": [{"path": str(folder / "notes.txt")}]}}
    count = {"name": "run_commands", "arguments": {"commands": ["wc -w < notes.txt"]}}
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
                    "name": "read_files",
                    "contains": "one two three",
                },
                "answer": {"text": "Now I count.", "calls": [count]},
            },
            {
                "when": {
                    "type": "function_call_output",
                    "name": "run_commands",
                    "contains": '"result":"3',
                },
                "answer": {"reasoning": "Three.", "text": ANSWER},
            },
        ],
        "default": {"answer": {"text": "The script has no answer to this."}},
    }


def cline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Cline without what it would start or fetch: its daemon, telemetry, updates."""
    if not CLINE.exists():
        pytest.fail("Cline is missing: run `make py-test`, which installs it (no skips)")
    home = folder.parent
    settings = home / "settings.json"
    settings.write_text(json.dumps(SETTINGS))
    return subprocess.run(
        [str(CLINE), *arguments],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CLINE_GLOBAL_SETTINGS_PATH": str(settings),
            "CLINE_NO_AUTO_UPDATE": "1",
            "CLINE_SESSION_BACKEND_MODE": "local",
            "DO_NOT_TRACK": "1",
            "NO_PROXY": "*",
            "LANG": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ask(folder: Path, port: int) -> tuple[int, list[dict[str, Any]]]:
    """Cline's exit code and JSON events for one task."""
    provider = ("openai-native", "-m", MODEL, "-k", "sk-cline-test-0123456789")
    known = cline(folder, "auth", "-b", f"http://127.0.0.1:{port}/v1", "-p", *provider)
    assert known.returncode == 0, known.stderr
    ran = cline(folder, "--json", "-P", "openai-native", "-m", MODEL, QUESTION)
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]


def test_tool_loop(serve, folder):
    running = serve(script(folder), log={"debug": True})
    with Tap(("127.0.0.1", running.port)) as tap:
        code, events = ask(folder, tap.port)
    last = events[-1]
    assert (code, last["type"], last["finishReason"]) == (0, "run_result", "completed"), last
    assert last["text"] == ANSWER
    ended = [
        event["event"]["toolName"]
        for event in events
        if event["type"] == "agent_event"
        and (event["event"]["type"], event["event"].get("contentType")) == ("content_end", "tool")
    ]
    assert ended == ["read_files", "run_commands"]

    sent = b"".join(bytes(wire.from_client) for wire in tap.wires)
    assert sent.count(b'"truncation":"auto"') == 3
    assert sent.count(b'"type":"image_generation"') == 3
    assert b"previous_response_id" not in sent
    records = turn_records(running)
    assert len(records) == 3
    assert_only_new_tails_were_encoded(records, running.engine.recordings)
    # Its system prompt and its tools, of which only the first turn paid.
    assert records[0]["prompt_tokens"] > 4_000


def test_its_user_is_told_what_is_refused(serve, folder):
    code, events = ask(folder, serve(script(folder), tools={"hosted": "refuse"}).port)
    last = events[-1]
    assert (code, last["type"], last["finishReason"]) == (1, "run_result", "error"), last
    assert "image_generation" in last["text"]
