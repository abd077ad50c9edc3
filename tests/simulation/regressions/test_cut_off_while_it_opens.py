"""A store that is cut off from all others while it opens containers: those are served by others before the cut ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from simulation.draws import Draws
from simulation.scheduler import SECOND
from simulation.store_level.cluster import StoreCluster
from simulation.store_level.swarm import draw_store_swarm

SEED = 7
STARTED_WITHIN = 10 * SECOND
SERVED_WITHIN = 60 * SECOND
CUT = 100 * SECOND


@pytest.fixture
def cluster() -> Iterator[StoreCluster]:
    """Three stores without faults, which start at the same moment."""
    draws = Draws(SEED)
    swarm = replace(draw_store_swarm(draws), stores=3, containers=3, start_every=0, scheduled={}, request={})
    assert swarm.copies == 3
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    cluster = StoreCluster(draws, swarm)
    yield cluster
    cluster.loop.dispose()
    logging.disable(disabled)


def test_containers_of_a_store_that_is_cut_off_are_served(cluster: StoreCluster):
    def opens_something() -> bool:
        first = cluster.stores[0]
        return first is not None and first.store is not None and bool(first.store.openings)

    assert cluster.replicas is not None
    cluster.start()
    cluster.loop.run_until(STARTED_WITHIN, opens_something)
    assert opens_something()
    cluster.loop.run_now(partial(cluster.replicas.cut, 0, None, CUT))
    assert not cluster.is_served_without(0)
    cluster.loop.run_until(cluster.loop.scheduler.now + SERVED_WITHIN, partial(cluster.is_served_without, 0))
    assert cluster.is_served_without(0)
