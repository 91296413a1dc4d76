"""What a model says while pushes are measured, and the same measured in Rust, without the wall."""

from __future__ import annotations

import csv
import json
import subprocess
from typing import TYPE_CHECKING, Any

from agent import ROOT, TOOLS
from models import MODELS, folder_of, profile_of

if TYPE_CHECKING:
    from pathlib import Path

    from turnwire import _core

PUSHES = (1, 4, 32)
SAYS = ("reasoning", "text", "arguments")


def opened(chains: _core.Chains, says: str) -> _core.Turn:
    """A turn in which the model may say that: some think only when they are asked to."""
    effort = "medium" if says == "reasoning" else None
    return chains.open(None, b'"Say it."', tools=json.dumps(TOOLS).encode(), effort=effort)


def sampled(model: str, says: str) -> list[int]:
    """The ids of an answer of about 1,500 tokens in one of its parts: a page of documentation."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    arguments = json.dumps({"path": "a.md", "text": text}, ensure_ascii=False)
    call = {"name": "write_file", "arguments": arguments}
    answer = {"calls": [call]} if says == "arguments" else {says: text}
    return profile_of(model).encode_output(json.dumps(answer).encode())


def in_rust(example: Path) -> list[dict[str, Any]]:
    """Rows of ``rust/core/examples/push.rs``, which was built to this path."""
    named = [word for model in MODELS for word in (model, str(folder_of(model)))]
    done = subprocess.run([str(example), *named], capture_output=True, text=True, check=True)
    return [
        {
            "contender": f"push in Rust, {row['says']}, {row['model']}",
            "push_ids": int(row["push_ids"]),
            "new_tokens": int(row["ids"]),
            "us_per_token": round(float(row["median_us"]) / int(row["ids"]), 3),
            "rounds": 101,
        }
        | {key: float(row[key]) for key in ("median_us", "min_us", "q1_us", "q3_us")}
        for row in csv.DictReader(done.stdout.splitlines())
    ]
