"""turnwire: the Responses API in WebSocket mode for self-hosted models.

``turnwire.app(config)`` is the ASGI app, ``turnwire.Config`` its settings, ``turnwire._core`` the
tokenizing core. The first two need ``pip install 'turnwire[server]'``; everything is imported on
first use, so that one part can be embedded without the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwire._core import __version__
    from turnwire.config import Config
    from turnwire.server.app import app

__all__ = ["Config", "__version__", "app"]


def __getattr__(name: str) -> object:
    """Import each when it is asked for: the protocol needs neither core nor server."""
    if name == "__version__":
        from turnwire._core import __version__  # noqa: PLC0415

        return __version__
    if name == "app":
        from turnwire.server.app import app  # noqa: PLC0415

        return app
    if name == "Config":
        from turnwire.config import Config  # noqa: PLC0415

        return Config
    raise AttributeError(f"module 'turnwire' has no attribute '{name}'")
