"""Steps of scenarios of costs: the stores of a cluster and the look at them."""

from __future__ import annotations

from cost_world import CostWorld

from headrace import topology
from headrace.controller.ticks.assign_containers import detect_failed_stores
from headrace.metadata.cluster_records import write_lease
from headrace.model.cluster import StoreLease, registered


def joined(world: CostWorld) -> None:
    """Three stores that have their containers."""
    for number in range(3):
        lease = StoreLease(f"store-{number}", "h", 1, f"zone-{number}", 100, f"v{number}", f"task-{number}", 60_000)
        world.bare_store.write(write_lease(registered(lease, None, world.clock.now_ms()), None))
    detect_failed_stores(world.bare_store, world.clock, topology.CONTAINER_COUNT)


def look(world: CostWorld) -> object:
    return detect_failed_stores(world.store, world.clock, topology.CONTAINER_COUNT)
