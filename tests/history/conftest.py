"""A chunk directory, a bucket and a history service in memory, with every metadata query counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chunk_history import History


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture(scope="session")
def new_history() -> Callable[[], History]:
    """Makes fresh ones, for tests with many examples."""
    return History
