"""Random histories of streams."""

from __future__ import annotations

import pytest
from stream_histories import SLOTS, Histories, random_histories


@pytest.fixture(scope="session")
def histories() -> Histories:
    """A strategy: `histories(scales_max=6)` gives lists of epochs."""
    return random_histories


@pytest.fixture(scope="session")
def slot_count() -> int:
    return SLOTS
