"""`headrace cluster`: the segment stores, the stores that serve the containers, and the containers' logs."""

from __future__ import annotations

from typing import Any

from headrace.api.cluster import ContainerView, StoreView
from headrace.cli import cluster_logs
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.session import Session

app = new_app()


@action(app, "stores", examples=["headrace cluster stores"])
def stores(session: Session) -> Outcome:
    """List the segment stores with their leases."""
    found = session.client.admin.cluster.get()
    rows = [
        (
            one.store_id,
            one.state,
            f"{one.host}:{one.port}",
            one.zone,
            time_text(one.lease_until_ms),
            len(one.containers),
            one.capacity,
        )
        for one in found.stores
    ]
    document = {
        "mapVersion": found.map_version,
        "containerCount": found.container_count,
        "stores": [_store(one) for one in found.stores],
    }
    return Outcome(document, ("STORE", "STATE", "ADDRESS", "ZONE", "LEASE UNTIL", "CONTAINERS", "CAPACITY"), rows)


@action(app, "containers", examples=["headrace cluster containers --json"])
def containers(session: Session) -> Outcome:
    """List for each container its assigned store and the store that claimed it."""
    found = session.client.admin.cluster.containers()
    rows = [
        (one.container, one.state, one.store, one.claimed_by, _address(one), one.zone, one.epoch)
        for one in found.containers
    ]
    document = {"mapVersion": found.map_version, "containers": [_container(one) for one in found.containers]}
    return Outcome(document, ("CONTAINER", "STATE", "STORE", "CLAIMED BY", "ADDRESS", "ZONE", "EPOCH"), rows)


cluster_logs.add_to(app)


def _store(store: StoreView) -> dict[str, Any]:
    return {
        "store": store.store_id,
        "state": store.state,
        "host": store.host,
        "port": store.port,
        "zone": store.zone,
        "capacity": store.capacity,
        "incarnation": store.incarnation,
        "task": store.task,
        "leaseUntilMs": store.lease_until_ms,
        "endedMs": store.ended_ms,
        "takeOverMs": store.take_over_ms,
        "containers": list(store.containers),
    }


def _container(one: ContainerView) -> dict[str, Any]:
    return one.to_json()


def _address(one: ContainerView) -> str | None:
    return None if one.host is None else f"{one.host}:{one.port}"
