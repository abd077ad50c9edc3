"""The bridge over memory adapters, asked over a real gRPC connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bridge_in_memory import Bridge
from stream_world import StreamWorld
from stream_world_fixtures import world

from headrace.controller.services.stream_service import StreamService

__all__ = ["world"]


@pytest.fixture
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """A `Bridge` over the fixture `world`."""
    made = Bridge(request.getfixturevalue("world"))
    yield made
    made.close()


@pytest.fixture
def bridge_with_s3(world: StreamWorld) -> Iterator[Bridge]:
    """As `bridge`, in a deployment with containers whose logs are in S3."""
    world.streams = StreamService(world.store, world.queue, world.clock, s3_containers=4)
    made = Bridge(world)
    yield made
    made.close()
