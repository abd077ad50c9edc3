"""A segment store and its lease, in the partition of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.containers import CLUSTER_PARTITION
from headrace.ports.metadata_store import Body, Check, Create, Delete, Key, Replace, Write

STORES_FIRST: Final = "store/"
STORES_LAST: Final = "store0"
"""The first sort key after all leases."""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it was read, and the version of its record."""

    lease: StoreLease
    version: int


def store_lease_sort(store_id: str) -> str:
    return f"{STORES_FIRST}{store_id}"


def lease_key(store_id: str) -> Key:
    return Key(CLUSTER_PARTITION, store_lease_sort(store_id))


def store_lease_body(lease: StoreLease) -> dict[str, Any]:
    return versioned(
        store=lease.store_id,
        host=lease.host,
        port=lease.port,
        zone=lease.zone,
        capacity=lease.capacity,
        volume=lease.volume,
        task=lease.task,
        take_over_after=lease.take_over_after_ms,
        incarnation=lease.incarnation,
        state=str(lease.state),
        until=lease.lease_until_ms,
        ended=lease.ended_ms,
        take_over=lease.take_over_ms,
        **({} if lease.unserved_since_ms is None else {"unserved_since": lease.unserved_since_ms}),
    )


def decode_store_lease(body: Body) -> StoreLease:
    return decoded("store lease", body, _lease)


def write_lease(lease: StoreLease, version: int | None) -> Write:
    """The write that replaces the lease of this version, or creates the first lease if `version` is None."""
    key, body = lease_key(lease.store_id), store_lease_body(lease)
    return Create(key, body) if version is None else Replace(key, body, version)


def delete_lease(stored: StoredLease) -> Write:
    return Delete(lease_key(stored.lease.store_id), stored.version)


def check_lease(store_id: str, stored: StoredLease | None) -> Write:
    """A check that the lease of a store is still the one that was read, or still does not exist."""
    return Check(lease_key(store_id), None if stored is None else stored.version)


def _lease(body: Body) -> StoreLease:
    return StoreLease(
        store_id=str(body["store"]),
        host=str(body["host"]),
        port=int(body["port"]),
        zone=str(body["zone"]),
        capacity=int(body["capacity"]),
        volume=str(body["volume"]),
        task=str(body["task"]),
        take_over_after_ms=int(body["take_over_after"]),
        incarnation=int(body["incarnation"]),
        state=StoreState(body["state"]),
        lease_until_ms=int(body["until"]),
        ended_ms=_time(body["ended"]),
        take_over_ms=_time(body["take_over"]),
        unserved_since_ms=_time(body.get("unserved_since")),
    )


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
