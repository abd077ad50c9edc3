"""Decisions of operators about logs: what is refused, what is written, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.watched_ports import Calls, WatchedStore
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.api.cluster import EpochsRaised
from headrace.controller.services import cluster_service
from headrace.controller.services.cluster_service import EPOCH_JUMP_MAX, ClusterLogService
from headrace.metadata.cluster_records import (
    ClusterRecords,
    find_claim,
    write_claim,
    write_lease,
    write_snapshot_pointer,
)
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import ContainerHold, ReplicationStatus, StoreLease, left, lost, registered, task_stopped
from headrace.model.container_logs import (
    NO_COPIES,
    REPLICA_ID_BYTES,
    ContainerLog,
    LogState,
    ReplicaId,
    emptied,
    open_ledger,
)
from headrace.model.containers import ContainerClaim, SnapshotPointer
from headrace.model.errors import (
    ConflictError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)

CONTAINERS = 4
NOW_MS = 1_000_000
CLAIM = ContainerClaim("a", "h", 1, "za")


def replica(name: str) -> ReplicaId:
    return ReplicaId(name.encode().ljust(REPLICA_ID_BYTES))


A, B, C = map(replica, "abc")
LOG = open_ledger(None, 0, 7, (A, B, C), 5, 3)


class Cluster:
    """Three stores that replicate, on a metadata store that counts."""

    def __init__(self) -> None:
        self.calls, self.bare = Calls(), MemoryMetadataStore(TornReads(0))
        self.store = WatchedStore(self.bare, self.calls)
        self.service = ClusterLogService(self.store, CONTAINERS)
        self.records = ContainerLogRecords(self.bare)
        for name in "abc":
            new = StoreLease(name, "h", 1, f"z{name}", 100, "disk", f"task-{name}", 0)
            new = replace(new, replica_id=replica(name).hex(), replica_port=2)
            self.bare.write(write_lease(registered(new, None, NOW_MS), None))

    def lease(self, name: str) -> StoreLease:
        stored = ClusterRecords(self.bare).lease(name)
        assert stored is not None
        return stored.lease

    def replace_lease(self, lease: StoreLease) -> None:
        stored = ClusterRecords(self.bare).lease(lease.store_id)
        assert stored is not None
        self.bare.write(write_lease(lease, stored.version))

    def stop_tasks(self, names: str) -> None:
        for name in names:
            self.replace_lease(task_stopped(self.lease(name), NOW_MS))

    def log(self, container: int, log: ContainerLog) -> None:
        self.records.replace_unowned(container, log, 0)


@pytest.fixture
def cluster() -> Cluster:
    """Container 1 has a log of three members."""
    made = Cluster()
    made.log(1, LOG)
    return made


def test_each_container_is_told_with_its_log(cluster: Cluster):
    cluster.log(2, emptied(LOG, 90))
    cluster.replace_lease(replace(cluster.lease("b"), replication=ReplicationStatus(blocked=(1, 9))))
    cluster.calls.counts.clear()
    none, found, empty, _ = cluster.service.logs().logs
    assert cluster.calls.counts == {"query": 2}
    assert (none.state, none.version, none.complete, none.blocked) == (None, 0, True, False)
    assert (found.state, found.version, found.copies) == (LogState.OPEN, 1, 3)
    assert [(each.epoch, each.first) for each in found.ledgers] == list(LOG.ledgers)
    assert [(each.store, each.zone, each.may_be_removed) for each in found.members] == [
        ("a", "za", False),
        ("b", "zb", False),
        ("c", "zc", False),
    ]
    assert (found.complete, found.blocked) == (True, True)
    assert (empty.state, empty.next_entry, empty.complete, empty.members) == (LogState.EMPTY, 90, True, ())


def test_a_log_with_a_destroyed_member_is_not_complete(cluster: Cluster):
    cluster.stop_tasks("c")
    log = cluster.service.logs().logs[1]
    assert not log.complete
    assert [each.may_be_removed for each in log.members] == [False, False, True]
    cluster.replace_lease(replace(cluster.lease("b"), replica_id=replica("new").hex()))
    member = cluster.service.logs().logs[1].members[1]
    assert (member.store, member.zone, member.may_be_removed) == (None, None, True)


def test_the_member_that_is_left_becomes_the_log(cluster: Cluster):
    cluster.stop_tasks("bc")
    cluster.calls.counts.clear()
    after = cluster.service.accept_loss(1, [B, C], 1)
    assert cluster.calls.counts == {"read": 1, "query": 1, "transaction": 1}
    assert [each.replica for each in after.members] == [A.hex()]
    assert cluster.records.read(1) == (replace(LOG, members=(A,)), 2)
    assert cluster.service.logs().logs[1] == after


def test_a_log_of_which_no_member_is_left_is_lost(cluster: Cluster):
    cluster.stop_tasks("abc")
    after = cluster.service.accept_loss(1, [A, B, C], 1)
    assert (after.state, after.members, after.ledgers) == (LogState.LOST, (), ())
    assert cluster.records.read(1).version == 2


@pytest.mark.parametrize("end", [lambda lease: lease, lambda lease: lost(lease, NOW_MS), lambda lease: left(lease, 9)])
def test_a_replica_of_a_store_that_may_run_is_kept(cluster: Cluster, end):
    cluster.stop_tasks("c")
    cluster.replace_lease(end(cluster.lease("b")))
    with pytest.raises(IllegalStateError, match="may run"):
        cluster.service.accept_loss(1, [B, C], 1)
    assert cluster.records.read(1) == (LOG, 1)


def test_a_loss_that_recovery_survives_is_not_accepted(cluster: Cluster):
    cluster.stop_tasks("c")
    with pytest.raises(IllegalStateError, match="2 members remain"):
        cluster.service.accept_loss(1, [C], 1)


def test_losses_of_strangers_are_refused(cluster: Cluster):
    for wrong in ([], [replica("x")]):
        with pytest.raises(InvalidRequestError, match="name lost members"):
            cluster.service.accept_loss(1, wrong, 1)
    for container in (2, CONTAINERS, -1):
        with pytest.raises(NotFoundError):
            cluster.service.accept_loss(container, [A], 1)
    with pytest.raises(ConflictError, match="changed"):
        cluster.service.accept_loss(1, [A], 2)


def test_a_store_that_comes_back_meanwhile_is_a_conflict(cluster: Cluster):
    cluster.stop_tasks("bc")

    def come_back() -> None:
        cluster.replace_lease(registered(cluster.lease("b"), cluster.lease("b"), NOW_MS))

    with (
        cluster.calls.overtaken("transaction", come_back),
        pytest.raises(ConflictError, match="look at it again"),
    ):
        cluster.service.accept_loss(1, [B, C], 1)
    assert cluster.records.read(1) == (LOG, 1)


def test_without_an_answer_the_operator_looks_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    cluster.stop_tasks("bc")

    def throttled(*_writes: object) -> None:
        raise ThrottledError("slow down")

    monkeypatch.setattr(cluster.bare, "write", throttled)
    with pytest.raises(UnavailableError, match="look whether"):
        cluster.service.accept_loss(1, [B, C], 1)


def test_open_logs_are_not_reduced_to_one_copy(cluster: Cluster):
    cluster.log(0, emptied(LOG, 90))
    with pytest.raises(IllegalStateError, match="containers 1 are open"):
        cluster.service.set_copies(1)
    assert cluster.records.read(0) == (emptied(LOG, 90), 1)


def test_copies_of_emptied_logs_change(cluster: Cluster):
    empty = emptied(LOG, 90)
    cluster.records.replace_unowned(1, empty, 1)
    cluster.log(3, replace(LOG, copies=1, members=(A,)))
    done = cluster.service.set_copies(1)
    assert (done.copies, done.changed, done.kept) == (1, (1,), ())
    assert cluster.records.read(1) == (replace(empty, copies=1), 3)
    done = cluster.service.set_copies(3)
    assert (done.copies, done.changed, done.kept) == (3, (1,), (3,))
    assert cluster.records.read(1) == (empty, 4)
    assert cluster.service.set_copies(3).changed == ()
    with pytest.raises(InvalidRequestError, match="1 or 3"):
        cluster.service.set_copies(2)


def epochs(cluster: Cluster) -> list[int | None]:
    claims = [find_claim(cluster.bare, container) for container in range(CONTAINERS)]
    return [None if each is None else each[1] for each in claims]


@pytest.mark.parametrize("is_open", [True, False])
def test_logs_whose_entries_are_objects_keep_no_copies(cluster: Cluster, is_open: bool):
    """An open one does not keep the logs of stores from being reduced, and no owner would extend it."""
    log = open_ledger(None, 0, 7, (), 5, NO_COPIES)
    log = log if is_open else emptied(log, 90)
    cluster.log(0, log)
    cluster.records.replace_unowned(1, emptied(LOG, 90), 1)
    for copies in (1, 3):
        done = cluster.service.set_copies(copies)
        assert (done.changed, done.kept) == ((1,), ())
    assert cluster.records.read(0) == (log, 1)


def test_epochs_are_raised_above_the_given_one(cluster: Cluster):
    for container, count in ((0, 1), (1, 4), (2, 9)):
        for epoch in range(count):
            cluster.bare.write(write_claim(container, CLAIM, None if epoch == 0 else epoch - 1))
    assert epochs(cluster) == [0, 3, 8, None]
    done = cluster.service.raise_epochs(5)
    assert (done.raised, done.remaining) == ((0, 1), ())
    assert epochs(cluster) == [6, 6, 8, None]
    claim = find_claim(cluster.bare, 0)
    assert claim is not None
    assert claim[0] == CLAIM
    assert cluster.service.raise_epochs(5).raised == ()


def test_epochs_are_raised_in_several_requests(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_service, "CLAIM_WRITES_PER_REQUEST", 10)
    for container in range(3):
        cluster.bare.write(write_claim(container, CLAIM, None))
    requests: list[EpochsRaised] = []
    while not requests or requests[-1].remaining:
        requests.append(cluster.service.raise_epochs(7))
    assert [(each.raised, each.remaining) for each in requests] == [((0,), (1, 2)), ((1,), (2,)), ((2,), ())]
    assert epochs(cluster) == [8, 8, 8, None]


def test_a_clean_container_stays_clean_at_a_higher_epoch(cluster: Cluster):
    for container in (0, 1):
        cluster.bare.write(write_claim(container, CLAIM, None))
    cluster.bare.write(write_snapshot_pointer(0, SnapshotPointer("o", 1, 1, 0, clean=True), None))
    cluster.service.raise_epochs(3)
    clean, held = ClusterRecords(cluster.bare).containers([0, 1])
    assert (clean.hold, clean.epoch) == (None, 4)
    assert held.hold == ContainerHold("a", 4)


def test_an_owner_that_claims_meanwhile_is_left_for_later(cluster: Cluster):
    cluster.bare.write(write_claim(0, CLAIM, None))
    with cluster.calls.overtaken("write", lambda: cluster.bare.write(write_claim(0, CLAIM, 0))):
        assert cluster.service.raise_epochs(3).remaining == (0,)
    assert cluster.service.raise_epochs(3).raised == (0,)
    assert epochs(cluster)[0] == 4


@pytest.mark.parametrize("above", [-1, EPOCH_JUMP_MAX + 1])
def test_an_epoch_that_no_store_names_is_refused(cluster: Cluster, above: int):
    cluster.bare.write(write_claim(0, CLAIM, None))
    with pytest.raises(InvalidRequestError, match="is not an epoch"):
        cluster.service.raise_epochs(above)
