"""What questions about the cluster cost in requests, whatever it has been through."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.controller.services.cluster_service import ClusterService
from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.model.cluster import StoreLease, registered

QUERY, READ = "query", "read"


@pytest.mark.parametrize("stores", [1, 30])
def test_cost_of_questions(world: StreamWorld, stores: int):
    for number in range(stores):
        lease = StoreLease(f"store-{number}", "h", 1, "z", 100, f"disk-{number}", "", 60_000)
        world.bare_store.write(write_lease(registered(lease, None, 0), None))
    assign_containers(ClusterRecords(world.bare_store), 16, 0)
    service = ClusterService(world.store, 16)
    for _cold_and_warm in range(2):
        world.calls.counts.clear()
        assert len(service.cluster().stores) == stores
        assert dict(world.calls.counts) == {QUERY: 1, READ: 1}
        world.calls.counts.clear()
        assert len(service.containers().containers) == 16
        assert dict(world.calls.counts) == {QUERY: 1, READ: 2}
