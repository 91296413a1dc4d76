"""Our own access log: uvicorn's writes the query string, where clients put keys.

Method, path, status and duration; never a query, a header or a body.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from starlette.types import Scope

log = logging.getLogger("turnwire.access")


class Access:
    """One request or socket, from its arrival to its line in the log."""

    def __init__(self, scope: Scope) -> None:
        self.status: int | None = None
        self.close_code: int | None = None
        self._scope = scope
        self._started_at = time.perf_counter()

    def write(self) -> None:
        """Write the line."""
        log.info(
            "%s %s %s%s %.1f ms",
            self._scope.get("method", "GET"),
            quote(self._scope["path"]),  # a decoded path may hold line breaks
            "-" if self.status is None else self.status,
            "" if self.close_code is None else f" closed {self.close_code}",
            1000 * (time.perf_counter() - self._started_at),
        )


def route_path(scope: Scope) -> str:
    """Return the path below where the app is mounted, without a final slash."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        path = path.removeprefix(root)
    return path.rstrip("/") or "/"
