"""Where copies of a log are wanted: in different zones, by capacity, on few other stores after a change."""

from __future__ import annotations

import hashlib
import math
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
    task_stopped,
)
from headrace.model.container_logs import COPIES, REPLICA_ID_BYTES, ReplicaId
from headrace.model.replica_placement import (
    ReplicaAddress,
    address_of,
    assign,
    first_members,
    is_destroyed,
    lease_of,
    may_be_removed,
    place_replicas,
    replica_of,
    zone_of,
)

NOW_MS = 1_000_000


def replica(name: str) -> ReplicaId:
    return ReplicaId(hashlib.sha256(name.encode()).digest()[:REPLICA_ID_BYTES])


def store(name: str, zone: str, capacity: int = 100, **fields: object) -> StoreLease:
    new = StoreLease(name, f"host-{name}", 1, zone, capacity, f"disk-{name}", f"task-{name}", 0)
    new = replace(new, replica_id=replica(name).hex(), replica_port=12745)
    return replace(registered(new, None, NOW_MS), **fields)  # type: ignore[arg-type]


A, B, C = store("a", "za"), store("b", "zb"), store("c", "zc")
THREE = [A, B, C]
OWN = replica("a")
BOTH = (OWN, replica("b"))


@st.composite
def clusters(draw: st.DrawFn) -> list[StoreLease]:
    """Stores in up to five zones; the first one is the owner."""
    zones = st.sampled_from(["za", "zb", "zc", "zd", "local"])
    revisions = st.integers(0, 2)
    states = st.sampled_from([StoreState.SERVING, StoreState.SERVING, StoreState.LEAVING, StoreState.LOST])
    others = draw(st.lists(st.tuples(zones, revisions, states, st.sampled_from([50, 100])), max_size=8))
    found = [
        store(f"s{index}", zone, capacity, revision=revision, state=state)
        for index, (zone, revision, state, capacity) in enumerate(others, 1)
    ]
    return [store("s0", draw(zones)), *found]


@given(clusters(), st.integers(0, 9_999), st.data())
def test_wanted_replicas_serve_in_different_zones(leases, container, data):
    members = data.draw(st.lists(st.sampled_from([replica_of(lease) for lease in leases]), max_size=3, unique=True))
    own = replica("s0")
    placement = place_replicas(container, own, members, leases)
    assert placement.wanted[zone_of(leases[0])] == own
    assert len(set(placement.wanted.values())) == len(placement.wanted) <= COPIES
    assert all(placement.zones[each] == zone for zone, each in placement.wanted.items())
    assert not placement.destroyed & set(placement.wanted.values())
    able = {zone_of(lease) for lease in leases if lease.state is StoreState.SERVING}
    assert len(placement.wanted) == min(COPIES, len(able))


@given(clusters(), st.integers(0, 9_999))
def test_members_that_are_wanted_stay_wanted(leases, container):
    members = first_members(container, replica("s0"), leases)
    assert set(place_replicas(container, members[0], members, list(reversed(leases))).wanted.values()) == set(members)


@given(clusters(), st.integers(0, 9_999))
def test_a_new_log_begins_with_the_owner(leases, container):
    members = first_members(container, replica("s0"), leases)
    assert members[0] == replica("s0")
    assert len(members) == len(set(members)) <= COPIES
    assert first_members(container, replica("s0"), leases, copies=1) == members[:1]


@pytest.mark.parametrize("old", [replace(B, replica_id=""), replace(B, replica_port=0)], ids=["no replica", "no port"])
def test_a_store_without_a_replica_port_gets_no_copy(old: StoreLease):
    assert set(first_members(1, OWN, [A, old, C])) == {OWN, replica("c")}
    assert first_members(1, OWN, [A, old]) == (OWN,)


def test_a_store_without_a_lease_still_owns_its_log():
    assert first_members(1, OWN, [B, C])[0] == OWN
    assert set(place_replicas(1, OWN, (), [B, C]).wanted.values()) == {replica("b"), replica("c")}


