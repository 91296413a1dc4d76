"""vLLM's own renderer, asked over HTTP: ``vllm-rs render``, which needs no GPU.

The binary lies in vLLM's wheel; ``make oracles`` fetches it. It renders Chat Completions messages
and encodes them, with code that shares nothing with turnwire's but the encoder's library. What it
is asked is what ``oracle.generic`` would give the template, arguments as the client spelled them.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oracle import generic, naive, vocabulary
from oracle.comparing import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oracle.generic import Template
    from oracle.naive import Item, Message

ORACLES = Path(__file__).parents[2] / ".cache" / "oracles"
BINARY = ORACLES / "vllm" / "vllm-rs"
VERSION = "0.33.0"


class Renderer:
    """One process, for one model; a context manager.

    ``native`` models have a renderer in vLLM and need no template.
    """

    def __init__(self, template: Template, model_type: str, parser: str, *, native: bool = False):
        if not BINARY.exists():
            raise FileNotFoundError(f"{BINARY} is missing: run `make oracles` (tests do not skip)")
        BINARY.chmod(0o755)  # as in the wheel
        self._template = template
        self._scratch = tempfile.TemporaryDirectory(prefix="turnwire-vllm-")
        folder = Path(self._scratch.name)
        _model(folder, template, model_type)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        command = [str(BINARY), "render", str(folder), "--port", str(self._port)]
        command += ["--served-model-name", "m", "--tool-call-parser", parser]
        if not native:
            command += ["--chat-template", str(folder / "chat_template.jinja")]
            command += ["--chat-template-content-format", "string"]
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)

    def __enter__(self) -> Self:
        for _ in range(3000):
            if self._process.poll() is not None:
                break
            try:
                self._connection.request("GET", "/health")
                self._connection.getresponse().read()
            except OSError:
                self._connection.close()
                time.sleep(0.1)
            else:
                return self
        said = self._said()
        self.__exit__()
        raise RuntimeError(f"vllm-rs does not serve: {said}")

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()
        self._scratch.cleanup()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def encode(
        self,
        items: Sequence[Item],
        instructions: str | None,
        tools: Sequence[Item],
        *,
        generate: bool = True,
        **told: Any,
    ) -> list[int]:
        """The prompt's ids; ``told`` is for the template. Raises RefusedError."""
        request: dict[str, Any] = {
            "model": "m",
            "messages": messages(self._template, items, instructions),
            "add_generation_prompt": generate,
            "chat_template_kwargs": told,
        }
        if definitions := naive.tool_definitions(tools):
            request["tools"] = definitions
        body = json.dumps(request).encode()
        headers = {"content-type": "application/json"}
        self._connection.request("POST", "/v1/chat/completions/render", body, headers)
        with self._connection.getresponse() as response:
            answer = json.loads(response.read())
        if response.status != 200:
            raise RefusedError(json.dumps(answer.get("error", answer)))
        ids: list[int] = answer["token_ids"]
        return ids


def messages(template: Template, items: Sequence[Item], instructions: str | None) -> list[Message]:
    """Chat Completions messages; an empty content is a part, since vLLM takes no empty text.

    Where a template takes no system message behind others, that is a user's; but gpt-oss is not
    rendered by its template, and hears the developer.
    """
    chat = generic._identified(naive.messages(items, instructions), items, template.ways)
    if template.vocabulary.name == "gpt-oss":
        front = next((i for i, m in enumerate(chat) if m["role"] != "system"), len(chat))
        for message in chat[front:]:
            if message["role"] == "system":
                message["role"] = "developer"
    else:
        chat = generic._placed(chat, template.ways)
    return [_asked(message) for message in chat]


def _asked(message: Mapping[str, Any]) -> Message:
    asked = {key: value for key, value in message.items() if key != "reasoning_content"}
    if not asked["content"]:
        asked["content"] = [{"type": "text", "text": ""}]
    if "reasoning_content" in message:
        asked["reasoning"] = message["reasoning_content"]
    return asked


def _model(folder: Path, template: Template, model_type: str) -> None:
    """What vLLM reads of a model, without its weights."""
    files = vocabulary.generic_path(template.vocabulary.name)
    (folder / "tokenizer.json").symlink_to((files / "tokenizer.json").resolve())
    tokens = {"bos_token": template.vocabulary.bos, "eos_token": template.vocabulary.eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template.text, encoding="utf-8")
    config = {"model_type": model_type, "architectures": ["ForCausalLM"], "vocab_size": 1 << 18}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
