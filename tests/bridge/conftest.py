"""The bridge over memory adapters, asked over a real gRPC connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_in_memory import Bridge
from stream_world_fixtures import world

__all__ = ["world"]


@pytest.fixture
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """A `Bridge` over the fixture `world`."""
    made = Bridge(request.getfixturevalue("world"))
    yield made
    made.close()
