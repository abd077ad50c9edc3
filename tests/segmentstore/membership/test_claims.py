"""A container is claimed from another store only while that store's lease is the ended one that was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords, delete_lease, snapshot_body, snapshot_sort, write_lease
from headrace.model.cluster import ContainerHold, StoreLease, lost, registered, task_stopped
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.ports.metadata_store import Create, Key, Replace, Write
from segmentstore_fargate.registration import claim_free_container, claim_if_unchanged

GRACE_MS = 60_000
HOLDER = StoreLease("a", "h", 1, "z", 100, "disk-a", "task-a", GRACE_MS)
OURS, THEIRS = ContainerClaim("b", "h", 2, "z"), ContainerClaim("a", "h", 1, "z")


class Cluster:
    """Store `a` has claimed container 0, and `b` looks at it."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryMetadataStore()
        self.records = ClusterRecords(self.store)
        self.put(registered(HOLDER, None, self.now_ms))
        assert claim_if_unchanged(self.store, 0, THEIRS, None) == 0
        (self.seen,) = self.records.containers([0])

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def put(self, lease: StoreLease) -> None:
        stored_lease = self.records.lease("a")
        self.store.write(write_lease(lease, stored_lease.version if stored_lease else None))

    @property
    def lease(self) -> StoreLease:
        stored_lease = self.records.lease("a")
        assert stored_lease is not None
        return stored_lease.lease

    def claim(self) -> int | None:
        return claim_free_container(self.records, self.seen, OURS, self.now_ms)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_what_a_store_with_a_lease_holds_is_not_claimed(cluster: Cluster):
    assert cluster.claim() is None
    cluster.clock.advance(10 * GRACE_MS)
    assert cluster.claim() is None, "its lease has run out, and was not ended"


def test_a_lost_store_is_waited_for(cluster: Cluster):
    cluster.put(lost(cluster.lease, cluster.now_ms))
    assert cluster.claim() is None
    cluster.clock.advance(GRACE_MS - 1)
    assert cluster.claim() is None
    cluster.clock.advance(1)
    assert cluster.claim() == 1


def test_a_lost_store_is_not_waited_for_if_the_log_is_in_s3(cluster: Cluster):
    assert claim_if_unchanged(cluster.store, 0, replace(THEIRS, log_in_s3=True), 0) == 1
    (cluster.seen,) = cluster.records.containers([0])
    assert cluster.seen.hold == ContainerHold("a", 1, log_in_s3=True)
    assert cluster.claim() is None, "it serves"
    cluster.put(lost(cluster.lease, cluster.now_ms))
    assert cluster.claim() == 2


def test_a_store_whose_disk_is_gone_is_not_waited_for(cluster: Cluster):
    cluster.put(task_stopped(cluster.lease, cluster.now_ms))
    assert cluster.claim() == 1


def test_a_store_that_nothing_is_known_of_is_not_waited_for(cluster: Cluster):
    stored_lease = cluster.records.lease("a")
    assert stored_lease is not None
    cluster.store.write(delete_lease(stored_lease))
    assert cluster.claim() == 1


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_store_that_comes_back_keeps_what_is_being_claimed(cluster: Cluster, forgotten: bool):
    """Between the look at its lease and the claim."""
    stored_lease = cluster.records.lease("a")
    assert stored_lease is not None
    ended = task_stopped(stored_lease.lease, cluster.now_ms)
    cluster.put(ended)
    if forgotten:
        again = cluster.records.lease("a")
        assert again is not None
        cluster.store.write(delete_lease(again))
    honest = cluster.store.write

    def it_comes_back(*writes: Write) -> None:
        cluster.store.write = honest  # type: ignore[method-assign]
        cluster.put(registered(HOLDER, None if forgotten else ended, cluster.now_ms))
        honest(*writes)

    cluster.store.write = it_comes_back  # type: ignore[method-assign]
    assert cluster.claim() is None
    _, claims = cluster.records.map_and_claims([0])
    assert claims == {0: 0}


def stored(clean: bool, epoch: int) -> dict[str, Any]:
    return snapshot_body(SnapshotPointer("o", 1, 1, epoch, clean))


def test_failed_claim_does_not_delay_other_stores(cluster: Cluster):
    """A store that dies between its claim and its first write has told nothing: tier 2 still has everything."""
    pointer = Key(CLUSTER_PARTITION, snapshot_sort(0))
    cluster.store.write(Create(pointer, stored(clean=True, epoch=0)))
    (cluster.seen,) = cluster.records.containers([0])
    assert cluster.seen.hold is None
    for epoch in (1, 2):
        assert cluster.claim() == epoch
        (cluster.seen,) = cluster.records.containers([0])
        assert cluster.seen.hold is None, "its store may be away for long"
    cluster.store.write(Replace(pointer, stored(clean=False, epoch=0), 0))
    assert cluster.claim() is None, "it serves by now"
    (cluster.seen,) = cluster.records.containers([0])
    assert cluster.seen.hold == ContainerHold("b", 2)


def test_an_older_claim_does_not_say_that_it_told_nothing(cluster: Cluster):
    cluster.store.write(Create(Key(CLUSTER_PARTITION, snapshot_sort(0)), stored(clean=True, epoch=0)))
    assert claim_if_unchanged(cluster.store, 0, OURS, 0) == 1
    (state,) = cluster.records.containers([0])
    assert state.hold == ContainerHold("b", 1)
    assert state.claim == OURS
