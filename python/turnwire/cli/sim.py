"""``turnwire sim``: the simulated engine as a process of its own, behind vLLM's dialect."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated, Literal

import typer
import uvloop
from rich.console import Console

from turnwire import config
from turnwire.engine.sim import Script, SimEngine
from turnwire.engine.sim.app import SimApp
from turnwire.engine.sim.fault import WireFault
from turnwire.engine.sim.http import SimServer
from turnwire.server.lifespan import bind
from turnwire.server.parts import load_profile

LOOPBACK = "127.0.0.1"


def sim(
    *,
    tokenizer: Annotated[Path, typer.Option(help="Hugging Face folder or GGUF: the vocabulary.")],
    script: Annotated[Path | None, typer.Option(help="JSON script of the answers.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any.")] = 8788,
    model: Annotated[str, typer.Option(help="Name of the model, for its clients.")] = "sim",
    text_cache: Annotated[
        Literal["all", "none"], typer.Option(help="What of a text peer's history is cached.")
    ] = "all",
    fault: Annotated[
        str | None, typer.Option(help="Spoil every reply: a kind, or JSON; see docs/engines.md.")
    ] = None,
    scale_out: Annotated[
        bool, typer.Option(help="Serve /inference/v1/generate, as vLLM does when asked to.")
    ] = True,
    priorities: Annotated[bool, typer.Option(help="Schedule by priority.")] = False,
) -> None:
    """Serve scripted answers by a clock, as an engine: no model."""
    settings = config.load(None, {"server": {"host": host, "port": port}})
    profile = load_profile(settings, tokenizer)
    play = Script.load(script) if script is not None else Script()
    app = SimApp(
        SimEngine(play, profile, model=model),
        profile,
        fault=WireFault.parse(fault) if fault is not None else None,
        text_cache=text_cache,
        scale_out=scale_out,
        priorities=priorities,
    )
    with bind(settings) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        words = f"sim serves scripted answers, no model, at {url}"
        gc.freeze()
        server = SimServer(app, on_started=lambda: Console().print(words, highlight=False))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[listener]))
