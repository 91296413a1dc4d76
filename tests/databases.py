"""Private database servers for tests: started on a free port, gone with the test session."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Database:
    """A server process in a folder of its own, which can be stopped and started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="turnwire-database-", dir="/tmp"))
        self.port = free_port()
        self.child: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    self.await_readiness()
                    return
            except (OSError, subprocess.CalledProcessError):
                said = (self.folder / "log").read_text()
                assert self.child.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)

    def await_readiness(self) -> None:
        """Raises CalledProcessError while it listens and does not serve."""

    def stop(self) -> None:
        if self.child is not None:
            self.child.send_signal(signal.SIGINT)
            self.child.wait(20)
            self.child = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(Database):
    """Redis, or Valkey. Everything that it is sent is also in its folder."""

    def __init__(self) -> None:
        super().__init__()
        self.binary = shutil.which("redis-server") or shutil.which("valkey-server")
        assert self.binary, "redis-server or valkey-server is needed: see .ci/run"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        assert self.binary is not None
        options = ["--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]
        folder = ["--dir", str(self.folder), "--port", str(self.port)]
        return [self.binary, *options, *folder]


class Postgres(Database):
    """PostgreSQL, as another user where this one is root."""

    def __init__(self) -> None:
        super().__init__()
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        on_path = shutil.which("initdb")
        assert found or on_path, "postgresql is needed: see .ci/run"
        self.bin = found[-1].parent if found else Path(str(on_path)).parent
        self.prefix: list[str] = []
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
            self.prefix += ["--clear-groups", "--"]
        self.user = "turnwire"
        made = [str(self.bin / "initdb"), "-D", str(self.folder / "files"), "-U", self.user]
        made += ["--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run([*self.prefix, *made], check=True, stdout=subprocess.DEVNULL, cwd="/")

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "fsync=off"]
        settings += [f"unix_socket_directories={self.folder}"]
        options = [part for setting in settings for part in ("-c", setting)]
        return [
            *self.prefix,
            str(self.bin / "postgres"),
            "-D",
            str(self.folder / "files"),
            *options,
        ]

    def await_readiness(self) -> None:
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", self.user]
        asked = [str(self.bin / "pg_isready"), *where]
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL, cwd="/")
