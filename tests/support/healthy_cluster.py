"""What the controller says of a cluster of three stores in three zones that is well."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    ContainerView,
    LedgerView,
    LogMemberView,
    StoreView,
)
from headrace.api.dead_letters import DeadLetterCause, DeadLetterView
from headrace.api.upgrades import StoreRelease, UpgradeView
from headrace.doctor.cluster_checks import ClusterFacts
from headrace.model.cluster import ContainerStanding, StoreState
from headrace.model.container_logs import LogState
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.formats import RELEASE

NOW_MS = 1_800_000_000_000
CONTAINERS = 9
ZONES = ("a", "b", "c")


def healthy_facts() -> ClusterFacts:
    """Store N is in the zone N and serves every third container; its journal has the id N repeated."""
    stores = tuple(_store(number) for number in range(len(ZONES)))
    containers = tuple(_container(number) for number in range(CONTAINERS))
    logs = tuple(_log(number) for number in range(CONTAINERS))
    return ClusterFacts(
        ClusterView(map_version=7, container_count=CONTAINERS, stores=stores),
        ContainerMapView(map_version=7, containers=containers),
        ContainerLogsView(logs=logs),
        (),
        upgrade=UpgradeView(RELEASE, RELEASE, tuple(StoreRelease(each.store_id, RELEASE) for each in stores), ()),
    )


def with_store(facts: ClusterFacts, number: int, **changes: object) -> ClusterFacts:
    """The same facts, with other fields of one store."""
    stores = [replace(store, **changes) if at == number else store for at, store in enumerate(facts.cluster.stores)]
    cluster = replace(facts.cluster, stores=tuple(stores))
    return dataclasses.replace(facts, cluster=cluster)


def with_container(facts: ClusterFacts, number: int, **changes: object) -> ClusterFacts:
    """The same facts, with other fields of one container."""
    changed = [
        replace(each, **changes) if at == number else each for at, each in enumerate(facts.containers.containers)
    ]
    containers = replace(facts.containers, containers=tuple(changed))
    return dataclasses.replace(facts, containers=containers)


def with_log(facts: ClusterFacts, number: int, **changes: object) -> ClusterFacts:
    """The same facts, with other fields of one log."""
    logs = [replace(log, **changes) if at == number else log for at, log in enumerate(facts.logs.logs)]
    return dataclasses.replace(facts, logs=ContainerLogsView(logs=tuple(logs)))


def with_letters(facts: ClusterFacts, *statuses: DeadLetterStatus) -> ClusterFacts:
    """The same facts, with a dead letter for each status."""
    letters = tuple(_letter(number, status) for number, status in enumerate(statuses))
    return dataclasses.replace(facts, letters=letters)


def _store(number: int) -> StoreView:
    return StoreView(
        store_id=f"store-{number}",
        state=StoreState.SERVING,
        host=f"10.0.{number}.9",
        port=12345,
        zone=ZONES[number],
        capacity=100,
        incarnation=1,
        task=None,
        lease_until_ms=NOW_MS + 8_000,
        ended_ms=None,
        take_over_ms=None,
        containers=tuple(range(number, CONTAINERS, len(ZONES))),
    )


def _container(number: int) -> ContainerView:
    store = f"store-{number % len(ZONES)}"
    return ContainerView(
        container=number,
        store=store,
        state=ContainerStanding.SERVED,
        claimed_by=store,
        host="10.0.0.9",
        port=12345,
        zone="a",
        epoch=4,
    )


def _log(number: int) -> ContainerLogView:
    members = tuple(
        LogMemberView(
            replica=f"{each:032x}",
            store=f"store-{each}",
            store_state=StoreState.SERVING,
            zone=ZONES[each],
            may_be_removed=False,
        )
        for each in range(len(ZONES))
    )
    return ContainerLogView(
        container=number,
        state=LogState.OPEN,
        copies=3,
        version=5,
        members=members,
        ledgers=(LedgerView(epoch=4, first=100),),
        truncated=90,
        next_entry=None,
        complete=True,
        blocked=False,
    )


def _letter(number: int, status: DeadLetterStatus) -> DeadLetterView:
    return DeadLetterView(
        letter=f"letter-{number}",
        queue="headrace-requests.fifo",
        kind="scale_stream",
        subject=f"shop/orders-{number}",
        status=status,
        cause=DeadLetterCause(code="unavailable", message="no store answers"),
        first_try_ms=NOW_MS - 60_000,
        last_try_ms=NOW_MS,
        tries=10,
        replays=0,
        parameters={},
        message="",
    )
