"""Containers that move go to stores that have a copy of their log, and stay evenly spread."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.cluster import (
    ContainerHold,
    ContainerMap,
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
    leaving,
    left,
    lost,
    registered,
)
from headrace.model.container_assignment import assign

NOW_MS = 1_000_000
COUNT = 12


def store(name: str, zone: str) -> StoreLease:
    new = StoreLease(name, "h", 1, zone, 100, f"disk-{name}", "", 0, replica_id=name.encode().hex().zfill(32))
    return registered(new, None, NOW_MS)


def isolated(lease: StoreLease, _now_ms: int) -> StoreLease:
    return replace(lease, replication=ReplicationStatus(isolated=True))


def stalled(lease: StoreLease, _now_ms: int) -> StoreLease:
    return replace(lease, replication=ReplicationStatus(stalled=True))


SIX = [store(f"{zone}{number}", zone) for zone in "abc" for number in (1, 2)]
MADE = assign(ContainerMap(), SIX, {}, COUNT, NOW_MS)
HOLDS = {container: ContainerHold(owner, 7) for container, owner in MADE.stores.items()}
A1_CONTAINERS = MADE.containers_of("a1")


def without_a1(end, members: dict[int, list[str]]) -> ContainerMap:
    leases = [end(lease, NOW_MS) if lease.store_id == "a1" else lease for lease in SIX]
    return assign(MADE, leases, HOLDS, COUNT, NOW_MS, members)


@pytest.mark.parametrize("end", [lost, left, leaving, isolated, stalled])
def test_containers_of_a_store_that_ends_go_to_members(end):
    assert len(A1_CONTAINERS) == 2
    for first, second in (("b1", "c2"), ("c1", "b2"), ("b2", "a2")):
        members = {A1_CONTAINERS[0]: ["a1", first], A1_CONTAINERS[1]: ["a1", second]}
        after = without_a1(end, members)
        assert [after.stores[each] for each in A1_CONTAINERS] == [first, second]
        assert max(Counter(after.stores.values()).values()) == 3


def test_members_share_the_containers_evenly():
    members = {each: ["b1", "c1"] for each in A1_CONTAINERS}
    after = without_a1(lost, members)
    assert sorted(after.stores[each] for each in A1_CONTAINERS) == ["b1", "c1"]


def test_containers_with_one_member_left_come_first():
    members = {A1_CONTAINERS[0]: ["b1", "c1"], A1_CONTAINERS[1]: ["b1"]}
    after = without_a1(lost, members)
    assert [after.stores[each] for each in A1_CONTAINERS] == ["c1", "b1"]


def test_a_container_without_members_that_serve_moves_anyway():
    after = without_a1(lost, {each: ["a1", "x"] for each in A1_CONTAINERS})
    assert all(after.stores[each] != "a1" for each in A1_CONTAINERS)
    assert sorted(after.stores) == list(range(COUNT))


@pytest.mark.parametrize("end", [isolated, stalled])
def test_isolated_stores_keep_their_containers_if_all_are(end):
    leases = [end(lease, NOW_MS) for lease in SIX]
    assert assign(MADE, leases, HOLDS, COUNT, NOW_MS) == MADE


@pytest.mark.parametrize("end", [isolated, stalled])
def test_an_isolated_store_gets_no_container(end):
    leases = [end(lease, NOW_MS) if lease.store_id == "b2" else lease for lease in SIX]
    after = assign(ContainerMap(), leases, {}, COUNT, NOW_MS)
    assert not after.containers_of("b2")
    assert sorted(after.stores) == list(range(COUNT))


def moves(before: ContainerMap, after: ContainerMap) -> int:
    return sum(after.stores[each] != owner for each, owner in before.stores.items())


@given(st.data())
def test_members_cost_neither_moves_nor_evenness(data):
    names = [lease.store_id for lease in SIX]
    states = st.sampled_from([StoreState.SERVING, StoreState.LEAVING, StoreState.LOST])
    leases = [replace(lease, state=data.draw(states), take_over_ms=NOW_MS) for lease in SIX]
    sets = st.lists(st.sampled_from(names), max_size=3, unique=True)
    members = {container: data.draw(sets) for container in range(COUNT)}
    plain = assign(MADE, leases, HOLDS, COUNT, NOW_MS)
    found = assign(MADE, leases, HOLDS, COUNT, NOW_MS, members)
    assert moves(MADE, found) == moves(MADE, plain)
    shares = sorted(Counter(found.stores.values()).values())
    serving = [lease for lease in leases if lease.state is StoreState.SERVING]
    if serving:
        assert COUNT // len(serving) <= shares[0] <= shares[-1] <= -(-COUNT // len(serving))
    assert found.discarded_logs == plain.discarded_logs
    assert assign(found, leases, {}, COUNT, NOW_MS, members).stores == found.stores


def test_containers_leave_a_store_of_an_older_revision():
    """An owner always has a copy, and a deployment stops the older task only when it has none."""
    newer = replace(store("a3", "a"), revision=1)
    members = {each: ["a1", "b1", "c1"] for each in range(COUNT)}
    after = assign(MADE, [*SIX, newer], HOLDS, COUNT, NOW_MS, members)
    assert set(after.stores.values()) == {"a3", "b1", "b2", "c1", "c2"}
    assert assign(after, [*SIX, newer], HOLDS, COUNT, NOW_MS, members) == after


@pytest.mark.parametrize("end", [lost, left, leaving, isolated])
def test_a_newer_store_that_cannot_serve_changes_nothing(end):
    newer = replace(store("a3", "a"), revision=1)
    assert assign(MADE, [*SIX, end(newer, NOW_MS)], HOLDS, COUNT, NOW_MS) == MADE


def test_stores_with_one_copy_keep_what_only_they_have():
    plain = [replace(each, replica_id="") for each in SIX]
    newer = replace(store("a3", "a"), revision=1, replica_id="")
    after = assign(MADE, [*plain, newer], HOLDS, COUNT, NOW_MS)
    assert {"a1", "a2"} <= set(after.stores.values())


def test_a_log_in_s3_does_not_wait_for_the_disk_of_a_lost_store():
    """The store may return for a minute; only the containers whose log is on its disk wait for it."""
    waiting = [replace(each, replica_id="", take_over_after_ms=60_000) for each in SIX]
    in_s3, on_disk = A1_CONTAINERS
    holds = {**HOLDS, in_s3: ContainerHold("a1", 7, log_in_s3=True)}

    def owners(leases: list[StoreLease]) -> tuple[str, str]:
        after = assign(MADE, leases, holds, COUNT, NOW_MS)
        return after.stores[in_s3], after.stores[on_disk]

    assert owners(waiting) == ("a1", "a1")
    lost_one = [lost(each, NOW_MS) if each.store_id == "a1" else each for each in waiting]
    taker, kept = owners(lost_one)
    assert (taker != "a1", kept) == (True, "a1")


OLD, NEW = ProtocolVersions(1, 1), ProtocolVersions(2, 2)
OLD_STORES = [store(f"{zone}1", zone) for zone in "abc"]


def newer(zone: str, versions: ProtocolVersions) -> StoreLease:
    return replace(store(f"{zone}2", zone), revision=1, replica_protocol=versions)


def test_a_store_that_understands_no_other_gets_nothing():
    """It could replicate nothing, and so acknowledge nothing, while the store that it replaces works."""
    made = assign(ContainerMap(), OLD_STORES, {}, COUNT, NOW_MS)
    assert assign(made, [*OLD_STORES, newer("a", NEW)], {}, COUNT, NOW_MS) == made
    after = assign(made, [*OLD_STORES, newer("a", ProtocolVersions(1, 2))], {}, COUNT, NOW_MS)
    assert set(after.stores.values()) == {"a2", "b1", "c1"}


def test_containers_go_to_the_versions_of_most_zones():
    made = assign(ContainerMap(), OLD_STORES, {}, COUNT, NOW_MS)
    holds = {container: ContainerHold(owner, 7) for container, owner in made.stores.items()}
    a1, b1, c1 = OLD_STORES
    one_replaced = [leaving(a1, NOW_MS), newer("a", NEW), b1, c1]
    assert set(assign(made, one_replaced, holds, COUNT, NOW_MS).stores.values()) == {"b1", "c1"}
    two_replaced = [newer("a", NEW), leaving(b1, NOW_MS), newer("b", NEW), c1]
    assert set(assign(made, two_replaced, holds, COUNT, NOW_MS).stores.values()) <= {"a1", "a2", "b2"}


def test_a_store_that_is_alone_goes_on():
    alone = [newer("a", NEW)]
    assert set(assign(ContainerMap(), alone, {}, COUNT, NOW_MS).stores.values()) == {"a2"}
