"""The commands: ``turnwire serve``, ``demo``, ``check``, ``dump``, ``sim`` and ``--version``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from turnwire import __version__, config
from turnwire.cli.check import check
from turnwire.cli.demo import demo
from turnwire.cli.dump import dump
from turnwire.cli.serve import serve_until_stopped
from turnwire.cli.sim import sim
from turnwire.errors import ConfigError, StartupError

cli = typer.Typer(
    help="The Responses API in WebSocket mode for self-hosted models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_CODE = 1


def run() -> None:
    """Run the command line. A StartupError is its message, not a traceback."""
    try:
        cli()
    except StartupError as error:
        Console(stderr=True).print(
            f"[bold red]turnwire:[/] {escape(error.message)}", soft_wrap=True
        )
        raise SystemExit(EXIT_CODE) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"turnwire {__version__}", highlight=False)
        raise typer.Exit


@cli.callback()
def turnwire(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


@cli.command()
def serve(
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file; see docs/configuration.md.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8787].")] = None,
    engine: Annotated[
        Literal["llamacpp", "vllm", "sglang", "sim"] | None,
        typer.Option(help="Who samples [llamacpp]."),
    ] = None,
    vllm_url: Annotated[str | None, typer.Option(help="A vLLM server that samples.")] = None,
    sglang_url: Annotated[str | None, typer.Option(help="An SGLang server that samples.")] = None,
    llamacpp_url: Annotated[
        str | None, typer.Option(help="A llama.cpp server that samples.")
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(help="Model file for llama.cpp [the demo model].")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Hugging Face folder or GGUF [the engine's own].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name that clients ask for.")] = None,
    script: Annotated[Path | None, typer.Option(help="JSON script of the sim.")] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Record turns, for GET /debug/turns.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings in effect, and exit.")
    ] = False,
) -> None:
    """Serve a model. Flags win over TURNWIRE_* variables, those over the file."""
    urls = {"vllm": vllm_url, "sglang": sglang_url, "llamacpp": llamacpp_url}
    kind, url = elsewhere(engine, {name: url for name, url in urls.items() if url is not None})
    given: dict[str, dict[str, object]] = {
        "server": {"host": host, "port": port},
        "engine": {"kind": kind, "url": url, "gguf": gguf, "script": script},
        "model": {"name": model, "tokenizer": tokenizer},
        "log": {"debug": debug or None},
    }
    flags = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in given.items()
    }
    settings = config.load(config_file, flags)
    if settings.store.kind is None:
        lasting = settings.store.model_copy(update={"kind": "sqlite"})
        settings = settings.model_copy(update={"store": lasting})
    if print_config:
        Console().print(config.print_toml(settings), markup=False, highlight=False, soft_wrap=True)
        return
    serve_until_stopped(settings)


def elsewhere(kind: str | None, urls: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the kind of engine and its URL. Raises ConfigError when flags contradict."""
    if not urls:
        return kind, None
    (name, url), *more = urls.items()
    if more or kind not in {None, name}:
        flags = ", ".join(f"--{name}-url" for name in urls)
        raise ConfigError(f"Only one engine samples: {flags} and --engine do not fit together.")
    return name, url


cli.command()(demo)
cli.command()(check)
cli.command()(dump)
cli.command()(sim)
