"""``turnwire demo``: a small real agent against a running server, and what each turn cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from turnwire.cli.remote import get
from turnwire.cli.tools import SAMPLE, FolderTools
from turnwire.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator

Input: TypeAlias = "str | list[dict[str, str]]"

FromSdk: TypeAlias = Any
"""A connection or a response of OpenAI's client, whose event type is a union of seventy."""

QUESTION = (
    "Which file of this folder should I read first? List the files, read one, count its words."
)
LAST_QUESTION = {
    "role": "user",
    "content": "Thank you. Without another call: what is in that file, in one sentence?",
}

STEPS = ("list_files", "read_file", "word_count")
"""The calls that a small model is made to take, one a turn (it never would by itself)."""

MAX_TURNS = 8
"""Where an agent that does not stop calling tools is stopped."""

ANSWER_TOKENS = 64
"""Longest answer: the demo model rambles."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as its client saw it."""

    response_id: str
    said: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    first_event_ms: float


def demo(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8787",
    api_key: Annotated[
        str, typer.Option(envvar="TURNWIRE_API_KEY", help="One of its keys, if it has any.")
    ] = "local",
    folder: Annotated[
        Path | None, typer.Option(help="Folder whose files the tools see [a sample].")
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Make the model call each tool once, as small ones need.")
    ] = True,
) -> None:
    """Run a small agent over WebSocket and show what each turn cost."""
    console = Console()
    with TemporaryDirectory() as sample:
        if folder is None:
            folder = Path(sample)
            for name, text in SAMPLE.items():
                Path(folder, name).write_text(text)
        agent = Agent(_root(url), api_key, FolderTools(folder), force=force)
        console.print(f"[dim]{agent.model} at {url}, {len(agent.tools.names)} files[/]\n")
        turns = []
        for number, turn in enumerate(agent.run(), 1):
            console.print(f"[bold]{number}[/] {turn.said}", highlight=False)
            turns.append(turn)
    console.print()
    console.print(_table(turns, agent.records()))


def _root(url: str) -> str:
    """Return the server's root for any address of it that ``serve`` or a client's setting shows."""
    for ending in ("/", "/responses", "/v1"):
        url = url.removesuffix(ending)
    return f"http{url.removeprefix('ws')}" if url.startswith("ws") else url


class Agent:
    """Asks, calls the tools, and continues with ``previous_response_id`` and what is new."""

    def __init__(self, url: str, api_key: str, tools: FolderTools, *, force: bool) -> None:
        try:
            import openai  # noqa: PLC0415 -- an extra that only the demo needs
            import websockets  # noqa: F401, PLC0415
        except ModuleNotFoundError as error:
            raise StartupError(
                "The demo needs OpenAI's client. Try: pip install 'openai[realtime]'"
            ) from error
        self.tools = tools
        self._url = url
        self._api_key = api_key
        self._force = force
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key)
        self.model = self._get("/v1/models")["data"][0]["id"]

    def run(self) -> Iterator[Turn]:
        """Play the conversation, turn by turn."""
        steps = list(STEPS) if self._force else []
        with self._client.responses.connect() as connection:
            parent: str | None = None
            new: Input = QUESTION
            asked_again = False
            for _ in range(MAX_TURNS):
                step = steps.pop(0) if steps else None
                turn, calls = self._turn(connection, parent, new, step)
                yield turn
                if asked_again and not calls:
                    return
                parent, new = turn.response_id, calls
                working = steps if self._force else calls
                if not working and not asked_again:
                    new, asked_again = [*calls, LAST_QUESTION], True

    def _turn(
        self, connection: FromSdk, parent: str | None, new: Input, step: str | None
    ) -> tuple[Turn, list[dict[str, str]]]:
        choice: Any = "auto" if step is None else {"type": "function", "name": step}
        more = {} if parent is None else {"previous_response_id": parent}
        started_at, first_at = time.perf_counter(), None
        connection.response.create(
            model=self.model,
            input=new,
            tools=self.tools.definitions(),
            tool_choice=choice,
            parallel_tool_calls=False,
            store=False,
            max_output_tokens=ANSWER_TOKENS * 4 if step else ANSWER_TOKENS,
            temperature=0,
            **more,
        )
        for event in connection:
            if first_at is None and event.type == "response.output_item.added":
                first_at = time.perf_counter()
            if event.type in {"error", "response.failed"}:
                error = event.error if event.type == "error" else event.response.error
                raise StartupError(f"The server failed the turn: {error.message}")
            if event.type in {"response.completed", "response.incomplete"}:
                break
        response = event.response
        said, calls = self._act(response)
        return Turn(
            response_id=response.id,
            said=said,
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cached_tokens=response.usage.input_tokens_details.cached_tokens,
            first_event_ms=1000 * ((first_at or time.perf_counter()) - started_at),
        ), calls

    def _act(self, response: FromSdk) -> tuple[str, list[dict[str, str]]]:
        """Run the calls of a response; return what to show, and their outputs."""
        shown, outputs = [], []
        for item in response.output:
            if item.type == "function_call":
                output = self.tools.call(item.name, item.arguments)
                shown.append(f"{item.name}({item.arguments}) → {output}")
                outputs.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": output}
                )
        return "\n  ".join(shown) or response.output_text.strip() or "(nothing)", outputs

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the server's own records by response id; empty unless it runs with --debug."""
        try:
            return {record["response_id"]: record for record in self._get("/debug/turns")["data"]}
        except StartupError:
            return {}

    def _get(self, path: str) -> dict[str, Any]:
        return get(self._url, path, self._api_key)


def _table(turns: list[Turn], records: dict[str, dict[str, Any]]) -> Table:
    table = Table(
        title="What each turn cost",
        caption=None if records else "more columns with: turnwire serve --debug",
    )
    for name in (
        "turn", "prompt tokens", "reused", "newly rendered", "sampled", "open µs",
        "first token ms", "engine cached",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for number, turn in enumerate(turns, 1):
        record = records.get(turn.response_id, {})
        first_ms = record.get("first_token_ms") or turn.first_event_ms
        table.add_row(
            str(number),
            str(turn.input_tokens),
            str(record.get("reused_tokens", "")),
            str(record.get("rendered_tokens", "")),
            str(turn.output_tokens),
            str(record.get("open_micros", "")),
            f"{first_ms:.0f}",
            str(turn.cached_tokens),
        )
    return table
