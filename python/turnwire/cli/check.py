"""``turnwire check``: whether a model's tokenizer and template are served exactly, at what cost."""

from __future__ import annotations

import asyncio
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwire import config
from turnwire.errors import ProfileError
from turnwire.server.agreement import check_agreement
from turnwire.server.parts import load_profile, prompts_of, remote_engine

if TYPE_CHECKING:
    from turnwire._core import Profile
    from turnwire.engine.base import Engine

Finding: TypeAlias = "tuple[str, Literal['good', 'note', 'doubt'], str]"

START_SECONDS = 5.0
"""How long an engine may take to be there: it is asked, not started."""

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
    engine: Annotated[
        str | None, typer.Option(help="URL of an engine that is asked whether it agrees.")
    ] = None,
    kind: Annotated[
        Literal["vllm", "sglang", "llamacpp"], typer.Option(help="What runs at that URL.")
    ] = "vllm",
) -> None:
    """Print what a model's files were found to be. Exit with 1 when there is a doubt."""
    model = {"tokenizer": tokenizer, "trust": trust, "history": history}
    server = {"kind": kind, "url": engine, "start_seconds": START_SECONDS} if engine else {}
    settings = config.load(None, {"model": model, "engine": server})
    profile = load_profile(settings, tokenizer)
    findings = profile.audit()
    if engine is not None:
        findings += asyncio.run(_ask(remote_engine(settings), profile))
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


async def _ask(engine: Engine, profile: Profile) -> list[Finding]:
    """Compare an engine that runs with the profile."""
    try:
        await engine.start()
        agreed = await check_agreement(engine, profile, prompts_of(profile))
    except ProfileError as error:
        return [("engine", "doubt", error.message)]
    finally:
        await engine.close()
    if not agreed:
        return [("engine", "note", "it offers nothing to compare with")]
    return [("engine", "good", f"the same tokens: {one}") for one in agreed]
