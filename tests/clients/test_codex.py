"""The real Codex CLI (npm ``@openai/codex``), as its own process, against the sim.

What it must do is read off the wire, through a tap: the prewarm, then only increments.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.loop import assert_each_turn_goes_on_from_the_last
from clients.tap import Tap, Wire
from running import MODEL

CODEX = Path(__file__).parent / "node" / "node_modules" / ".bin" / "codex"
KEY = "sk-codex-test-0123456789"
SECRET = "the-marmot-sleeps-at-noon"
ANSWER = f"The folder holds one file, which says {SECRET}."
COMMAND = "ls && cat secret.txt"

pytestmark = pytest.mark.timeout(180)

SCRIPT: dict[str, Any] = {
    "tokens_per_second": 5000,
    "prefill_tokens_per_second": 1_000_000,
    "context_length": 131_072,
    "rules": [
        {
            "when": {"type": "message", "contains": "Say what is in this folder"},
            "answer": {
                "reasoning": "I look.",
                "text": "I will look into the folder.",
                "calls": [{"name": "exec_command", "arguments": {"cmd": COMMAND}}],
            },
        },
        {
            # Only the command's real output holds the secret: the tool has run.
            "when": {"type": "function_call_output", "name": "exec_command", "contains": SECRET},
            "answer": {"text": ANSWER},
        },
        {
            "when": {"type": "message", "contains": "Say it again"},
            "answer": {"text": f"Again: {ANSWER}"},
        },
    ],
    "default": {"answer": {"text": "The script has no answer to this."}},
}

CONFIG = """
model = "{model}"
model_provider = "turnwire"
model_context_window = 131072
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
{more}

# Off, because they look for other servers.
[features]
plugins = false
apps = false

[analytics]
enabled = false

[feedback]
enabled = false