def test_a_new_store_takes_copies_from_its_zone_only():
    joined = [*THREE, store("b2", "zb")]
    before = [place_replicas(each, OWN, (), THREE).wanted for each in range(200)]
    after = [place_replicas(each, OWN, (), joined).wanted for each in range(200)]
    assert all(now["zb"] in (former["zb"], replica("b2")) for former, now in zip(before, after, strict=True))
    assert all(now["zc"] == former["zc"] for former, now in zip(before, after, strict=True))
    shares = Counter(now["zb"] for now in after)
    assert 70 < shares[replica("b2")] < 130


def test_copies_follow_capacity():
    stores = [A, store("b", "zb", 300), store("b2", "zb", 100)]
    shares = Counter(place_replicas(each, OWN, (), stores).wanted["zb"] for each in range(400))
    assert 260 < shares[replica("b")] < 340


def test_every_release_chooses_the_same_stores():
    """Otherwise an update would copy most logs of a deployment once more."""
    stores = [A, *(store(f"{zone}{number}", f"z{zone}", 100 * number) for zone in "bcd" for number in (1, 2, 3))]
    names = {replica_of(lease): lease.store_id for lease in stores}
    chosen = [first_members(each, OWN, stores)[1:] for each in range(12)]
    assert " ".join("".join(sorted(names[each] for each in members)) for members in chosen) == (
        "c3d3 c1d3 b2c3 c3d2 b3c2 b3d2 c3d2 b3c3 b3c3 b3c3 c3d1 c3d3"
    )


def test_a_member_is_kept_while_its_store_serves():
    stores = [*THREE, *(store(f"b{number}", "zb") for number in range(20))]
    assert place_replicas(1, OWN, BOTH, stores).wanted["zb"] == replica("b")
    gone = [replace(each, state=StoreState.LOST) if each.store_id == "b" else each for each in stores]
    assert place_replicas(1, OWN, BOTH, gone).wanted["zb"] != replica("b")


def test_a_store_of_a_newer_revision_is_preferred_to_a_member():
    assert place_replicas(1, OWN, BOTH, [*THREE, store("b2", "zb", revision=1)]).wanted["zb"] == replica("b2")


def test_zones_of_members_are_preferred_to_other_zones():
    stores = [*THREE, store("d", "zd"), store("e", "ze")]
    for members in ([OWN, replica("d"), replica("b")], [OWN, replica("e"), replica("c")]):
        assert set(place_replicas(1, OWN, members, stores).wanted.values()) == set(members)


def test_without_real_zones_each_store_is_a_zone():
    stores = [store(name, "local") for name in "abcd"]
    assert set(place_replicas(1, OWN, (), stores[:3]).wanted) == {"a", "b", "c"}
    members = [first_members(each, OWN, stores) for each in range(60)]
    assert {len(each) for each in members} == {3}
    assert {member for each in members for member in each} == {replica(name) for name in "abcd"}


def test_an_isolated_store_gets_no_copies():
    isolated = replace(B, replication=ReplicationStatus(isolated=True))
    placement = place_replicas(1, OWN, BOTH, [A, isolated, C])
    assert set(placement.wanted) == {"za", "zc"}
    assert not placement.destroyed


def test_a_store_whose_disk_stalls_keeps_its_copies():
    stalled = replace(B, replication=ReplicationStatus(stalled=True))
    assert place_replicas(1, OWN, BOTH, [A, stalled, C]) == place_replicas(1, OWN, BOTH, [A, B, C])


def test_a_replica_of_a_stopping_store_is_destroyed():
    leases = [A, replace(B, state=StoreState.LEAVING), left(C, NOW_MS), task_stopped(store("d", "zd"), NOW_MS)]
    placement = place_replicas(1, OWN, (OWN,), leases)
    assert placement.destroyed == {replica(name) for name in "bcd"}
    assert placement.wanted == {"za": OWN}


def test_a_replica_that_its_store_replaced_is_destroyed():
    renewed = replace(B, replica_id=replica("new b").hex())
    assert is_destroyed(replica("b"), [A, renewed])
    assert place_replicas(1, OWN, BOTH, [A, renewed]).destroyed == {replica("b")}


def test_a_replica_whose_lease_expired_may_come_back():
    expired = lost(B, NOW_MS)
    assert not is_destroyed(replica("b"), [A, expired])
    assert not is_destroyed(replica("b"), [A, registered(B, task_stopped(B, NOW_MS), NOW_MS)])


