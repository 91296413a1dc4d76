"""``turnwire dump``: a response's tokens, span by span, from a server that runs ``--debug``."""

from __future__ import annotations

import urllib.parse
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from turnwire.cli.remote import get

ORIGINS = {"rendered": "default", "sampled": "bold green", "reencoded": "bold yellow"}
"""How each origin is shown; the legend names them too, for terminals without colour."""

KINDS = {"header": "cyan", "item": "blue", "generation_prompt": "magenta", "sampled": "green"}


def dump(
    response_id: Annotated[str, typer.Argument(help="As the response says it: resp_…")],
    *,
    url: Annotated[str, typer.Option(help="Where turnwire serves.")] = "http://127.0.0.1:8787",
    api_key: Annotated[
        str, typer.Option(help="Key of the response's owner.", envvar="OPENAI_API_KEY")
    ] = "local",
    ids: Annotated[bool, typer.Option("--ids", help="Show token ids too.")] = False,
) -> None:
    """Print a response's tokens: where each came from, which item it is, and its text."""
    found = get(url, f"/debug/turns/{urllib.parse.quote(response_id, safe='')}", api_key)
    console = Console(highlight=False)
    console.print(
        f"{found['response_id']}: {found['tokens']} tokens, {found['profile']} ({found['family']})",
        markup=False,
    )
    for span in found["spans"]:
        first, end = span["items"]
        items = ", ".join(
            f"{number} {kind}"
            for number, kind in zip(range(first, end), span["item_types"], strict=True)
        )
        head = Text(f"{span['start']:>7}…{span['end']:<7}", style="dim")
        head.append(f" {span['kind']}", style=KINDS[span["kind"]])
        head.append(f" {span['origin']}", style=ORIGINS[span["origin"]])
        head.append(f" {items}", style="dim")
        console.print(head)
        # As Python writes it: a newline, an escape or a bidi mark must not act on the terminal.
        console.print(Text(f"        {span['text']!r}", style=ORIGINS[span["origin"]]))
        if ids:
            console.print(Text(f"        {span['token_ids']}", style="dim"))
