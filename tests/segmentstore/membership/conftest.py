"""A world of a few containers in which no member does anything by itself."""

from __future__ import annotations

import pytest
from cluster_members import CONTAINERS
from store_world import World

from segmentstore_fargate import heartbeat as heartbeat_module
from segmentstore_fargate import membership as membership_module


@pytest.fixture
def world(make_world: type[World], monkeypatch):
    monkeypatch.setattr(heartbeat_module, "HEARTBEAT_EVERY_S", 1e6)
    monkeypatch.setattr(membership_module, "WAITING_POLL_S", 0.001)
    return make_world(container_count=CONTAINERS)
