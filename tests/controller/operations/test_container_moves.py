"""Lost stores are found and their containers moved, whoever looks, wherever it dies, however many look at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from interruptions import Work, assert_crashes_lose_and_double_nothing, assert_two_at_once_do_it_once

from fuzz.watched_ports import Calls, WatchedStore
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.controller.ticks.assign_containers import (
    assign_containers,
    detect_failed_stores,
    end_lease_of_task,
    take_unassigned,
)
from headrace.metadata.cluster_records import (
    ClusterRecords,
    claim_body,
    claim_sort,
    snapshot_body,
    snapshot_sort,
    write_lease,
)
from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome
from headrace.model.cluster import (
    STORE_FORGOTTEN_AFTER_MS,
    UNHEARD_S,
    ContainerMap,
    StoreLease,
    StoreState,
    registered,
    renewed,
)
from headrace.model.container_logs import REPLICA_ID_BYTES, ContainerLog, ReplicaId, emptied, open_ledger
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import Create, Key, Replace, WriteConflictError

CONTAINERS = 8
GRACE_MS = 60_000


class Cluster:
    """Stores that are leases only, on a metadata store that counts and breaks."""

    def __init__(self, *names: str, replicates: bool = False) -> None:
        self.replicates = replicates
        self.clock, self.calls, self.bare = ManualClock(), Calls(), MemoryMetadataStore(TornReads(0))
        self.store = WatchedStore(self.bare, self.calls)
        self.records = ClusterRecords(self.bare)
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        former = self.records.lease(name)
        new = StoreLease(name, "h", 1, f"zone-{name}", 100, f"disk-{name}", f"task-{name}", GRACE_MS)
        if self.replicates:
            new = replace(new, take_over_after_ms=0, replica_id=replica(name).hex(), replica_port=2)
        lease = registered(new, former.lease if former else None, self.clock.now_ms())
        self.bare.write(write_lease(lease, former.version if former else None))

    def renew(self, *names: str) -> None:
        for name in names:
            stored = self.records.lease(name)
            assert stored is not None
            self.bare.write(write_lease(renewed(stored.lease, self.clock.now_ms()), stored.version))

    def claim(self, container: int, name: str, *, clean: bool = False) -> None:
        key = Key(CLUSTER_PARTITION, claim_sort(container))
        found, body = self.bare.get(key), claim_body(ContainerClaim(name, "h", 1, f"zone-{name}"))
        self.bare.write(Create(key, body) if found is None else Replace(key, body, found.version))
        if clean:
            epoch = 0 if found is None else found.version + 1
            pointer = snapshot_body(SnapshotPointer("o", 1, 1, epoch, clean=True))
            self.bare.write(Create(Key(CLUSTER_PARTITION, snapshot_sort(container)), pointer))

    def log(self, container: int, log: ContainerLog) -> None:
        assert ContainerLogRecords(self.bare).replace_unowned(container, log, 0) is LogWriteOutcome.WRITTEN

    def look(self) -> Any:
        return detect_failed_stores(self.store, self.clock, CONTAINERS)

    @property
    def map(self) -> ContainerMap:
        return self.records.container_map().map

    def everything(self) -> list[Any]:
        records = self.bare.query(CLUSTER_PARTITION, limit=1000).records
        return [(record.key, record.body) for record in records]


def replica(name: str) -> ReplicaId:
    return ReplicaId(name.encode().ljust(REPLICA_ID_BYTES))


def settled(*names: str, replicates: bool = False) -> Cluster:
    """A cluster whose stores have opened what the map gives them, and flushed the first containers."""
    cluster = Cluster(*names, replicates=replicates)
    cluster.look()
    for container, owner in cluster.map.stores.items():
        cluster.claim(container, owner, clean=container < 3)
    cluster.calls.counts.clear()
    return cluster


def lose(cluster: Cluster, name: str, *others: str) -> None:
    """Let the lease of a store run out and not the others'. With copies, peers would have noticed its end before."""
    cluster.clock.advance(12_001)
    cluster.renew(*others)
    if cluster.replicates:
        assert cluster.look().newly_lost == ()
        cluster.clock.advance(int(UNHEARD_S * 1000))
        cluster.renew(*others)