def test_a_replica_is_reached_at_the_address_of_its_store():
    address = ReplicaAddress("host-b", 12745, zone=B.zone, store_id=B.store_id)
    assert address_of(replica("b"), THREE) == address
    assert address_of(replica("b"), [lost(B, NOW_MS)]) == address
    assert address_of(replica("x"), THREE) is None
    assert address_of(replica("b"), [replace(B, replica_port=0)]) is None
    assert lease_of(replica("c"), THREE) == C


def test_only_a_replica_that_cannot_acknowledge_is_removed():
    local = replace(B, task="")
    assert may_be_removed(None)
    assert not may_be_removed(B)
    assert not may_be_removed(replace(B, state=StoreState.LEAVING))
    assert not may_be_removed(lost(B, NOW_MS)), "ECS has not reported that the task has stopped"
    assert not may_be_removed(left(B, NOW_MS))
    assert may_be_removed(task_stopped(B, NOW_MS))
    assert may_be_removed(task_stopped(left(B, NOW_MS), NOW_MS))
    assert may_be_removed(lost(local, NOW_MS))
    assert not may_be_removed(local)


NEW, BOTH_VERSIONS, OLD = ProtocolVersions(3, 3), ProtocolVersions(2, 3), ProtocolVersions(2, 2)


def speaking(lease: StoreLease, versions: ProtocolVersions) -> StoreLease:
    return replace(lease, replica_protocol=versions)


def test_a_store_without_a_common_version_takes_no_copy():
    leases = [speaking(A, OLD), speaking(B, NEW), speaking(C, OLD)]
    assert set(place_replicas(7, OWN, (), leases).wanted.values()) == {OWN, replica("c")}
    assert replica("b") not in first_members(7, OWN, leases)


def test_a_member_without_a_common_version_is_not_destroyed():
    """Its copy may be needed: its store goes on, and may be replaced by one with a common version."""
    leases = [speaking(A, OLD), speaking(B, NEW), speaking(C, OLD)]
    placement = place_replicas(7, OWN, BOTH, leases)
    assert replica("b") not in {*placement.wanted.values(), *placement.destroyed}


def test_all_members_speak_one_common_version():
    """Each of them may become the owner."""
    leases = [speaking(A, BOTH_VERSIONS), speaking(B, NEW), speaking(C, OLD)]
    for container in range(20):
        wanted = set(place_replicas(container, OWN, (), leases).wanted.values())
        assert len(wanted) == 2, "B and C have no common version"
    for kept in ("b", "c"):
        assert set(place_replicas(7, OWN, (OWN, replica(kept)), leases).wanted.values()) == {OWN, replica(kept)}


def test_a_newer_revision_without_a_common_version_waits():
    new = store("b2", "zb", revision=2, replica_protocol=NEW)
    leases = [speaking(A, OLD), speaking(B, OLD), new, speaking(C, OLD)]
    assert set(place_replicas(7, OWN, (), leases).wanted.values()) == {OWN, replica("b"), replica("c")}
    leases[2] = speaking(new, BOTH_VERSIONS)
    assert set(place_replicas(7, OWN, (), leases).wanted.values()) == {OWN, replica("b2"), replica("c")}


COUNT = 12


def container_assignment_store(name: str, zone: str) -> StoreLease:
    new = StoreLease(name, "h", 1, zone, 100, f"disk-{name}", "", 0, replica_id=name.encode().hex().zfill(32))
    return registered(new, None, NOW_MS)


def isolated(lease: StoreLease, _now_ms: int) -> StoreLease:
    return replace(lease, replication=ReplicationStatus(isolated=True))


def stalled(lease: StoreLease, _now_ms: int) -> StoreLease:
    return replace(lease, replication=ReplicationStatus(stalled=True))


SIX = [container_assignment_store(f"{zone}{number}", zone) for zone in "abc" for number in (1, 2)]
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


def test_containers_without_members_come_last():
    stores = [container_assignment_store(name, name) for name in "abc"]
    for first in range(3):
        members = {each: ["a", "b"] for each in range(3) if each != first}
        assert assign(ContainerMap(), stores, {}, 3, NOW_MS, members).stores[first] == "c"


