"""Who is calling: API keys, and which browser pages may call at all.

Keys are compared as SHA-256 digests with :func:`hmac.compare_digest`, all of them every time, so
neither a key nor how many there are leaks through timing. Only digests are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwire.config.sections import HASHED_KEY_PREFIX
from turnwire.errors import AuthenticationError, OriginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Principal:
    """Who pays and owns. Stored responses and limits belong to one."""

    name: str


ANONYMOUS = Principal("anonymous")
"""Everyone, when no keys are configured (loopback only, see ``Config.check``)."""


class KeyRing:
    """The API keys by name. Without any, callers are anonymous, on loopback or ``everywhere``."""

    def __init__(self, keys: Mapping[str, str], *, everywhere: bool = False) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}
        self._everywhere = everywhere

    def identify(self, authorization: str | None, *, listener: str | None = None) -> Principal:
        """Return the principal of an ``Authorization`` header. Raises AuthenticationError.

        ``listener`` is our own address on the caller's connection. It is checked for each caller
        because a mounted app does not know where its host listens. Without configured keys any
        header is accepted there: SDKs insist on sending some key.
        """
        if not self._digests:
            if not self._everywhere and is_public_address(listener):
                raise AuthenticationError(
                    "This server has no API keys and serves this machine only."
                )
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthenticationError("Missing API key. Send 'Authorization: Bearer <key>'.")
        offered = hashlib.sha256(token.strip().encode()).digest()
        found: str | None = None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, offered):
                found = name
        if found is None:
            raise AuthenticationError("Incorrect API key provided.")
        return Principal(found)


def is_public_address(host: str | None) -> bool:
    """Whether ``host`` is an IP address that other machines can reach (a name or a path is not)."""
    try:
        return host is not None and not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    if key.startswith(HASHED_KEY_PREFIX):
        return bytes.fromhex(key.removeprefix(HASHED_KEY_PREFIX))
    return hashlib.sha256(key.encode()).digest()


class OriginPolicy:
    """Which browser origins may connect.

    A browser sends ``Origin`` with every WebSocket handshake and lets any page open one to
    localhost, so an unlisted origin is refused (cross-site WebSocket hijacking). Programs send
    none.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)

    def check(self, origin: str | None) -> None:
        """Raise OriginError for an origin that is not listed.

        ``null`` (a sandboxed page, a file) passes only when it is listed by that name, or all are.
        """
        if origin is None or "*" in self._allowed or origin.lower() in self._allowed:
            return
        raise OriginError("This server does not accept requests from this origin.")
