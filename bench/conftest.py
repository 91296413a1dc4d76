"""Writes what was measured to ``bench/record/DATE-MACHINE.csv`` (with ``--record``) and prints the
ratios that matter."""

from __future__ import annotations

import csv
import datetime as dt
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).parent / "record"

RATIOS = (
    ("jinja2 + HF", "turnwire extend"),
    ("minijinja + fastokens", "turnwire extend"),
    ("minijinja + fastokens, segment cache", "turnwire extend"),
    ("minijinja + fastokens", "turnwire generic"),
    ("turnwire found", "msgspec parse"),
    ("json.dumps", "prompt text"),
    ("msgspec dump", "prompt text"),
)
"""What the project claims, each side measured in the same run."""

PACKAGES = ("turnwire", "tokenizers", "jinja2", "fastokens", "minijinja")

ROWS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write bench/record/DATE-MACHINE.csv")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def measured(benchmark: Any, request: pytest.FixtureRequest) -> Any:
    """Call it after the measurement with what the row is about."""

    def add(**about: Any) -> None:
        if benchmark.stats is None:  # --benchmark-disable: run for correctness only
            return
        stats = benchmark.stats.stats
        request.config.stash[ROWS].append(
            about
            | {
                "rounds": stats.rounds,
                "median_us": round(stats.median * 1e6, 1),
                "min_us": round(stats.min * 1e6, 1),
                "q1_us": round(stats.q1 * 1e6, 1),
                "q3_us": round(stats.q3 * 1e6, 1),
            }
        )

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("turns: medians in µs")
    medians = {(row["contender"], row["history_tokens"]): row["median_us"] for row in rows}
    contenders = sorted({contender for contender, _ in medians})
    sizes = sorted({size for _, size in medians})
    width = 2 + max(map(len, contenders))
    write(f"{'history':>10}" + "".join(f"{contender:>{width}}" for contender in contenders))
    for size in sizes:
        cells = (medians.get((contender, size)) for contender in contenders)
        write(f"{size:>10}" + "".join(f"{cell or '-':>{width}}" for cell in cells))
    for contender in contenders:
        small, large = (medians.get((contender, size)) for size in (10_000, 1_000_000))
        if small and large:
            write(f"{contender}: 1M / 10k = {large / small:.2f}")
    for size in sizes:
        for above, below in RATIOS:
            pair = (medians.get((above, size)), medians.get((below, size)))
            if pair[0] and pair[1]:
                write(f"at {size}: {above} / {below} = {pair[0] / pair[1]:,.1f}")
    if config.getoption("--record"):
        write(f"written: {_write(rows)}")


def _write(rows: list[dict[str, Any]]) -> Path:
    date = dt.datetime.now(dt.UTC).date().isoformat()
    machine = re.sub(r"\W+", "-", _cpu()).strip("-").lower()
    path = RECORD / f"{date}-{machine}.csv"
    RECORD.mkdir(exist_ok=True)
    setting = {
        "date": date,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{
            name: version(name)
            for name in ("turnwire", "tokenizers", "jinja2", "fastokens", "minijinja")
        },
    }
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*setting, *rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(setting | row for row in rows)
    return path


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return re.sub(r"\((R|TM)\)|CPU|@.*", "", found[1]).strip() if found else platform.machine()
