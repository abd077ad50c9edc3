"""Until when a store that stops is needed, and when a copy may be dropped."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.cluster import ContainerHold, ContainerMap, ReplicationStatus, StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LedgerChain, LedgerStart, LogState, ReplicaId, emptied
from headrace.model.replica_placement import assign, place_replicas
from headrace.model.replication_health import (
    ClusterView,
    ReplicationHealth,
    is_copy_unneeded,
    keeps_leaving_store,
    logs_lost_without,
    logs_that_need,
    logs_with_one_copy,
    replication_health,
    serving_zones,
    unsettled_reasons,
)

OWN, OTHER, THIRD = (ReplicaId(bytes([number]) * 16) for number in (1, 2, 3))
LOG = ContainerLog(3, LogState.OPEN, (OWN, OTHER), (LedgerStart(4, 0), LedgerStart(7, 10)))


def lease(replica: ReplicaId, state: StoreState = StoreState.SERVING) -> StoreLease:
    identity = StoreLease(replica.hex(), "h", 1, "z", 100, "v", "", 0, replica_id=replica.hex())
    return replace(identity, state=state)


@pytest.mark.parametrize("state", [StoreState.SERVING, StoreState.LEAVING])
def test_a_store_stays_while_a_log_names_it_and_another_is_there(state: StoreState):
    assert keeps_leaving_store(OWN, [None, LOG], [lease(OWN), lease(OTHER, state)])
    assert not keeps_leaving_store(THIRD, [None, LOG], [lease(OWN), lease(OTHER, state)])
    assert not keeps_leaving_store(OWN, [emptied(LOG, 20)], [lease(OWN), lease(OTHER, state)])


@pytest.mark.parametrize("state", [StoreState.LEFT, StoreState.LOST])
def test_the_last_store_does_not_wait(state: StoreState):
    assert not keeps_leaving_store(OWN, [LOG], [lease(OWN, StoreState.LEAVING), lease(OTHER, state)])


@pytest.mark.parametrize(
    ("log", "own", "promise", "unneeded"),
    [
        (None, THIRD, 0, False),
        (LOG, OWN, 0, False),
        (LOG, THIRD, 7, False),
        (LOG, THIRD, 9, False),
        (LOG, THIRD, 6, True),
        (emptied(LOG, 20), THIRD, 9, True),
    ],
)
def test_a_copy_is_kept_while_its_owner_may_count_on_it(log, own, promise, unneeded):
    assert is_copy_unneeded(log, own, promise) is unneeded


def test_parts_of_a_chain_are_clipped():
    chain = LedgerChain((LedgerStart(1, 0), LedgerStart(2, 5), LedgerStart(4, 5), LedgerStart(6, 8)))
    assert list(chain.parts(3, 12)) == [(1, 3, 5), (4, 5, 8), (6, 8, 12)]
    assert list(chain.parts(9, 9)) == []


REPLICAS = [ReplicaId(bytes([number + 1]) * 16) for number in range(6)]
ZONES = ["az0", "az1", "az2"]


def _lease(number: int, revision: int = 1, state: StoreState = StoreState.SERVING) -> StoreLease:
    """The store of a replica; stores 3 to 5 are in the zones of stores 0 to 2."""
    return StoreLease(
        f"store-{number}",
        "h",
        9,
        ZONES[number % 3],
        100,
        f"volume-{number}",
        "",
        0,
        state=state,
        lease_until_ms=10_000,
        replica_id=REPLICAS[number].hex(),
        replica_port=7,
        revision=revision,
    )


def _log(*members: int, copies: int = 3) -> ContainerLog:
    return ContainerLog(copies, LogState.OPEN, tuple(REPLICAS[each] for each in members), (LedgerStart(1, 0),))


EMPTY = ContainerLog(3, LogState.EMPTY, (), (), 5, 5)
OLD = [_lease(0), _lease(1), _lease(2)]


def test_a_store_that_has_its_place_is_settled():
    view = ClusterView({0: "store-0", 1: "store-1"}, {0: _log(0, 1, 2), 1: _log(1, 0, 2), 2: None}, OLD)
    assert unsettled_reasons(OLD[0], {0}, view) == []


def test_a_container_that_is_not_served_keeps_it_unsettled():
    view = ClusterView({0: "store-0", 1: "store-0", 2: "store-1"}, {0: _log(0, 1, 2), 1: EMPTY, 2: _log(1, 0, 2)}, OLD)
    assert unsettled_reasons(OLD[0], (), view) == ["container 0 is not served", "container 1 is not served"]


@pytest.mark.parametrize("log", [None, EMPTY])
def test_the_first_store_of_a_deployment_waits_for_nobody_else(log):
    """It cannot serve alone, and the second one is deployed only when it is well."""
    alone = ClusterView({0: "store-0"}, {0: log}, [OLD[0], _lease(3), _lease(1, state=StoreState.LEFT)])
    assert unsettled_reasons(OLD[0], (), alone) == []
    with_others = replace(alone, leases=[OLD[0], OLD[1]])
    assert unsettled_reasons(OLD[0], (), with_others) == ["container 0 is not served"]


def test_a_store_among_those_with_one_copy_is_alone():
    """A deployment changes one copy to three: the second store that replicates comes when this one is well."""
    one_copy = [replace(_lease(number), replica_id="") for number in (1, 2)]
    view = ClusterView({0: "store-0", 1: "store-1"}, {0: None}, [OLD[0], *one_copy])
    assert unsettled_reasons(OLD[0], (), view) == []
    assert unsettled_reasons(OLD[0], (), replace(view, leases=[OLD[0], OLD[1], one_copy[1]])) == [
        "container 0 is not served"
    ]


def test_a_lone_store_with_a_log_is_not_settled():
    """Two zones were lost: the log is needed, and the next deployment must not begin."""
    view = ClusterView({0: "store-0"}, {0: _log(0, 1, 2)}, [OLD[0]])
    assert unsettled_reasons(OLD[0], (), view) == ["container 0 is not served"]


def test_a_new_task_waits_until_the_older_one_holds_nothing():
    new = _lease(3, revision=2)
    view = ClusterView({0: "store-1", 1: "store-3"}, {0: _log(1, 0, 2), 1: _log(3, 1, 2)}, [*OLD, new])
    assert unsettled_reasons(new, {1}, view) == [
        "the log of container 0 wants a copy that is not complete",
        "the log of container 0 has a copy on the older store store-0",
    ]
    moved = replace(view, logs={0: _log(1, 3, 2), 1: _log(3, 1, 2)})
    assert unsettled_reasons(new, {1}, moved) == []


def test_an_older_task_that_has_ended_is_not_waited_for():
    new, gone = _lease(3, revision=2), _lease(0, state=StoreState.LOST)
    view = ClusterView({0: "store-1"}, {0: _log(1, 3, 0)}, [gone, OLD[1], OLD[2], new])
    assert unsettled_reasons(new, (), view) == []


def test_a_task_after_a_rollback_does_not_wait_for_newer_ones():
    """Their copies are moved when ECS stops them."""
    new, newer = _lease(3, revision=1), _lease(0, revision=2)
    view = ClusterView({0: "store-1"}, {0: _log(1, 0, 2)}, [newer, OLD[1], OLD[2], new])
    assert unsettled_reasons(new, (), view) == []


def test_one_copy_wants_no_second_copy_of_its_new_owner():
    """It moves through tier 2."""
    view = ClusterView({0: "store-0"}, {0: _log(1, copies=1)}, OLD)
    assert unsettled_reasons(OLD[0], {0}, view) == []


@pytest.mark.parametrize("owner", [None, "store-9", "store-1"], ids=["none", "unknown", "keeps no copies"])
def test_log_without_a_known_owner_wants_no_copy(owner: str | None):
    leases = [OLD[0], replace(OLD[1], replica_id=""), OLD[2]]
    view = ClusterView({} if owner is None else {0: owner}, {0: _log(1, 2)}, leases)
    assert unsettled_reasons(OLD[0], (), view) == []


def test_the_health_of_a_cluster_is_what_its_stores_say():
    told = [
        replace(OLD[0], replication=ReplicationStatus(blocked=(7, 3), under_replicated=2)),
        replace(OLD[1], replication=ReplicationStatus(blocked=(3,), under_replicated=1, isolated=True)),
        replace(_lease(2, state=StoreState.LOST), replication=ReplicationStatus(isolated=True, blocked=(9,))),
    ]
    assert replication_health(told) == ReplicationHealth((3, 7), 3, ("store-1",))
    isolated = [replace(each, replication=ReplicationStatus(isolated=True)) for each in reversed(OLD)]
    assert replication_health(isolated).isolated == ("store-0", "store-1", "store-2")
    assert replication_health(OLD) == ReplicationHealth()


def test_only_stores_that_serve_have_copies():
    leases = [OLD[0], _lease(1, state=StoreState.LEAVING), replace(OLD[2], replica_id=""), _lease(5)]
    assert serving_zones(leases, 0) == {REPLICAS[0]: "az0", REPLICAS[5]: "az2"}
    assert serving_zones(leases, 12_001) == {}, "the leases have expired"
    local = [replace(lease, zone="local") for lease in OLD]
    assert sorted(serving_zones(local, 0).values()) == ["store-0", "store-1", "store-2"]


def test_logs_with_one_copy_cannot_acknowledge():
    zone_of = serving_zones(OLD[:2], 0)
    logs = {2: _log(2, 5), 1: _log(0, 2), 0: _log(0, 1, 2), 3: EMPTY, 4: None, 5: _log(0, copies=1)}
    assert logs_with_one_copy(logs, zone_of) == (1, 2)


CLUSTER_LOGS = st.dictionaries(
    st.integers(0, 9),
    st.sampled_from([None, EMPTY, _log(0, copies=1), _log(5, copies=1)])
    | st.sets(st.integers(0, 5), min_size=1, max_size=3).map(lambda members: _log(*sorted(members))),
)
SOME_REPLICAS = st.sets(st.sampled_from(REPLICAS))


@given(CLUSTER_LOGS, SOME_REPLICAS, st.sampled_from(REPLICAS))
def test_store_whose_end_stops_acknowledgements_is_needed(logs, serving, own):
    stopped = logs_with_one_copy(logs, dict.fromkeys(serving - {own}, "z"))
    named = {container for container, log in logs.items() if log is not None and own in log.members}
    assert logs_that_need(own, logs, dict.fromkeys(serving, "z")) == tuple(sorted(named.intersection(stopped)))


@given(CLUSTER_LOGS, SOME_REPLICAS, st.sampled_from(REPLICAS))
def test_store_is_needed_for_entries_that_only_it_may_have(logs, serving, own):
    needed = [
        container
        for container, log in sorted(logs.items())
        if log is not None and own in log.members
        # Members that may have acknowledged an entry, of which no other one would be left.
        if any(not serving.intersection(each) - {own} for each in combinations(log.members, log.ensemble.ack_quorum))
    ]
    lone = [container for container, log in logs.items() if log is not None and log.members == (own,)]
    assert logs_lost_without(own, logs, serving) == tuple(sorted({*needed, *lone}))


def test_a_deployment_reaches_a_settled_store():
    """Containers and copies move until the new store of a zone has the place of the older one."""
    new, now_ms, containers = _lease(3, revision=2), 1_000, range(12)
    leases, stores = OLD, assign(ContainerMap(), OLD, {}, len(containers), now_ms)
    logs: dict[int, ContainerLog] = {}
    for leases in (OLD, [*OLD, new]):
        names = {lease.replica_id: lease.store_id for lease in leases}
        for _ in range(3):  # owners hand over and copies are complete before the map is computed again
            holds = {each: ContainerHold(stores.stores[each], 1) for each in containers}
            members = {each: [names[member.hex()] for member in log.members] for each, log in logs.items()}
            stores = assign(stores, leases, holds, len(containers), now_ms, members)
            for each in containers:
                (own,) = (
                    REPLICAS[int(lease.store_id[-1])] for lease in leases if lease.store_id == stores.stores[each]
                )
                former = logs[each].members if each in logs else ()
                wanted = place_replicas(each, own, former, leases).wanted.values()
                logs[each] = replace(_log(), members=tuple(wanted))
    assert unsettled_reasons(new, stores.containers_of("store-3"), ClusterView(stores.stores, logs, leases)) == []
    assert stores.containers_of("store-3")
    assert not any(REPLICAS[0] in log.members for log in logs.values())
