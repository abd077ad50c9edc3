"""A world of one container whose segments may leave memory, and what that asks of the metadata store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from idle_segments import IDLE_S
from store_world import World

from headrace.metadata.evicted_segment import SEGMENT_SORT


@pytest.fixture
def world(make_world: type[World]):
    world = make_world(container_count=1)
    world.limits = replace(world.limits, idle_segment_s=IDLE_S, idle_segments_kept=0)
    return world


@pytest.fixture
def calls(world: World):
    """Counts queries of the metadata store, reads and writes of segments' records, and the records looked up."""
    counted = Counter()
    honest_get, honest_write, honest_query = world.metadata.get_many, world.metadata.write, world.metadata.query

    def get_many(keys):
        if all(key.sort == SEGMENT_SORT for key in keys):
            counted["reads"] += 1
            counted["records"] += len(keys)
        return honest_get(keys)

    def write(*writes):
        if any(write.key.sort == SEGMENT_SORT for write in writes):  # snapshots are written when they are due
            counted["writes"] += 1
        return honest_write(*writes)

    def query(*args, **fields):
        counted["queries"] += 1
        return honest_query(*args, **fields)

    world.metadata.get_many, world.metadata.write, world.metadata.query = get_many, write, query
    return counted
