"""``turnwire serve``: build the parts, say where they are, serve until a signal."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwire import __version__
from turnwire.server.app import TurnwireApp
from turnwire.server.archive import default_path
from turnwire.server.lifespan import bind, serve
from turnwire.server.parts import build

if TYPE_CHECKING:
    import socket

    from turnwire.config import Config
    from turnwire.server.app import Service

CODEX_CONTEXT = 32 * 1024
"""Tokens that Codex needs to be of any use: its first request alone is about 10k (0.171.0)."""


def serve_until_stopped(config: Config) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises StartupError when that cannot begin."""
    log_to_stderr(config)
    with bind(config) as listener:
        parts = build(config, say=Console(stderr=True).print)
        app = TurnwireApp(config, profile=parts.profile, engine=parts.engine)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(app, listener))


async def _serve(app: TurnwireApp, listener: socket.socket) -> None:
    config = app.config
    try:
        with Console(stderr=True).status("starting the engine …"):
            service = await app.startup()
        port = listener.getsockname()[1]
        await serve(app, listener, on_started=lambda: announce(Console(), config, service, port))
    finally:
        await app.shutdown()


def log_to_stderr(config: Config) -> None:
    """Send our log, and uvicorn's warnings, to standard error."""
    level = config.log.level.upper()
    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    logging.getLogger("turnwire").setLevel(level)
    logging.getLogger("turnwire.access").setLevel("INFO" if config.log.access else "WARNING")
    # At "info" it writes query strings, and at "debug" headers with keys.
    logging.getLogger("uvicorn").setLevel("WARNING")


def announce(console: Console, config: Config, service: Service, port: int) -> None:
    """Say what is served, and how to point clients at it."""
    host = config.server.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104 -- compared, not bound
        host = "127.0.0.1"
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    model = service.admission.model
    facts = Table.grid(padding=(0, 2))
    facts.add_row("url", f"[bold]ws://{escape(authority)}/v1/responses[/]  (HTTP on the same path)")
    facts.add_row("model", f"[bold]{escape(model)}[/]{_remark(config)}")
    where = f" at {config.engine.url}" if config.engine.url else ""
    facts.add_row("engine", escape(service.engine.name + where))
    facts.add_row("context", f"{service.engine.context_length} tokens")
    facts.add_row("store", f"{service.recall.store.name}{_lasting(config)}")
    console.print(f"\n[bold]turnwire {__version__}[/]\n", highlight=False)
    console.print(facts, highlight=False, soft_wrap=True)
    key = "local" if not config.auth.keys else "<your key>"
    _print_lines(console, "openai-python", _openai_lines(authority, model, key))
    if service.engine.context_length >= CODEX_CONTEXT:
        _print_lines(console, "Codex, in ~/.codex/config.toml", _codex_lines(authority, model))
    console.print()


def _lasting(config: Config) -> str:
    if config.store.kind == "memory":
        return ": a restart forgets stored responses"
    return f": {config.store.path or default_path()}" if config.store.kind == "sqlite" else ""


def _remark(config: Config) -> str:
    if config.engine.kind == "sim":
        return "  [yellow]sim: scripted answers, no model[/]"
    if config.engine.gguf is None and config.engine.url is None:
        return "  [yellow]demo model: expect weak answers[/]"
    return ""


def _print_lines(console: Console, title: str, lines: str) -> None:
    console.print(f"\n[dim]{title}:[/]", highlight=False)
    console.print(lines, markup=False, highlight=False, soft_wrap=True)


def _openai_lines(authority: str, model: str, key: str) -> str:
    return f"""\
  client = OpenAI(base_url="http://{authority}/v1", api_key="{key}")
  with client.responses.connect() as connection:
      connection.response.create(model="{model}", input="Hello!")
      for event in connection:
          print(event.type)
          if event.type in {{"response.completed", "error"}}:
              break"""


def _codex_lines(authority: str, model: str) -> str:
    return f"""\
  model = "{model}"
  model_provider = "turnwire"
  web_search = "disabled"

  [agents]
  enabled = false

  [model_providers.turnwire]
  name = "turnwire"
  base_url = "http://{authority}/v1"
  wire_api = "responses"
  env_key = "TURNWIRE_API_KEY"
  requires_openai_auth = false
  supports_websockets = true"""
