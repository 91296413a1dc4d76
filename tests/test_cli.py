"""The command line: what it prints, what it refuses, how it stops."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
import urllib.request
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import turnwire
from child import Child
from oracle import vocabulary
from running import connect
from turnwire._core import Profile
from turnwire.cli import commands, demo
from turnwire.cli import serve as serving
from turnwire.cli.tools import SAMPLE, FolderTools
from turnwire.config import Config

if TYPE_CHECKING:
    from running import RunningServer

SIM = ["serve", "--engine", "sim", "--port", "0"]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``turnwire …`` in this process: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["turnwire", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            commands.run()
        output = capsys.readouterr()
        return ended.value.code or 0, output.out, output.err

    return run


def test_version(command):
    assert command("--version") == (0, f"turnwire {turnwire.__version__}\n", "")


def test_without_arguments_it_says_what_there_is(command):
    _, output, errors = command()
    assert "serve" in output + errors
    assert "demo" in output + errors


def test_print_config_hides_keys(command, monkeypatch):
    monkeypatch.setenv("TURNWIRE_AUTH__KEYS", '{"me": "sk-SECRET-0123456789"}')
    code, output, _ = command("serve", "--print-config", "--port", "9999")
    assert code == 0
    assert "port = 9999" in output
    assert "SECRET" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "auth.keys"),
        (["--config", "/nowhere.toml"], "no such configuration file: /nowhere.toml"),
        (["--port", "70000"], "server.port"),
        (["--engine", "sim", "--script", "/nowhere.json"], "/nowhere.json"),
        (["--engine", "sim", "--tokenizer", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_start_is_one_clear_line(command, arguments, message):
    code, output, errors = command("serve", "--port", "0", *arguments)
    assert code == 1
    assert message in errors
    assert "Traceback" not in output + errors


def test_a_port_in_use_is_one_clear_line(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = command("serve", "--engine", "sim", "--port", str(port))
    assert code == 1
    assert f"127.0.0.1 port {port}" in errors
    assert "--port" in errors


def test_without_the_servers_libraries_it_says_what_to_install():
    hide = "import sys; sys.modules['uvicorn'] = None; from turnwire.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == 1
    assert "pip install 'turnwire[server]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_serve_says_where_it_is_and_stops_on_sigterm():
    server = Child(*SIM, "--tokenizer", str(vocabulary.qwen3_path()), "--model", "my-model")
    banner = server.until("supports_websockets")
    assert server.stop() == 0
    assert turnwire.__version__ in banner
    assert "ws://127.0.0.1:" in banner
    assert "my-model" in banner
    assert "sim: scripted answers, no model" in banner
    assert "client.responses.connect()" in banner


@pytest.fixture
def demo_cache(monkeypatch, tmp_path):
    """A cache folder in which the demo model has been fetched before."""
    models = tmp_path / "models"
    models.mkdir()
    path = vocabulary.smollm2_path()
    (models / path.name).symlink_to(path)
    monkeypatch.setenv("TURNWIRE_CACHE_DIR", str(tmp_path))


def seconds_to_serve(words: str, *arguments: str) -> float:
    server = Child("serve", "--port", "0", *arguments)
    banner = server.until("client.responses.connect()")
    took = time.monotonic() - server.started_at
    assert server.stop() == 0
    assert words in banner
    return took


def test_a_second_start_of_the_demo_takes_under_five_seconds(demo_cache):
    words = "demo model: expect weak answers"
    assert min(seconds_to_serve(words) for _ in range(2)) < 5


def test_the_sim_serves_with_the_demo_models_vocabulary(demo_cache):
    seconds_to_serve("sim: scripted answers, no model", "--engine", "sim")


def test_without_llama_cpp_it_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    code, _, errors = command("serve", "--port", "0")
    assert code == 1
    assert "pip install 'turnwire[local]'" in errors


def facts(context_length: int, **sections: Any) -> str:
    """What ``serve`` says for some configuration."""
    console = Console(file=StringIO(), width=200)
    service: Any = SimpleNamespace(
        admission=SimpleNamespace(model="demo"),
        engine=SimpleNamespace(name="llamacpp", context_length=context_length),
        recall=SimpleNamespace(store=SimpleNamespace(name="memory")),
    )
    serving.announce(console, Config(**sections), service, 8787)
    return console.file.getvalue()


def test_the_demo_model_is_called_weak_and_is_not_offered_to_codex():
    text = facts(8192)
    assert "demo model: expect weak answers" in text
    assert "8192 tokens" in text
    assert "Codex" not in text
    assert 'api_key="local"' in text


def test_codex_is_offered_from_32k_on():
    text = facts(32768, engine={"gguf": "/x.gguf"}, auth={"keys": {"me": "sk-0123456789abcdef"}})
    assert 'wire_api = "responses"' in text
    assert "weak" not in text
    assert "sk-0123" not in text


def test_the_lines_for_openai_python_are_python():
    text = facts(8192)
    lines = text[text.index("  client = OpenAI") :]
    compile("\n".join(line[2:] for line in lines.splitlines()), "banner", "exec")


def test_the_demo_runs_an_agent(command, serve):
    script = {"default": {"answer": {"text": "It is about a ferry."}}}
    server: RunningServer = serve(script, log={"debug": True})
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TURNWIRE_API_KEY", "local")
        code, output, errors = command("demo", "--url", server.url)
    assert (code, errors) == (0, "")
    for tool in ("list_files", "read_file", "word_count"):
        assert f"{tool}(" in output
    assert "It is about a ferry." in output
    assert server.engine.requests == 4
    rows = [line.split("│") for line in output.splitlines() if line.startswith("│")]
    assert len(rows) == 4
    numbers = [[int(cell) for cell in row[1:-1]] for row in rows]
    for earlier, later in pairwise(numbers):
        assert later[2] == earlier[1] + earlier[4], "everything before was reused"


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787"),
        ("http://127.0.0.1:8787/", "http://127.0.0.1:8787"),
        ("http://h/llm/v1", "http://h/llm"),
        ("ws://127.0.0.1:8787/v1/responses", "http://127.0.0.1:8787"),
        ("wss://h/v1/responses/", "https://h"),
    ],
)
def test_the_demo_takes_any_address_of_the_server(given, root):
    assert demo._root(given) == root


def test_the_demo_works_without_debug_records(command, serve):
    server: RunningServer = serve()
    code, output, _ = command("demo", "--url", server.url)
    assert code == 0
    assert "--debug" in output


def test_the_demo_says_when_nobody_answers(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, _, errors = command("demo", "--url", f"http://127.0.0.1:{port}")
    assert code == 1
    assert "turnwire serve" in errors


def test_the_demo_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    code, _, errors = command("demo")
    assert code == 1
    assert "pip install 'openai[realtime]'" in errors


def test_the_demos_tools_stay_in_their_folder(tmp_path):
    for name, text in SAMPLE.items():
        (tmp_path / name).write_text(text)
    Path(tmp_path, "folder").mkdir()
    tools = FolderTools(tmp_path)
    assert tools.call("list_files", "{}") == '["harbour.txt", "kitchen.txt", "orchard.txt"]'
    assert tools.call("word_count", '{"path": "harbour.txt"}') == "12"
    assert "ferry" in tools.call("read_file", '{"path": "harbour.txt"}')
    for arguments in (
        '{"path": "/etc/passwd"}',
        '{"path": "../x"}',
        '{"path": "folder"}',
        "{}",
        "x",
    ):
        assert tools.call("read_file", arguments).startswith('{"error": ')
    assert tools.call("remove", "{}").startswith('{"error": ')
    assert tuple(tool["name"] for tool in tools.definitions()) == demo.STEPS


def test_a_verbose_log_leaves_uvicorns_at_warnings(monkeypatch):
    """At "info" it writes query strings, and at "debug" headers with keys."""
    names = ("turnwire", "turnwire.access", "uvicorn")
    before = {name: logging.getLogger(name).level for name in names}
    monkeypatch.setattr(logging.root, "handlers", logging.root.handlers[:])
    try:
        serving.log_to_stderr(Config(log={"level": "debug"}))
        assert logging.getLogger("turnwire").level == logging.DEBUG
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
            assert logging.getLogger(name).getEffectiveLevel() == logging.WARNING
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def test_check_tells_what_a_model_was_found_to_be(command):
    code, output, errors = command("check", "--tokenizer", str(vocabulary.qwen3_path()))
    assert (code, errors) == (0, "")
    assert "qwen3: equal to the template in every probe" in output
    assert "26 of 26 control tokens on both sides" in output


def test_check_ends_in_1_when_there_is_a_doubt(command, tmp_path):
    """Qwen3's vocabulary under a template whose calls nobody reads back."""
    (tmp_path / "tokenizer.json").symlink_to(vocabulary.qwen3_path() / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text(
        "{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}<|im_start|>"
        "{{ m.content }}{% for c in m.tool_calls %}CALL {{ c.function.name }}{% endfor %}"
        "{% endfor %}"
    )
    code, output, errors = command("check", "--tokenizer", str(tmp_path))
    assert (code, errors) == (1, "")
    assert "requests with tools are refused" in output
    assert "none: only a limit would end a turn" in output
    assert command("check", "--tokenizer", str(tmp_path / "nowhere"))[0] == 1


def test_check_asks_an_engine(command):
    from engine.running_sim import RunningSim  # noqa: PLC0415 -- needs the core
    from server.test_agreement import qwen3_template, renderer  # noqa: PLC0415

    profile = Profile.load(str(vocabulary.qwen3_path()))
    wrong = qwen3_template().replace("<tool_response>", "<tool_reply>")
    for template, expected in ((None, 0), (wrong, 1)):
        sim = RunningSim(profile, render=renderer(template))
        try:
            folder = str(vocabulary.qwen3_path())
            code, output, _ = command("check", "--tokenizer", folder, "--engine", sim.url)
        finally:
            sim.stop()
        assert code == expected, output
        assert "its tokenizer, on 17 texts" in output or expected
    assert "tool_reply" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vllm-url", "http://x", "--sglang-url", "http://y"], "Only one engine samples"),
        (["--vllm-url", "http://x", "--engine", "sim"], "Only one engine samples"),
        (["--vllm-url", "x:8000"], "engine.url"),
        (["--llamacpp-url", "http://127.0.0.1:9"], "Set model.tokenizer"),
    ],
)
def test_engines_elsewhere_are_named_by_their_flag(command, arguments, words):
    code, _, errors = command("serve", "--port", "0", *arguments)
    assert code == 1
    assert words in errors


