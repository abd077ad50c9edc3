"""When a process is started again, and when its volume is given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import StoreLease, StoreState, leaving, left, lost, registered
from headrace.model.container_logs import REPLICA_ID_BYTES, ReplicaId, open_ledger
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Page, Write
from segmentstore_fargate.leave import leave_cluster
from segmentstore_fargate.restart_policy import (
    JOURNAL_FAILURES_MAX,
    JOURNAL_FAILURES_WITHIN_S,
    LOOP_EXITS,
    LOOP_REPORTED_EVERY_S,
    LOOP_WITHIN_S,
    RESTART_PAUSE_GROWTH_MAX,
    RESTART_PAUSE_S,
    STEADY_S,
    ExitsInARow,
    JournalFailures,
    RestartLoop,
    restart_pause_s,
)

STORE = StoreLease("store-0", "10.0.0.1", 12345, "use1-az1", 100, "volume", "task", 300_000)


def test_a_process_that_keeps_exiting_is_started_less_often():
    assert [restart_pause_s(exits) for exits in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert restart_pause_s(10_000) == RESTART_PAUSE_S * RESTART_PAUSE_GROWTH_MAX


def test_a_process_that_ran_steadily_comes_back_at_once():
    exits = ExitsInARow()
    assert [exits.note(ran_s) for ran_s in (0.1, 0.1, STEADY_S, 0.1, 100.0)] == [1, 2, 1, 2, 1]


@given(st.lists(st.floats(0, 2 * JOURNAL_FAILURES_WITHIN_S), max_size=8))
def test_the_third_failure_in_ten_minutes_ends_the_volume(gaps_s):
    failures, times_s, now_s = JournalFailures(), [], 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        times_s.append(now_s)
        recent = [time_s for time_s in times_s if now_s - time_s <= JOURNAL_FAILURES_WITHIN_S]
        assert failures.note(now_s) is (len(recent) >= JOURNAL_FAILURES_MAX)


@given(st.lists(st.floats(0, LOOP_WITHIN_S / 4), max_size=5 * LOOP_EXITS))
def test_a_process_that_does_not_stay_up_is_reported(gaps_s):
    loop, times_s, reported_s = RestartLoop(), [0.0], []
    assert not loop.note(0.0)
    for gap_s in gaps_s:
        times_s.append(times_s[-1] + gap_s)
        now_s = times_s[-1]
        recent = [time_s for time_s in times_s if now_s - time_s <= LOOP_WITHIN_S]
        is_new = not reported_s or now_s - reported_s[-1] >= LOOP_REPORTED_EVERY_S
        assert loop.note(now_s) is (len(recent) >= LOOP_EXITS and is_new)
        if len(recent) >= LOOP_EXITS and is_new:
            reported_s.append(now_s)


def test_the_longest_pauses_do_not_hide_a_loop():
    """Each run takes up to a minute, as that of a process which dies while it recovers."""
    loop, now_s, reports = RestartLoop(), 0.0, 0
    for exits in range(1, 31):
        now_s += LOOP_WITHIN_S / LOOP_EXITS - restart_pause_s(exits)
        reports += loop.note(now_s)
        now_s += restart_pause_s(exits)
    assert reports >= 20


@dataclass(frozen=True)
class Cluster:
    """Stores a to c, each with a copy of the logs of containers 0 and 1."""

    store: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)

    def __post_init__(self) -> None:
        for name in "abc":
            self.store.write(write_lease(registered(_store(name), None, NOW_MS), None))
        log = open_ledger(None, 0, 0, tuple(map(_replica, "abc")), 0, 3)
        for container in range(CONTAINERS):
            ContainerLogRecords(self.store).replace_unowned(container, log, 0)

    def lease(self, name: str) -> StoreLease:
        stored_lease = ClusterRecords(self.store).lease(name)
        assert stored_lease is not None
        return stored_lease.lease

    def leave(self, name: str) -> bool:
        return leave_cluster(self.store, name, CONTAINERS, NOW_MS)


CONTAINERS, NOW_MS = 2, 1_000


def _replica(name: str) -> ReplicaId:
    return ReplicaId(name.encode().ljust(REPLICA_ID_BYTES))


def _store(name: str) -> StoreLease:
    return replace(STORE, store_id=name, replica_id=_replica(name).hex(), replica_port=1)


def test_a_process_whose_volume_failed_leaves_the_cluster():
    cluster = Cluster()
    assert cluster.leave("a")
    assert cluster.lease("a").state is StoreState.LEFT
    assert cluster.lease("a").ended_ms == NOW_MS


def test_volumes_that_fail_together_do_not_all_end():
    """All members of a log can meet the same defect, or a full volume, within a second."""
    cluster = Cluster()
    assert [cluster.leave(name) for name in "abc"] == [True, False, False]
    assert [cluster.lease(name).state for name in "bc"] == [StoreState.SERVING] * 2


def test_the_first_of_two_members_may_leave():
    """An entry is acknowledged when both have it, so the other one has everything."""
    cluster = Cluster()
    log = open_ledger(None, 0, 0, (_replica("a"), _replica("b")), 0, 3)
    for container in range(CONTAINERS):
        ContainerLogRecords(cluster.store).replace_unowned(container, log, 1)
    assert [cluster.leave(name) for name in "abc"] == [True, False, True]


def test_stores_that_leave_at_the_same_moment_see_each_other():
    cluster = Cluster()
    write, entered = cluster.store.write, list[object]()

    def after_another(*writes: Write) -> None:
        if not entered:
            entered.append("b")
            entered.append(cluster.leave("b"))
        write(*writes)

    cluster.store.write = after_another  # type: ignore[method-assign]
    assert not cluster.leave("a")
    assert entered == ["b", True]
    assert cluster.lease("a").state is StoreState.SERVING


@pytest.mark.parametrize("ended", [left, lost])
def test_a_lease_that_has_ended_stays_as_it_is(ended: Callable[[StoreLease, int], StoreLease]):
    cluster = Cluster()
    stored_lease = ClusterRecords(cluster.store).lease("a")
    assert stored_lease is not None
    lease = ended(leaving(stored_lease.lease, NOW_MS), NOW_MS)
    cluster.store.write(write_lease(lease, stored_lease.version))
    assert cluster.leave("a")
    assert cluster.lease("a") == lease


def test_a_store_that_never_had_a_copy_may_end():
    assert Cluster().leave("unknown")


def test_no_volume_ends_while_the_metadata_table_is_away():
    class Away(MemoryMetadataStore):
        def query(self, *_given: object, **_options: object) -> Page:
            raise UnavailableError("away")

    assert not leave_cluster(Away(), "a", CONTAINERS, NOW_MS)
