"""A world whose tables outgrow memory soon."""

from __future__ import annotations

import pytest
from small_tables import SMALL, CountedStorage
from store_world import World


@pytest.fixture
def small_world(make_world: type[World]):
    return make_world(table_limits=SMALL, chunks=CountedStorage())
