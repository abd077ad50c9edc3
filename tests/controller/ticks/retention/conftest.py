"""Ticks of retention over the world of a test."""

from __future__ import annotations

from typing import Any

import pytest
from retention_world import Retention


@pytest.fixture
def retention(world: Any) -> Retention:
    return Retention(world)