[model_providers.turnwire]
name = "turnwire"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "TURNWIRE_TEST_KEY"
requires_openai_auth = false
supports_websockets = true
"""


FEW_TOOLS = """
web_search = "disabled"
agents.enabled = false
"""

# Such as somebody writes for a model that Codex does not know: it gets the tool that edits files.
CATALOGUE: dict[str, Any] = {
    "models": [
        {
            "slug": MODEL,
            "display_name": "A model of ours",
            "description": "It follows a script.",
            "apply_patch_tool_type": "freeform",
            "shell_type": "shell_command",
            "visibility": "list",
            "supported_in_api": True,
            "supported_reasoning_levels": [],
            "supports_parallel_tool_calls": True,
            "support_verbosity": False,
            "truncation_policy": {"mode": "tokens", "limit": 10_000},
            "context_window": 131_072,
            "priority": 1,
            "base_instructions": "You are a coding agent.",
            "experimental_supported_tools": [],
        }
    ]
}

PATCH = """\
*** Begin Patch
*** Update File: secret.txt
@@
-the-marmot-sleeps-at-noon
+the marmot "woke" \\ up
*** End Patch
"""

PATCH_SCRIPT: dict[str, Any] = {
    **SCRIPT,
    "rules": [
        {
            "when": {"type": "message", "contains": "Say what is in this folder"},
            "answer": {
                "reasoning": "I edit.",
                "calls": [{"name": "apply_patch", "arguments": {"input": PATCH}}],
            },
        },
        {
            "when": {"type": "function_call_output", "name": "apply_patch"},
            "answer": {"text": "I have changed secret.txt."},
        },
    ],
}

ASK = ("--strict-config", "--skip-git-repo-check", "--json", "Say what is in this folder.")
ASK_AGAIN = ("resume", "--last", "--skip-git-repo-check", "--json", "Say it again.")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Codex's home, with a folder to work in that holds one file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "secret.txt").write_text(SECRET + "\n")
    return tmp_path


def codex_exec(
    home: Path, port: int, *arguments: str, config: str = FEW_TOOLS, model: str = MODEL
) -> list[dict[str, Any]]:
    """Runs one ``codex exec`` with these lines in its configuration; its JSON events."""
    if not CODEX.exists():
        pytest.fail("the Codex CLI is missing: run `make py-test`, which installs it (no skips)")
    (home / "config.toml").write_text(CONFIG.format(model=model, port=port, more=config))
    ran = subprocess.run(
        [str(CODEX), "exec", *arguments],
        cwd=home / "folder",
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CODEX_HOME": str(home),
            "TURNWIRE_TEST_KEY": KEY,
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
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def messages_of(events: list[dict[str, Any]]) -> list[str]:
    return [
        event["item"]["text"]
        for event in events
        if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"
    ]


def commands_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        event["item"]
        for event in events
        if event["type"] == "item.completed" and event["item"]["type"] == "command_execution"
    ]


def test_websocket(serve, home):
    running = serve(SCRIPT)
    with Tap(("127.0.0.1", running.port)) as tap:
        events = codex_exec(home, tap.port, *ASK)
    assert messages_of(events)[-1] == ANSWER
    (command,) = commands_of(events)
    assert command["exit_code"] == 0
    assert SECRET in command["aggregated_output"]
    assert not [event for event in events if event["type"] == "error"]

    (wire,) = tap.wires  # one connection, never dropped, nothing over HTTP
    assert wire.upgraded
    prewarm, first, second = wire.client_frames
    assert prewarm["generate"] is False
    assert "previous_response_id" not in prewarm
    completed = [
        event["response"]["id"]
        for event in wire.server_events
        if event["type"] == "response.completed"
    ]
    assert [first["previous_response_id"], second["previous_response_id"]] == completed[:2]
    assert [item["type"] for item in second["input"]] == ["function_call_output"]
    assert_one_terminal_event_each(wire)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=2)
    # The system prompt came with the prewarm only.
    assert len(json.dumps(prewarm["input"])) > 10_000
    sampled = [recording for recording in running.engine.recordings if recording.max_tokens > 0]
    assert len(sampled[0].prompt) > 2_000


def test_its_default_tools(serve, home):
    """Functions, a namespace of them and a hosted tool, which is left out."""
    running = serve(SCRIPT)
    with Tap(("127.0.0.1", running.port)) as tap:
        events = codex_exec(home, tap.port, *ASK, config="")
    assert messages_of(events)[-1] == ANSWER
    assert len(commands_of(events)) == 1
    (wire,) = tap.wires
    kinds = {tool["type"] for tool in wire.client_frames[0]["tools"]}
    assert kinds == {"function", "namespace", "web_search"}
    echoed = {tool["type"] for tool in wire.server_events[0]["response"]["tools"]}
    assert echoed == {"function", "namespace"}
    assert_one_terminal_event_each(wire)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=2)


def test_apply_patch_edits_a_file(serve, home):
    (home / "models.json").write_text(json.dumps(CATALOGUE))
    running = serve(PATCH_SCRIPT)
    with Tap(("127.0.0.1", running.port)) as tap:
        config = f'model_catalog_json = "{home / "models.json"}"'
        events = codex_exec(home, tap.port, *ASK, config=config)
        resumed = codex_exec(home, tap.port, *ASK_AGAIN, config=config)
    assert messages_of(events) == ["I have changed secret.txt."]
    changed = (home / "folder" / "secret.txt").read_text()
    assert changed == 'the marmot "woke" \\ up\n'
    first, again = tap.wires
    tools = {tool["type"]: tool for tool in first.client_frames[0]["tools"]}
    assert tools["custom"]["name"] == "apply_patch"
    assert [item["type"] for item in first.client_frames[-1]["input"]] == [
        "custom_tool_call_output"
    ]
    assert_each_turn_goes_on_from_the_last(running.engine.recordings[:3], turns=2)
    # A new process sends the call again, and is understood.
    sent = [item["type"] for frame in again.client_frames for item in frame["input"]]
    assert {"custom_tool_call", "custom_tool_call_output"} <= set(sent)
    assert messages_of(resumed) == ["The script has no answer to this."]


SEARCH_SCRIPT: dict[str, Any] = {
    **SCRIPT,
    "rules": [
        {
            "when": {"type": "message", "contains": "Say what is in this folder"},
            "answer": {"calls": [{"name": "tool_search", "arguments": {"query": "calendar"}}]},
        },
        {
            "when": {"type": "function_call_output", "name": "tool_search"},
            "answer": {"text": "There is no such tool."},
        },
    ],
}


def test_a_model_that_it_knows_searches_for_tools(serve, home):
    """The tools of its newer models: a search that Codex executes, beside functions and a patch."""
    running = serve(SEARCH_SCRIPT, model={"aliases": ["gpt-5.5"]})
    with Tap(("127.0.0.1", running.port)) as tap:
        events = codex_exec(home, tap.port, *ASK, config="", model="gpt-5.5")
    assert messages_of(events) == ["There is no such tool."]
    (wire,) = tap.wires
    kinds = {tool["type"] for tool in wire.client_frames[0]["tools"]}
    assert kinds == {"function", "custom", "tool_search", "web_search"}
    (found,) = wire.client_frames[-1]["input"]
    assert found["type"] == "tool_search_output"
    assert_one_terminal_event_each(wire)
    assert_each_turn_goes_on_from_the_last(running.engine.recordings, turns=2)


RUN = "text(JSON.stringify(await tools.exec_command({cmd: 'cat secret.txt'})))"
LITE_SCRIPT: dict[str, Any] = {
    **SCRIPT,
    "rules": [
        {
            "when": {"type": "message", "contains": "Say what is in this folder"},
            "answer": {"calls": [{"name": "functions__exec", "arguments": {"input": RUN}}]},
        },
        {"when": {"type": "function_call_output"}, "answer": {"text": ANSWER}},
    ],
}


def test_a_model_whose_tools_come_as_an_item(serve, home):
    """Its newest models: tools are in the first item, and the model writes programs."""
    running = serve(LITE_SCRIPT, model={"aliases": ["gpt-5.6-sol"]})
    with Tap(("127.0.0.1", running.port)) as tap:
        events = codex_exec(home, tap.port, *ASK, config="", model="gpt-5.6-sol")
    assert messages_of(events) == [ANSWER]
    (wire,) = tap.wires
    prewarm, first, second = wire.client_frames
    assert not any("tools" in frame for frame in wire.client_frames)
    assert prewarm["input"] == []
    assert first["input"][0]["type"] == "additional_tools"
    (output,) = second["input"]
    assert output["type"] == "custom_tool_call_output"
    assert SECRET in json.dumps(output)
    assert_one_terminal_event_each(wire)
    declared = running.decode(running.engine.recordings[-1].prompt)
    assert "functions__exec" in declared.split("<|im_end|>", maxsplit=1)[0]
    assert running.engine.recordings[-1].prompt[: len(running.engine.recordings[-2].prompt)] == (
        running.engine.recordings[-2].prompt
    )


def test_a_resumed_session_sends_everything_and_goes_on(serve, home):
    """A new process, a new socket: no id survives, so the whole conversation comes again."""
    running = serve(SCRIPT)
    with Tap(("127.0.0.1", running.port)) as tap:
        codex_exec(home, tap.port, *ASK)
        events = codex_exec(home, tap.port, *ASK_AGAIN)
    assert messages_of(events) == [f"Again: {ANSWER}"]
    assert not [event for event in events if event["type"] == "error"]
    _, resumed = tap.wires
    assert resumed.upgraded
    sent = [item for frame in resumed.client_frames for item in frame["input"]]
    kinds = [item["type"] for item in sent]
    assert "function_call" in kinds
    assert "function_call_output" in kinds
    assert_one_terminal_event_each(resumed)


def assert_one_terminal_event_each(wire: Wire) -> None:
    """Anything behind a response's terminal event would end Codex's next turn."""
    state = "idle"
    for event in wire.server_events:
        if event["type"] == "response.created":
            assert state == "idle"
            state = "responding"
        elif event["type"] == "response.completed":
            assert state == "responding"
            state = "idle"
        else:
            assert state == "responding", event
    assert state == "idle"


def test_http_fallback(serve, home):
    """WebSocket off: 426, and Codex goes over to POST at once."""
    running = serve(SCRIPT, websocket={"enabled": False})
    with Tap(("127.0.0.1", running.port)) as tap:
        events = codex_exec(home, tap.port, *ASK)
    assert messages_of(events)[-1] == ANSWER
    assert len(commands_of(events)) == 1
    refused = [wire for wire in tap.wires if wire.request_line.startswith("GET /v1/responses")]
    posted = [wire for wire in tap.wires if b"POST /v1/responses " in wire.from_client]
    assert [wire.status for wire in refused] == [426]
    assert posted
