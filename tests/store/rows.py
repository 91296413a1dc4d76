"""Rows for the tests of stores."""

from __future__ import annotations

import secrets
from dataclasses import replace

from turnwire.store.base import StoredResponse

START = 1_700_000_000
YEAR = 365 * 24 * 3600


def row(parent: StoredResponse | None = None, **fields) -> StoredResponse:
    """A row with content that no text codec leaves alone."""
    name = f"resp_{secrets.token_hex(8)}"
    made = StoredResponse(
        response_id=name,
        principal="alice",
        created_at=START,
        expires_at=START + YEAR,
        parent_id=parent and parent.response_id,
        input=b'[{"role":"user","content":"\xc3\xa9"}]',
        body=b'{"id":"%b"}' % name.encode(),
        delta=b"\x00\xff'" + name.encode(),
    )
    return replace(made, **fields)
