"""A world of one container: what is lost and restored is all there is."""

from __future__ import annotations

import pytest
from store_world import World


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)