def test_a_new_cluster_is_spread_over_its_stores():
    cluster = Cluster("a", "b", "c")
    seen = cluster.look()
    assert (seen.stores_serving, seen.stores_lost, seen.moved) == (3, (), tuple(range(8)))
    assert [len(cluster.map.containers_of(name)) for name in "abc"] == [3, 3, 2]


def test_what_a_look_costs():
    cluster = settled("a", "b")
    cluster.look()
    assert cluster.calls.counts == {"query": 1, "read": 1}
    lose(cluster, "b", "a")
    cluster.calls.counts.clear()
    cluster.look()
    assert cluster.calls.counts == {"query": 3, "read": 2, "write": 2}
    cluster.calls.counts.clear()
    cluster.look()
    assert cluster.calls.counts == {"query": 3, "read": 3}, "waiting for a store"
    cluster.clock.advance(GRACE_MS)
    cluster.renew("a")
    cluster.calls.counts.clear()
    cluster.look()
    assert cluster.calls.counts == {"query": 3, "read": 3, "transaction": 1}


def test_tiered_containers_leave_a_lost_store_before_the_others():
    cluster = settled("a", "b")
    assert cluster.map.containers_of("b") == (1, 3, 5, 7)
    lose(cluster, "b", "a")
    seen = cluster.look()
    assert (seen.newly_lost, seen.stores_lost, seen.moved, seen.discarded_logs) == (("b",), ("b",), (1,), ())
    cluster.clock.advance(GRACE_MS - 1)
    cluster.renew("a")
    assert cluster.look().moved == ()
    cluster.clock.advance(1)
    seen = cluster.look()
    assert (seen.newly_lost, seen.stores_lost, seen.moved, seen.discarded_logs) == ((), ("b",), (3, 5, 7), (3, 5, 7))
    assert cluster.map.containers_of("a") == tuple(range(8))


def test_replicated_containers_move_to_members_at_once():
    cluster = settled("a", "b", "c", "d", replicates=True)
    mine = cluster.map.containers_of("b")
    assert len(mine) == 2
    for container, member in zip(mine, "dc", strict=True):
        cluster.log(container, open_ledger(None, 0, 0, (replica("b"), replica(member)), 0, 3))
    lose(cluster, "b", "a", "c", "d")
    seen = cluster.look()
    assert (seen.newly_lost, seen.moved, seen.discarded_logs) == (("b",), mine, ())
    assert [cluster.map.stores[each] for each in mine] == ["d", "c"]
    assert set(cluster.map.discarded_logs) == {each for each in mine if each >= 3}


def test_one_copy_of_a_log_is_lost_with_its_store():
    cluster = settled("a", "b", replicates=True)
    cluster.log(3, open_ledger(None, 0, 0, (replica("b"),), 0, 1))
    lose(cluster, "b", "a")
    assert cluster.look().discarded_logs == (3,), "the logs of 5 and 7 were never opened"


def test_a_store_that_comes_back_in_time_finds_its_containers():
    cluster = settled("a", "b")
    lose(cluster, "b", "a")
    cluster.look()
    cluster.start("b")
    assert cluster.look().stores_lost == ()
    assert set(cluster.map.containers_of("b")) >= {3, 5, 7}
    assert len(cluster.map.containers_of("b")) == 4


def test_a_renewal_beats_a_look_that_read_before_it():
    cluster = settled("a")
    cluster.clock.advance(12_001)

    with cluster.calls.overtaken("write", lambda: cluster.renew("a")):
        assert cluster.look().newly_lost == ()
    stored = cluster.records.lease("a")
    assert stored is not None
    assert stored.lease.state is StoreState.SERVING


