"""Where copies of a log are wanted: in different zones, by capacity, on few other stores after a change."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.cluster import (
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
    left,
    lost,
    registered,
    task_stopped,
)
from headrace.model.container_logs import COPIES, REPLICA_ID_BYTES, ReplicaId
from headrace.model.replica_placement import (
    address_of,
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
    found = place_replicas(container, own, members, leases)
    assert found.wanted[zone_of(leases[0])] == own
    assert len(set(found.wanted.values())) == len(found.wanted) <= COPIES
    assert all(found.zones[each] == zone for zone, each in found.wanted.items())
    assert not found.destroyed & set(found.wanted.values())
    able = {zone_of(lease) for lease in leases if lease.state is StoreState.SERVING}
    assert len(found.wanted) == min(COPIES, len(able))


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


def test_a_store_without_a_replica_port_gets_no_copy():
    old = replace(B, replica_id="", replica_port=0)
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
    assert {one for each in members for one in each} == {replica(name) for name in "abcd"}


def test_an_isolated_store_gets_no_copies():
    isolated = replace(B, replication=ReplicationStatus(isolated=True))
    found = place_replicas(1, OWN, BOTH, [A, isolated, C])
    assert set(found.wanted) == {"za", "zc"}
    assert not found.destroyed


def test_a_store_whose_disk_stalls_keeps_its_copies():
    stalled = replace(B, replication=ReplicationStatus(stalled=True))
    assert place_replicas(1, OWN, BOTH, [A, stalled, C]) == place_replicas(1, OWN, BOTH, [A, B, C])


def test_a_replica_of_a_stopping_store_is_destroyed():
    leases = [A, replace(B, state=StoreState.LEAVING), left(C, NOW_MS), task_stopped(store("d", "zd"), NOW_MS)]
    found = place_replicas(1, OWN, (OWN,), leases)
    assert found.destroyed == {replica(name) for name in "bcd"}
    assert found.wanted == {"za": OWN}


def test_a_replica_that_its_store_replaced_is_destroyed():
    renewed = replace(B, replica_id=replica("new b").hex())
    assert is_destroyed(replica("b"), [A, renewed])
    assert place_replicas(1, OWN, BOTH, [A, renewed]).destroyed == {replica("b")}


def test_a_replica_whose_lease_expired_may_come_back():
    expired = lost(B, NOW_MS)
    assert not is_destroyed(replica("b"), [A, expired])
    assert not is_destroyed(replica("b"), [A, registered(B, task_stopped(B, NOW_MS), NOW_MS)])


def test_a_replica_is_reached_at_the_address_of_its_store():
    assert address_of(replica("b"), THREE) == ("host-b", 12745)
    assert address_of(replica("b"), [lost(B, NOW_MS)]) == ("host-b", 12745)
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
    found = place_replicas(7, OWN, BOTH, leases)
    assert replica("b") not in {*found.wanted.values(), *found.destroyed}


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
