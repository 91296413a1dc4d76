"""``turnwire check``: whether a model's tokenizer and template are served exactly, at what cost."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwire import config
from turnwire.server.parts import load_profile

COLOURS = {"good": "green", "note": "yellow", "doubt": "bold red"}


def check(
    tokenizer: Annotated[Path, typer.Option(help="Hugging Face folder or GGUF.")],
    *,
    trust: Annotated[
        Literal["strict", "compat"], typer.Option(help="Whether text may spell control tokens.")
    ] = "strict",
    history: Annotated[
        Literal["template", "retain"], typer.Option(help="Whether earlier reasoning stays.")
    ] = "template",
) -> None:
    """Print what a model's files were found to be. Exit with 1 when there is a doubt."""
    settings = config.load(
        None, {"model": {"tokenizer": tokenizer, "trust": trust, "history": history}}
    )
    profile = load_profile(settings, tokenizer)
    findings = profile.audit()
    table = Table(title=escape(f"{profile.name}: {profile.family}, {profile.vocab_size} tokens"))
    table.add_column("", no_wrap=True)
    table.add_column("asked", no_wrap=True)
    table.add_column("found", overflow="fold")
    for topic, verdict, text in findings:
        colour = COLOURS[verdict]
        table.add_row(f"[{colour}]{verdict}[/]", topic, escape(repr(text)[1:-1]))
    Console().print(table)
    if any(verdict == "doubt" for _, verdict, _ in findings):
        raise typer.Exit(1)