def test_flags_name_kind_and_url(command):
    code, output, _ = command("serve", "--print-config", "--sglang-url", "http://gpu:30000")
    assert code == 0
    assert 'kind = "sglang"' in output
    assert 'url = "http://gpu:30000"' in output


def test_dump_shows_a_responses_spans(command, serve):
    script = {"default": {"answer": {"reasoning": "So.", "text": "A \x1b[31mferry."}}}
    server: RunningServer = serve(script, log={"debug": True})

    async def ask() -> dict[str, Any]:
        async with connect(server) as socket:
            return await socket.response("Where <|im_end|>?", instructions="Be brief.")

    response_id = asyncio.run(ask())["id"]
    code, output, errors = command("dump", response_id, "--url", server.url, "--ids")
    assert (code, errors) == (0, "")
    assert output.startswith(f"{response_id}: ")
    for expected in (
        "header rendered",
        "item rendered 0 message",
        "generation_prompt rendered",
        "sampled sampled 1 reasoning, 2 message",
        "'<|im_start|>user\\nWhere <|im_end|>?<|im_end|>\\n'",
        r"A \x1b[31mferry.",
    ):
        assert expected in output
    assert "\x1b[31m" not in output
    code, _, errors = command("dump", "resp_none", "--url", server.url)
    assert code == 1
    assert "resp_none" in errors
    assert "kept" in errors


def test_serve_keeps_responses_in_a_file_unless_told_otherwise(command, monkeypatch):
    _, printed, _ = command("serve", "--engine", "sim", "--print-config")
    assert 'kind = "sqlite"' in printed
    monkeypatch.setenv("TURNWIRE_STORE__KIND", "redis")
    monkeypatch.setenv("TURNWIRE_STORE__URL", "redis://:SECRET-CANARY@localhost/0")
    _, printed, _ = command("serve", "--engine", "sim", "--print-config")
    assert 'kind = "redis"' in printed
    assert 'kind = "sqlite"' not in printed
    assert "SECRET-CANARY" not in printed


def test_a_served_response_is_there_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    served = [*SIM, "--model", "m", "--tokenizer", str(vocabulary.qwen3_path())]

    def asked(url: str, body: bytes | None = None) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url.replace("ws://", "http://"), body, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    first = Child(*served)
    made = asked(first.url(), json.dumps({"model": "m", "input": "KEPT"}).encode())
    assert first.stop() == 0
    second = Child(*served)
    assert asked(f"{second.url()}/{made['id']}") == made
    assert second.stop() == 0
