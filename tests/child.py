"""``turnwire serve`` as a process of its own: what it says, where it is, what it weighs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest


class Child:
    """``turnwire serve`` as a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.started_at = time.monotonic()
        self.listener: threading.Thread | None = None
        self.files = tempfile.mkdtemp(prefix="turnwire-child-")
        self.child = subprocess.Popen(
            [sys.executable, "-c", "from turnwire.cli import main; main()", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"XDG_DATA_HOME": self.files, **os.environ, "COLUMNS": "200"},
        )

    def until(self, words: str) -> str:
        seen = ""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            seen += line
            if words in line:
                return seen
        pytest.fail(f"it never said {words!r}:\n{seen}")

    def url(self) -> str:
        """Where it serves WebSocket, once it has said so."""
        said = self.until("client.responses.connect()")
        found = re.search(r"ws://127.0.0.1:\d+\S*", said)
        assert found is not None, said
        # A server that nobody listens to stops when the pipe is full.
        self.listener = threading.Thread(target=self.child.communicate, daemon=True)
        self.listener.start()
        return found[0]

    def resident(self) -> int:
        """Bytes of memory that it holds."""
        statm = Path(f"/proc/{self.child.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        try:
            if self.listener is None:
                self.child.communicate(timeout=15)
            else:
                self.listener.join(15)
        finally:
            self.child.kill()
            shutil.rmtree(self.files, ignore_errors=True)
        return self.child.wait()
