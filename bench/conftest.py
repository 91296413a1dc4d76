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
from typing import TYPE_CHECKING, Any

import pytest

import push

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    parser.addoption("--push-example", type=Path, help="rust/core/examples/push.rs, built")
    parser.addoption("--part", default="", help="a word for its name where not all is measured")
    parser.addoption("--load", default="", help="what else ran meanwhile, for the record")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def measured(benchmark: Any, request: pytest.FixtureRequest) -> Any:
    """Call it after the measurement with what the row is about."""

    def add(*, per_token: bool = False, **about: Any) -> None:
        if benchmark.stats is None:  # --benchmark-disable: run for correctness only
            return
        stats = benchmark.stats.stats
        if per_token:
            about["us_per_token"] = round(stats.median * 1e6 / about["new_tokens"], 3)
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
    if example := config.getoption("--push-example"):
        rows += push.in_rust(example)
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("turns: medians in µs")
    for line in (*_turns([row for row in rows if "history_tokens" in row]), *_pushes(rows)):
        write(line)
    if config.getoption("--record"):
        path = _write(rows, part=config.getoption("--part"), load=config.getoption("--load"))
        write(f"written: {path}")


def _turns(rows: list[dict[str, Any]]) -> Iterator[str]:
    medians = {(row["contender"], row["history_tokens"]): row["median_us"] for row in rows}
    contenders = sorted({contender for contender, _ in medians})
    sizes = sorted({size for _, size in medians})
    width = 2 + max(map(len, contenders), default=0)
    yield f"{'history':>10}" + "".join(f"{contender:>{width}}" for contender in contenders)
    for size in sizes:
        cells = (medians.get((contender, size)) for contender in contenders)
        yield f"{size:>10}" + "".join(f"{cell or '-':>{width}}" for cell in cells)
    for contender in contenders:
        for short, long in ((1_000, 200_000), (10_000, 1_000_000)):
            small, large = (medians.get((contender, size)) for size in (short, long))
            if small and large:
                yield f"{contender}: {long:,} / {short:,} = {large / small:.2f}"
    for size in sizes:
        for above, below in RATIOS:
            pair = (medians.get((above, size)), medians.get((below, size)))
            if pair[0] and pair[1]:
                yield f"at {size}: {above} / {below} = {pair[0] / pair[1]:,.1f}"


def _pushes(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if "us_per_token" in row:
            yield f"{row['contender']}, {row['push_ids']} a push: {row['us_per_token']} µs a token"


def _write(rows: list[dict[str, Any]], *, part: str, load: str) -> Path:
    date = dt.datetime.now(dt.UTC).date().isoformat()
    machine = re.sub(r"\W+", "-", _cpu()).strip("-").lower()
    path = RECORD / ("-".join(filter(None, (date, machine, part))) + ".csv")
    RECORD.mkdir(exist_ok=True)
    setting = {
        "date": date,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": " ".join([f"{os.getloadavg()[0]:.1f}", load]).strip(),
        "python": platform.python_version(),
        **{
            name: version(name)
            for name in ("turnwire", "tokenizers", "jinja2", "fastokens", "minijinja")
        },
    }
    with path.open("w", newline="") as file:
        columns = dict.fromkeys(column for row in rows for column in row)
        writer = csv.DictWriter(file, [*setting, *columns], lineterminator="\n")
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
