"""Fixtures of the engine tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# With importlib import mode pytest puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from engine_support import ByteEncoder


@pytest.fixture
def encoder() -> ByteEncoder:
    return ByteEncoder()