def test_a_log_is_kept_when_its_store_comes_back():
    cluster = settled("a", "b")
    lose(cluster, "b", "a")
    cluster.look()
    cluster.clock.advance(GRACE_MS)
    cluster.renew("a")

    with cluster.calls.overtaken("transaction", lambda: cluster.start("b")):
        seen = cluster.look()
    assert (seen.discarded_logs, seen.stores_lost) == ((), ())
    assert set(cluster.map.containers_of("b")) >= {3, 5, 7}


def test_a_stopped_task_ends_only_the_leases_of_its_stores():
    cluster = settled("a", "b")
    assert end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "task-x").moved == ()
    assert end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "").moved == ()
    seen = end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "task-b")
    assert (seen.newly_lost, seen.moved, seen.discarded_logs) == (("b",), (1, 3, 5, 7), (3, 5, 7))
    again = end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "task-b")
    assert (again.moved, again.discarded_logs) == ((), ())


def test_a_store_that_ended_long_ago_is_forgotten():
    cluster = settled("a", "b")
    end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "task-b")
    for container in range(CONTAINERS):
        cluster.claim(container, "a")
    cluster.clock.advance(STORE_FORGOTTEN_AFTER_MS)
    cluster.renew("a")
    cluster.look()
    assert [stored.lease.store_id for stored in cluster.records.leases()] == ["a"]


def test_a_store_that_is_a_member_is_not_forgotten():
    cluster = settled("a", "b", replicates=True)
    log = open_ledger(None, 0, 0, (replica("a"), replica("b")), 0, 3)
    cluster.log(3, log)
    end_lease_of_task(cluster.store, cluster.clock, CONTAINERS, "task-b")
    for container in range(CONTAINERS):
        cluster.claim(container, "a")
    cluster.clock.advance(STORE_FORGOTTEN_AFTER_MS)
    cluster.renew("a")
    cluster.look()
    assert [stored.lease.store_id for stored in cluster.records.leases()] == ["a", "b"]
    ContainerLogRecords(cluster.bare).replace_unowned(3, emptied(log, 90), 1)
    cluster.look()
    assert [stored.lease.store_id for stored in cluster.records.leases()] == ["a"]


def test_a_store_takes_its_share_of_what_nobody_has():
    cluster = Cluster("a", "b")
    cluster.claim(2, "elsewhere")
    taken = take_unassigned(ClusterRecords(cluster.store), "a", (0, 2, 4))
    assert taken.stores == {0: "a", 4: "a"}
    assert cluster.calls.counts == {"read": 2, "write": 1}
    cluster.calls.counts.clear()
    assert take_unassigned(ClusterRecords(cluster.store), "b", (0, 1, 4)).stores == {0: "a", 1: "b", 4: "a"}
    assert take_unassigned(ClusterRecords(cluster.store), "b", (1,)) == cluster.map


@pytest.mark.parametrize("work", [assign_containers, take_unassigned])
def test_a_map_that_changes_all_the_time_is_a_conflict(work: Callable[..., Any]):
    cluster = Cluster("a")

    def refused(*writes: Any) -> None:
        raise WriteConflictError("somebody was faster", {0: None})

    cluster.bare.write = refused
    with pytest.raises(ConflictError, match="others are changing"):
        work(cluster.records, *((8, 0) if work is assign_containers else ("a", (0, 1))))


def _lost() -> Cluster:
    cluster = settled("a", "b", "c")
    lose(cluster, "b", "a", "c")
    return cluster


def _lost_at_the_end_of_its_grace() -> Cluster:
    cluster = _lost()
    cluster.look()
    cluster.clock.advance(GRACE_MS)
    cluster.renew("a", "c")
    return cluster


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("accept", [_lost, _lost_at_the_end_of_its_grace])
def test_a_crash_anywhere_in_a_look_leaves_the_same_map(accept: Callable[[], Cluster], done: bool):
    assert assert_crashes_lose_and_double_nothing(Work(accept, Cluster.look, Cluster.everything), done=done) >= 5


def test_two_looks_at_once_at_any_moment_are_one():
    assert assert_two_at_once_do_it_once(Work(_lost, Cluster.look, Cluster.everything)) >= 5
