"""Fixtures for everything that needs a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import counting
from oracle import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from running import RunningServer
    from turnwire._core import Profile


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many conversations the oracles have seen."""
    if lines := counting.lines():
        terminalreporter.section("conversations compared with an oracle")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def profile() -> Profile:
    """Qwen3's vocabulary and template, loaded once."""
    from turnwire._core import Profile  # noqa: PLC0415 -- other tests do without the core

    return Profile.load(str(vocabulary.qwen3_path()))


@pytest.fixture
def serve(profile: Profile) -> Iterator[Callable[..., RunningServer]]:
    """Call it with a sim script, another profile if wanted, and settings by section: it serves
    until the test is over."""
    from running import RunningServer  # noqa: PLC0415 -- needs the core

    servers: list[RunningServer] = []

    def start(
        script: dict[str, Any] | None = None, *, of: Profile = profile, **sections: Any
    ) -> RunningServer:
        server = RunningServer(of, script or {}, **sections).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
