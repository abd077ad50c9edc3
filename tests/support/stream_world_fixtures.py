"""The fixture `world` of the control plane in memory, for conftests."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld


@pytest.fixture
def world() -> StreamWorld:
    """A fresh `StreamWorld`."""
    return StreamWorld()