def test_order_of_members_decides_nothing():
    members = {each: ["c1", "b2", "b1"] for each in A1_CONTAINERS}
    assert without_a1(lost, members) == without_a1(lost, {each: ["b1", "b2", "c1"] for each in A1_CONTAINERS})


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


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 30))
def test_stores_and_zones_get_their_share_by_capacity(stores, count):
    leases = [
        replace(container_assignment_store(str(index), zone), capacity=capacity)
        for index, (zone, capacity) in enumerate(stores)
    ]
    shares = Counter(assign(ContainerMap(), leases, {}, count, NOW_MS).stores.values())
    total = sum(lease.capacity for lease in leases)
    for group in [*([each] for each in leases), *([each for each in leases if each.zone == zone] for zone in "abc")]:
        share = count * sum(lease.capacity for lease in group) / total
        assert math.floor(share) <= sum(shares[lease.store_id] for lease in group) <= math.ceil(share)


def test_containers_leave_a_store_of_an_older_revision():
    """An owner always has a copy, and a deployment stops the older task only when it has none."""
    newer = replace(container_assignment_store("a3", "a"), revision=1)
    members = {each: ["a1", "b1", "c1"] for each in range(COUNT)}
    after = assign(MADE, [*SIX, newer], HOLDS, COUNT, NOW_MS, members)
    assert set(after.stores.values()) == {"a3", "b1", "b2", "c1", "c2"}
    assert assign(after, [*SIX, newer], HOLDS, COUNT, NOW_MS, members) == after


@pytest.mark.parametrize("end", [lost, left, leaving, isolated])
def test_a_newer_store_that_cannot_serve_changes_nothing(end):
    newer = replace(container_assignment_store("a3", "a"), revision=1)
    assert assign(MADE, [*SIX, end(newer, NOW_MS)], HOLDS, COUNT, NOW_MS) == MADE


def test_stores_with_one_copy_keep_what_only_they_have():
    plain = [replace(each, replica_id="") for each in SIX]
    newer = replace(container_assignment_store("a3", "a"), revision=1, replica_id="")
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


CONTAINER_ASSIGNMENT_OLD, CONTAINER_ASSIGNMENT_NEW = ProtocolVersions(1, 1), ProtocolVersions(2, 2)
OLD_STORES = [container_assignment_store(f"{zone}1", zone) for zone in "abc"]


def newer(zone: str, versions: ProtocolVersions) -> StoreLease:
    return replace(container_assignment_store(f"{zone}2", zone), revision=1, replica_protocol=versions)


def test_a_store_that_understands_no_other_gets_nothing():
    """It could replicate nothing, and so acknowledge nothing, while the store that it replaces works."""
    made = assign(ContainerMap(), OLD_STORES, {}, COUNT, NOW_MS)
    assert assign(made, [*OLD_STORES, newer("a", CONTAINER_ASSIGNMENT_NEW)], {}, COUNT, NOW_MS) == made
    after = assign(made, [*OLD_STORES, newer("a", ProtocolVersions(1, 2))], {}, COUNT, NOW_MS)
    assert set(after.stores.values()) == {"a2", "b1", "c1"}


def test_containers_go_to_the_versions_of_most_zones():
    made = assign(ContainerMap(), OLD_STORES, {}, COUNT, NOW_MS)
    holds = {container: ContainerHold(owner, 7) for container, owner in made.stores.items()}
    a1, b1, c1 = OLD_STORES
    one_replaced = [leaving(a1, NOW_MS), newer("a", CONTAINER_ASSIGNMENT_NEW), b1, c1]
    assert set(assign(made, one_replaced, holds, COUNT, NOW_MS).stores.values()) == {"b1", "c1"}
    two_replaced = [newer("a", CONTAINER_ASSIGNMENT_NEW), leaving(b1, NOW_MS), newer("b", CONTAINER_ASSIGNMENT_NEW), c1]
    assert set(assign(made, two_replaced, holds, COUNT, NOW_MS).stores.values()) <= {"a1", "a2", "b2"}


def test_a_store_that_is_alone_goes_on():
    alone = [newer("a", CONTAINER_ASSIGNMENT_NEW)]
    assert set(assign(ContainerMap(), alone, {}, COUNT, NOW_MS).stores.values()) == {"a2"}
