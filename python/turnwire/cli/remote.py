"""Asking a server that runs: JSON from one of its paths."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, cast

from turnwire.errors import StartupError

TIMEOUT = 5.0
"""Seconds for a request that is not a turn."""


def get(url: str, path: str, api_key: str) -> dict[str, Any]:
    """Return what ``path`` of the server at ``url`` says. Raises StartupError with the reason."""
    request = urllib.request.Request(  # noqa: S310 -- the user's own address
        url.rstrip("/") + path, headers={"Authorization": f"Bearer {api_key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            return cast("dict[str, Any]", json.load(answer))
    except urllib.error.HTTPError as error:
        raise StartupError(f"{url}{path} answered {error.code}{_reason(error)}.") from error
    except (OSError, ValueError) as error:
        raise StartupError(
            f"No turnwire answers at {url}. Start one: turnwire serve --debug"
        ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return ": " + cast("str", json.load(error)["error"]["message"]).rstrip(".")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
