"""The sections of the configuration: each setting with its type, its bounds and what it does.

What stands under a field is its documentation: ``--help`` and ``docs/configuration.md`` show it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

KIB = 1024
MIB = 1024 * KIB

MIN_KEY_LENGTH = 16
"""Shorter API keys can be guessed; the server refuses to start with one."""

HASHED_KEY_PREFIX = "sha256:"


def _split(value: object) -> object:
    """Let a list be written ``a,b`` in an environment variable (JSON works as well)."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            return json.loads(value)
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


Bytes = Annotated[int, Field(ge=KIB)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class Section(BaseModel):
    """One table of the TOML file. Immutable; unknown names are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class ServerSection(Section):
    """Where the server listens, and how it treats clients' sockets."""

    host: str = "127.0.0.1"
    """Address to listen on. One that other machines can reach needs `auth.keys`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8787
    """TCP port; 0 lets the system choose one."""
    root_path: str = ""
    """Path prefix that a reverse proxy strips before it forwards, such as `/llm`."""
    origins: Names = ()
    """Browser origins that may connect, such as `https://app.example`; `*` allows all. Empty: every
    request with an `Origin` header is refused (SDKs and agents send none)."""
    keep_alive_seconds: Seconds = 15.0
    """A response silent for this long repeats `response.in_progress`, so that its client waits."""
    write_deadline_seconds: Seconds = 30.0
    """A client that does not read for this long while events wait for it is cut off."""
    send_buffer_bytes: Annotated[int, Field(ge=4 * KIB)] = 256 * KIB
    """Kernel send buffer (SO_SNDBUF) of a socket: what a slow reader can hide in."""
    request_seconds: Seconds = 10.0
    """A new connection that has not sent a whole request head by then is dropped."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """After SIGTERM, responses in flight may take this long. A second signal ends them at once."""
    drain_jitter_seconds: Annotated[float, Field(ge=0)] = 1.0
    """While draining, idle sockets are closed spread over this time, lest all reconnect at once."""


class WebSocketSection(Section):
    """What is particular to WebSocket."""

    enabled: bool = True
    """Off: upgrades are answered 426, which sends clients to HTTP on the same path at once."""
    compression: bool = False
    """Offer permessage-deflate. It costs half of the throughput and 35 KiB per connection."""
    ping_seconds: Seconds = 20.0
    """Interval of protocol-level pings."""
    ping_timeout_seconds: Seconds = 20.0
    """A client that leaves a ping unanswered for this long is gone."""


class LimitsSection(Section):
    """How much of everything. Beyond a limit the client is told, never dropped silently."""

    frame_bytes: Bytes = 32 * MIB
    """Largest WebSocket message; beyond it the socket closes with 1009."""
    body_bytes: Bytes = 32 * MIB
    """Largest HTTP request body; beyond it 413."""
    connections: Count = 1024
    """Open WebSocket connections; beyond it 429."""
    connections_per_principal: Count = 256
    """The same for one API key; beyond it 429."""
    turns: Count = 256
    """Responses in progress in the whole server; beyond it 429."""
    turns_per_principal: Count = 128
    """The same for one API key; beyond it 429."""
    active_per_connection: Count = 16
    """Responses in progress on one connection; more of them wait."""
    lanes_per_connection: Annotated[int, Field(ge=0)] = 32
    """Distinct `stream_id`s that one connection may name in its life; beyond it 400."""
    queued_per_connection: Count = 64
    """Requests that may wait on one connection; beyond it 429."""
    queued_bytes_per_connection: Bytes = 64 * MIB
    """Bytes of such requests; beyond it 429."""
    connection_seconds: Seconds = 3600.0
    """Lifetime of a connection. After it, what is in flight finishes and nothing new starts."""
    unread_replies: Count = 1024
    """Error replies that may wait for a client that sends but does not read; beyond it, cut off."""


class AuthSection(Section):
    """Who may connect."""

    keys: dict[str, SecretStr] = Field(default_factory=dict)
    """API keys by name: a key itself (at least 16 characters), or `sha256:` and its SHA-256 in hex.
    Without keys everyone may connect, on loopback only."""
    anonymous: Literal["loopback", "everywhere"] = "loopback"
    """Where callers need no key when there is none. `everywhere`: you have a gate of your own."""

    @field_validator("keys")
    @classmethod
    def _strong(cls, keys: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, key in keys.items():
            value = key.get_secret_value()
            if value.startswith(HASHED_KEY_PREFIX):
                digest = value.removeprefix(HASHED_KEY_PREFIX).lower()
                if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
                    raise ValueError(f"the SHA-256 of key '{name}' must be 64 hexadecimal digits")
            elif len(value) < MIN_KEY_LENGTH:
                raise ValueError(f"key '{name}' is shorter than {MIN_KEY_LENGTH} characters")
        return keys


class ModelSection(Section):
    """What is served, under which name."""

    name: str | None = None
    """Name that clients ask for. Default: the engine's own name for its model."""
    aliases: Names = ()
    """Other names that mean the same model; `*` accepts any name."""
    tokenizer: Path | None = None
    """Hugging Face folder or GGUF with vocabulary and template. Default: the engine's own file. A
    folder's `generation_config.json` says how to sample what requests leave open."""
    trust: Literal["strict", "compat"] = "strict"
    """`strict`: text can never become a control token. `compat`: token for token what vLLM does."""
    history: Literal["template", "retain"] = "template"
    """What becomes of earlier reasoning. `template`: what the model's template does with it, mostly
    to drop it at the next question. `retain`: it stays, by the template's own switch (refused
    without)."""
    verify_one_in: Annotated[int, Field(ge=0)] = 256
    """One turn in so many is rendered again in full, beside the turns, and compared: a difference
    is logged, and the template itself renders every prompt from then on. 0: none."""


class EngineSection(Section):
    """Who samples."""

    kind: Literal["llamacpp", "vllm", "sglang", "sim"] = "llamacpp"
    """`llamacpp`: llama.cpp, in a child process unless there is a `url`. `vllm`, `sglang`: such a
    server at `url`. `sim`: scripted answers by a clock, no model."""
    url: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    """Where the engine serves, such as `http://gpu-1:8000`. It then needs `model.tokenizer`."""
    api_key: SecretStr | None = None
    """Key that the engine at `url` wants."""
    model: str | None = None
    """The engine's own name for its model. Default: the first that it lists."""
    priorities: bool = False
    """Send priorities: warm-ups then yield to turns. vLLM must run with `--scheduling-policy
    priority`, SGLang with `--enable-priority-scheduling`."""
    cache_salt: Literal["organisation", "principal", "none"] = "organisation"
    """Who may find whose tokens in the prefix cache of vLLM or SGLang, and notice by its speed.
    `none`: everybody. There are no organisations yet: each API key stands for one of its own."""
    cache_salt_secret: Annotated[SecretStr, Field(min_length=MIN_KEY_LENGTH)] | None = None
    """What the salts are made from. Default: random at each start, which then finds nothing cached;
    several turnwires share a cache if they share this."""
    start_seconds: Seconds = 120.0
    """How long the start waits for the engine at `url` to be ready."""
    connect_seconds: Seconds = 5.0
    """How long that engine may take to accept a connection."""
    first_token_seconds: Seconds = 300.0
    """How long it may take from there to the first token: it queues, and reads the prompt."""
    silence_seconds: Seconds = 60.0
    """How long it may be silent between two tokens; beyond it the turn fails."""
    prompt_text_bytes: Bytes = 64 * MIB
    """Prompts kept as JSON for that engine, so that each turn writes only what is new."""
    gguf: Path | None = None
    """Model file for llama.cpp. Default: the demo model, SmolLM2-135M-Instruct."""
    context_length: Count | None = None
    """Tokens of prompt and output that one request may hold. Default: what the model allows."""
    kv_tokens: Count | None = None
    """Tokens of llama.cpp's KV cache, for all requests together. Default: its own choice."""
    parallel: Count = 4
    """Requests that llama.cpp samples at once; more of them wait."""
    threads: Count | None = None
    """Threads of llama.cpp. Default: one on a machine of two cores, else half of the cores."""
    script: Path | None = None
    """JSON script of the sim's answers. Default: a built-in one."""
    disagreement: Literal["refuse", "warn"] = "refuse"
    """When the engine's own tokenizer or template gives other tokens than ours for the probes of
    the start. `refuse`: the start fails. `warn`: only the log says so."""
    prewarm: bool = True
    """After a `generate: false` request, fill the engine's prefix cache in the background."""


class ToolsSection(Section):
    """What becomes of the tools that a client offers."""

    hosted: Literal["leave_out", "refuse"] = "leave_out"
    """Tools that OpenAI would run itself, such as `web_search`, which nothing runs here.
    `leave_out`: the model is not told of them, nor are they echoed (Codex offers one by default).
    `refuse`: 400."""


class StoreSection(Section):
    """Where responses with `store: true` (the default) are kept."""

    kind: Literal["memory", "sqlite", "postgres", "redis"] | None = None
    """`memory`: this process only; a restart forgets all. `sqlite`: a file. `postgres`, `redis` (or
    Valkey, but no cluster): a database, which several servers may share; they need
    `turnwire[postgres]` or `turnwire[redis]`. Default: `sqlite` for `turnwire serve`, `memory` for
    an app that is mounted."""
    path: Path | None = None
    """The file of `sqlite`. Default: `turnwire/responses.sqlite3` in `$XDG_DATA_HOME`, else in
    `~/.local/share`."""
    url: SecretStr | None = None
    """Where the database is: `postgresql://user:password@host/name`, or `redis://host:6379/0`."""
    ttl_seconds: Annotated[int, Field(ge=0)] = 30 * 24 * 3600
    """How long a response is kept; 0 keeps it for ever. OpenAI keeps them for 30 days."""
    queue: Count = 1024
    """Responses that may wait to be written while the database is down; beyond it, requests with
    `store: true` get 503."""
    queue_bytes: Bytes = 256 * MIB
    """Bytes of such responses; beyond it the same."""
    nodes: Count = 256
    """Stored responses whose tokens stay in memory, ready to be continued; those of others are read
    from the store."""
    max_responses: Count = 1024
    """Responses that `memory` keeps; beyond it the least recently used one is forgotten."""


class MemorySection(Section):
    """What is remembered of conversations, so that one which comes again is not rendered again.

    In memory only: nothing of it touches a disk.
    """

    prefix_scope: Literal["principal", "connection", "off"] = "principal"
    """Whose conversations a request may be recognised in: those of the same API key, those of the
    same WebSocket connection, or none."""
    bytes: Bytes = 1024 * MIB
    """Tokens and items kept for that; beyond it the least recently used are forgotten."""
    ttl_seconds: Count = 3600
    """What nobody has continued for this long is forgotten."""


class LogSection(Section):
    """What is written to standard error. Prompts, outputs and keys never are."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    access: bool = True
    """One line per request: method, path without query, status, milliseconds."""
    debug: bool = False
    """Record each turn's token counts and times, and serve them at `GET /debug/turns`; serve a
    turn's tokens to its owner at `GET /debug/turns/RESPONSE_ID` (`turnwire dump`)."""
    debug_turns: Count = 512
    """How many such records are kept."""
