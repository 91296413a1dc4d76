"""How evenly one connection's tokens arrive while another one opens a long prompt.

The long prompts come from a process of their own (``python -m streams``), so that what is measured
is the server, and not this interpreter's lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from websockets.sync.client import connect

SCRIPT = {
    "tokens_per_second": 200,
    "prefill_tokens_per_second": 1_000_000_000,
    "rules": [{"when": {"contains": "speak"}, "answer": {"text": "word " * 20_000}}],
    "default": {"answer": {"text": "ok"}},
}
"""200 tokens a second for whoever asks it to speak, "ok" at once for a long prompt."""

INTERVAL = 1 / 200


def request(text: str) -> str:
    frame = {"type": "response.create", "model": "sim", "input": text, "store": False}
    return json.dumps(frame)


def largest_gaps(url: str, *, prompts: int, words: int) -> tuple[list[float], list[float]]:
    """The largest pause between two events of a stream, in seconds, for each of some stretches.

    First without anything beside it, then while another client sends a prompt of so many words
    (about three tokens each) that the server has never seen.
    """
    quiet: list[float] = []
    loud: list[float] = []
    with connect(url, proxy=None, max_size=None) as stream:
        stream.send(request("speak"))
        for _ in range(20):
            stream.recv(10)
        for _ in range(prompts):
            until = time.monotonic() + 0.5
            quiet.append(_largest(stream, lambda until=until: time.monotonic() > until))
        busy, idle = threading.Event(), threading.Event()
        command = [sys.executable, "-m", "streams", url, str(prompts), str(words)]
        folder = Path(__file__).parent
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as other:
            follower = threading.Thread(target=_follow, args=(other, busy, idle))
            follower.start()
            while len(loud) < prompts:
                _largest(stream, busy.is_set)
                loud.append(_largest(stream, idle.is_set))
                idle.clear()
            follower.join()
        assert other.returncode == 0
    return quiet, loud


def _largest(stream: object, enough: object) -> float:
    before, largest = time.monotonic(), 0.0
    while not enough():  # type: ignore[operator]
        stream.recv(10)  # type: ignore[attr-defined]
        now = time.monotonic()
        before, largest = now, max(largest, now - before)
    return largest


def _follow(other: subprocess.Popen[str], busy: threading.Event, idle: threading.Event) -> None:
    """Pass on what the other client says: that it begins with a prompt, that it has its answer."""
    assert other.stdout is not None
    for line in other.stdout:
        if line == "begin\n":
            busy.set()
        else:
            busy.clear()
            idle.set()


def main(url: str, prompts: int, words: int) -> None:
    """Send prompts that are long and new, each on a connection of its own."""
    for number in range(prompts):
        text = request(" ".join(f"word{number}x{index}" for index in range(words)))
        with connect(url, proxy=None, max_size=None) as socket:
            print("begin", flush=True)
            socket.send(text)
            while json.loads(socket.recv(60))["type"] != "response.completed":
                pass
            print("end", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
