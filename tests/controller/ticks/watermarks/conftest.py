"""A stream whose writers note their times, on the control plane in memory."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld
from watermark_world import WatermarkWorld, marks_on


@pytest.fixture
def marks(world: StreamWorld) -> WatermarkWorld:
    """A stream of two segments whose writers may be silent for a while."""
    return marks_on(world)
