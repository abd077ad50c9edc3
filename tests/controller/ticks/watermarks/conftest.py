"""A stream whose writers note their times, on the control plane in memory."""

from __future__ import annotations

from typing import Any

import pytest
from watermark_world import WatermarkWorld, marks_on


@pytest.fixture
def marks(world: Any) -> WatermarkWorld:
    """A stream of two segments whose writers may be silent for a while."""
    return marks_on(world)
