"""A segment store and its lease, in the partition of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.cluster import ReplicationStatus, StoreLease, StoreState
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.ensembles import REPLICA_ID_BYTES
from headrace.model.protocol_versions import FIRST_PROTOCOL, VERSION_MAX, ProtocolVersions
from headrace.ports.metadata_store import Body, Check, Create, Delete, Key, Replace, Write

STORES_FIRST: Final = "store/"
STORES_LAST: Final = "store0"
"""The first sort key after all leases."""

PORT_MAX: Final = 65_535
CONTAINER_MAX: Final = 9_999
"""Keys of containers have four digits."""

NUMBER_MAX: Final = 2**31 - 1

VERSION_FIELDS: Final = 2
"""The lowest and the highest version of a protocol."""


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
        **_added_fields(lease),
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
        replica_id=_replica_id(body.get("replica", "")),
        replica_port=_number(body.get("replica_port", 0), PORT_MAX),
        revision=_number(body.get("revision", 0), NUMBER_MAX),
        replication=ReplicationStatus(
            isolated=_flag(body.get("isolated", False)),
            blocked=tuple(_number(each, CONTAINER_MAX) for each in body.get("blocked", [])),
            under_replicated=_number(body.get("under_replicated", 0), NUMBER_MAX),
            stalled=_flag(body.get("stalled", False)),
        ),
        volume_gone=_flag(body.get("volume_gone", False)),
        replica_protocol=_versions(body["replica_protocol"]) if "replica_protocol" in body else FIRST_PROTOCOL,
    )


def _added_fields(lease: StoreLease) -> dict[str, Any]:
    """A field with its default value is left out."""
    status = lease.replication
    fields = {
        "replica": lease.replica_id,
        "replica_port": lease.replica_port,
        "revision": lease.revision,
        "isolated": status.isolated,
        "blocked": list(status.blocked),
        "under_replicated": status.under_replicated,
        "stalled": status.stalled,
        "volume_gone": lease.volume_gone,
        "replica_protocol": _protocol_field(lease.replica_protocol),
    }
    return {name: value for name, value in fields.items() if value}


def _protocol_field(versions: ProtocolVersions) -> list[int] | None:
    return None if versions == FIRST_PROTOCOL else [versions.low, versions.high]


def _versions(value: Any) -> ProtocolVersions:
    """Raises ValueError, as the functions below."""
    if not isinstance(value, list) or len(value) != VERSION_FIELDS:
        raise ValueError(f"{value!r} is not the lowest and the highest version of a protocol")
    low, high = (_number(each, VERSION_MAX) for each in value)
    if not 1 <= low <= high:
        raise ValueError(f"there are no protocol versions from {low} to {high}")
    return ProtocolVersions(low, high)


def _replica_id(value: Any) -> str:
    """Raises ValueError, as the functions below."""
    digits = 2 * REPLICA_ID_BYTES
    if not isinstance(value, str) or (value and (len(value) != digits or bytes.fromhex(value).hex() != value)):
        raise ValueError(f"{value!r} is not a replica id of {digits} hexadecimal digits")
    return value


def _number(value: Any, largest: int) -> int:
    if type(value) is not int or not 0 <= value <= largest:  # not isinstance: a bool is an int in Python
        raise ValueError(f"{value!r} is not a number from 0 to {largest}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
