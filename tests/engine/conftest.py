"""Fixtures of the engine tests."""

from __future__ import annotations

import pytest

from engine.engine_support import ByteEncoder


@pytest.fixture
def encoder() -> ByteEncoder:
    return ByteEncoder()
