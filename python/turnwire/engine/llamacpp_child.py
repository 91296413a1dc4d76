"""The llama.cpp server as a process of its own: a crash in native code ends only this process.

Run as a script by :mod:`turnwire.engine.llamacpp_supervisor`, so it imports nothing of turnwire.
The first line of standard input is a JSON object of settings; afterwards standard input is the
leash: its end means that the parent is gone, however it went, and this process ends too.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def _end_with_parent(directory: str) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)  # nobody else is left to do it
    os._exit(0)


def _params(xllamacpp: ModuleType, settings: dict[str, Any]) -> object:
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.hostnames = [settings["socket"]]
    params.n_ctx = settings["kv_tokens"]
    params.n_parallel = settings["slots"]
    params.n_batch = params.n_ubatch = settings["batch_tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.slot_save_path = settings["slot_directory"]
    params.endpoint_slots = True
    params.ui = False
    params.verbosity = settings["verbosity"]
    # One KV cache for all slots: a slot is then only a name, and many short chains fit.
    params.kv_unified = True
    # The parent chooses slots. A copy of every idle slot to RAM would cost per turn what the
    # history is long, and choosing by similarity overwrites chains that share a long beginning.
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    params.slot_prompt_similarity = 0.0
    # Sizes are the parent's to choose; fitting would change the context length behind its back.
    params.fit_params = False
    return params


def main() -> int:
    """Serve until the parent ends. Returns an exit status."""
    # The terminal's Ctrl-C goes to the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        sys.stderr.write(f"cannot import xllamacpp: {error}\n")
        return 3
    leash = (settings["slot_directory"],)
    threading.Thread(target=_end_with_parent, args=leash, daemon=True).start()
    try:
        server = xllamacpp.Server(_params(xllamacpp, settings))
    except Exception as error:  # noqa: BLE001 -- whatever it was, the parent reads it here
        sys.stderr.write(f"llama.cpp did not start: {error}\n")
        return 1
    threading.Event().wait()
    del server
    return 0


if __name__ == "__main__":
    # Without the interpreter's own shutdown, which would wait for llama.cpp's threads.
    status = main()
    sys.stderr.flush()
    os._exit(status)
