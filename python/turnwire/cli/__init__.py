"""The ``turnwire`` command. ``main`` is its entry point."""

from __future__ import annotations

import sys

SERVER_LIBRARIES = frozenset(
    {
        "pydantic",
        "pydantic_settings",
        "rich",
        "starlette",
        "typer",
        "uvicorn",
        "uvloop",
        "websockets",
    }
)


def main() -> None:
    """Run the command line; say what to install when only the core is there."""
    try:
        from turnwire.cli.commands import run  # noqa: PLC0415 -- needs the server's libraries
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVER_LIBRARIES:
            raise
        sys.exit(f"turnwire: {error.name} is not installed. Try: pip install 'turnwire[server]'")
    run()
