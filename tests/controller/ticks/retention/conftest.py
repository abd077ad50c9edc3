"""Ticks of retention over the world of a test."""

from __future__ import annotations

import pytest
from retention_world import Retention
from stream_world import StreamWorld


@pytest.fixture
def retention(world: StreamWorld) -> Retention:
    return Retention(world)
