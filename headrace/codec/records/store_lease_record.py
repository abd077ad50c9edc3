"""A segment store and its lease, in the partition of the cluster."""

from __future__ import annotations

from typing import Any, Final

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.cluster import StoreLease, StoreState

STORES_FIRST: Final = "store/"
STORES_LAST: Final = "store0"
"""The first sort key after all leases."""


def store_lease_sort(store_id: str) -> str:
    return f"{STORES_FIRST}{store_id}"


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


def store_lease_of_body(body: Body) -> StoreLease:
    return decoded("store lease", body, _lease)


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
