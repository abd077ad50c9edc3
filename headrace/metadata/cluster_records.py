"""The records of the cluster: leases of stores, the container map, and claims and snapshot pointers of containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.cluster import (
    FIRST_PROTOCOL,
    STORES_MAX,
    VERSION_MAX,
    ContainerHold,
    ContainerMap,
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
)
from headrace.model.container_logs import REPLICA_ID_BYTES
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.external_access import ExternalAddress
from headrace.model.formats import is_release
from headrace.model.record_fields import record_field
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    Body,
    Check,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
)

# The container map: one record, whose version is the version of the map.

CONTAINER_MAP_SORT: Final = "map"
MAP_KEY = Key(CLUSTER_PARTITION, CONTAINER_MAP_SORT)


class StoredMap(msgspec.Struct, frozen=True):
    """The container map as it was read; `version` is None while there is no record of it."""

    map: ContainerMap
    version: int | None


def container_map_body(container_map: ContainerMap) -> dict[str, Any]:
    """Containers by store, in their order; discarded logs as [container, epoch]."""
    owners = sorted(set(container_map.stores.values()))
    return versioned(
        stores={owner: list(container_map.containers_of(owner)) for owner in owners},
        given_up=[[container, epoch] for container, epoch in sorted(container_map.discarded_logs.items())],
    )


def decode_container_map(body: Body) -> ContainerMap:
    return decoded("container map", body, _map)


def stored_map(record: Record | None) -> StoredMap:
    """The map in its record; an empty one without."""
    if record is None:
        return StoredMap(ContainerMap(), None)
    return StoredMap(decode_container_map(record.body), record.version)


def write_map(container_map: ContainerMap, version: int | None) -> Write:
    """The write that replaces the map of this version, or creates the first map if `version` is None."""
    body = container_map_body(container_map)
    return Create(MAP_KEY, body) if version is None else Replace(MAP_KEY, body, version)


def _map(body: Body) -> ContainerMap:
    stores = {int(container): str(owner) for owner, held in body["stores"].items() for container in held}
    discarded = {int(container): int(epoch) for container, epoch in body["given_up"]}
    return ContainerMap(dict(sorted(stores.items())), discarded)


# The claim of a container: the record whose version is the container's epoch.


def claim_sort(container: int) -> str:
    """The sort key of a container's claim in CLUSTER_PARTITION."""
    return f"container/{container:04d}"


def claim_key(container: int) -> Key:
    return Key(CLUSTER_PARTITION, claim_sort(container))


def claim_body(claim: ContainerClaim) -> dict[str, Any]:
    body: dict[str, Any] = {"store": claim.store_id, "host": claim.host, "port": claim.port, "zone": claim.zone}
    marks = {"from_clean": claim.from_clean, "log_in_s3": claim.log_in_s3}
    tls = {"tls_name": claim.tls_name} if claim.tls_name else {}
    return body | {name: True for name, is_set in marks.items() if is_set} | tls


def decode_claim(body: Mapping[str, Any]) -> ContainerClaim:
    """The claim stored in a record body; raises CorruptError if the body is not a claim."""
    store_id, host, zone = (record_field(body, name, str) for name in ("store", "host", "zone"))
    from_clean, log_in_s3 = (name in body and record_field(body, name, bool) for name in ("from_clean", "log_in_s3"))
    tls_name = record_field(body, "tls_name", str) if "tls_name" in body else ""
    return ContainerClaim(store_id, host, record_field(body, "port", int), zone, from_clean, log_in_s3, tls_name)


def read_claim(record: Record) -> ContainerClaim:
    """The claim in a record; raises CorruptError if it is not one."""
    return decode_claim(record.body)


def find_claim(store: MetadataStore, container: int) -> tuple[ContainerClaim, int] | None:
    """The claim and the epoch of the container; one read. None if no store has claimed the container yet."""
    record = store.get(claim_key(container))
    return None if record is None else (decode_claim(record.body), record.version)


def find_claims(store: MetadataStore, containers: Iterable[int]) -> dict[int, tuple[ContainerClaim, int]]:
    """The claim and the epoch of each of the containers that a store has claimed; one read for each hundred of them."""
    wanted = sorted(set(containers))
    claims: dict[int, tuple[ContainerClaim, int]] = {}
    for start in range(0, len(wanted), READS_PER_BATCH_MAX):
        batch = wanted[start : start + READS_PER_BATCH_MAX]
        for container, record in zip(batch, store.get_many([claim_key(each) for each in batch]), strict=True):
            if record is not None:
                claims[container] = decode_claim(record.body), record.version
    return claims


def write_claim(container: int, claim: ContainerClaim, epoch: int | None) -> Create | Replace:
    """The write that replaces the claim of this epoch, or creates the first claim if `epoch` is None."""
    key, body = claim_key(container), claim_body(claim)
    return Create(key, body) if epoch is None else Replace(key, body, epoch)


def check_claim(container: int, epoch: int) -> Check:
    """A check that the container has had no other owner since its claim of this epoch."""
    return Check(claim_key(container), epoch)


# The pointer to the newest snapshot of a container in tier 2.


def snapshot_sort(container: int) -> str:
    """The sort key of a container's snapshot pointer in CLUSTER_PARTITION."""
    return f"snapshot/{container:04d}"


def snapshot_key(container: int) -> Key:
    return Key(CLUSTER_PARTITION, snapshot_sort(container))


def snapshot_body(pointer: SnapshotPointer) -> dict[str, Any]:
    body = {
        "object": pointer.object_name,
        "length": pointer.length,
        "crc32c": pointer.checksum,
        "epoch": pointer.epoch,
        "clean": pointer.clean,
    }
    return body | {"restored": True} if pointer.restored else body


def decode_snapshot_pointer(body: Mapping[str, Any]) -> SnapshotPointer:
    """The pointer stored in a record body; raises CorruptError if the body is not a pointer."""
    length, checksum, epoch = (record_field(body, name, int) for name in ("length", "crc32c", "epoch"))
    return SnapshotPointer(
        record_field(body, "object", str),
        length,
        checksum,
        epoch,
        record_field(body, "clean", bool),
        "restored" in body and record_field(body, "restored", bool),
    )


def write_snapshot_pointer(container: int, pointer: SnapshotPointer, version: int | None) -> Create | Replace:
    """The write that replaces the pointer of this version, or creates the first pointer if `version` is None."""
    key, body = snapshot_key(container), snapshot_body(pointer)
    return Create(key, body) if version is None else Replace(key, body, version)


def read_snapshot_pointer(record: Record) -> SnapshotPointer:
    """The pointer in a record; raises CorruptError if it is not one."""
    return decode_snapshot_pointer(record.body)


# A segment store and its lease, in the partition of the cluster.

STORES_FIRST: Final = "store/"
STORES_LAST: Final = "store0"
"""The first sort key after all leases."""

PORT_MAX: Final = 65_535
CONTAINER_MAX: Final = 9_999
"""Keys of containers have four digits."""

NUMBER_MAX: Final = 2**31 - 1
TIME_MAX: Final = 2**53 - 1

VERSION_FIELDS: Final = 2
"""The lowest and the highest version of a protocol."""


class StoredLease(msgspec.Struct, frozen=True):
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
        tls_name=_text(body.get("tls_name", "")),
        external=_external(body["external"]) if "external" in body else None,
        release=_release(body["release"]) if "release" in body else "",
        starts_ms=tuple(_number(each, TIME_MAX) for each in body.get("starts", [])),
        unflushed_since_ms=_number(body["unflushed_since"], TIME_MAX) if "unflushed_since" in body else None,
    )


def _release(text: Any) -> str:
    if not is_release(text):
        raise ValueError(f"{str(text)[:100]!r} is not a release")
    return str(text)


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
        "tls_name": lease.tls_name,
        "external": _external_field(lease.external),
        "release": lease.release,
        "starts": list(lease.starts_ms),
        "unflushed_since": lease.unflushed_since_ms,
    }
    return {name: value for name, value in fields.items() if value}


def _external_field(address: ExternalAddress | None) -> dict[str, Any] | None:
    if address is None:
        return None
    return {"name": address.name, "port": address.port, **({"host": address.host} if address.host else {})}


def _external(value: Any) -> ExternalAddress:
    """Raises ValueError, as the functions below."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not an address")
    try:
        return ExternalAddress(_text(value["name"]), _number(value["port"], PORT_MAX), _text(value.get("host", "")))
    except InvalidRequestError as error:
        raise ValueError(error.message) from error


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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _time(value: Any) -> int | None:
    return None if value is None else int(value)


class ContainerState(msgspec.Struct, frozen=True):
    """The claim of a container, its epoch, and the store whose log is needed to recover it (`hold`).

    `claim` and `epoch` are None before the first claim. `pointer_version` is the version of the record with the
    snapshot pointer.
    """

    container: int
    claim: ContainerClaim | None
    epoch: int | None
    pointer: SnapshotPointer | None
    hold: ContainerHold | None
    pointer_version: int | None = None


def find_external_addresses(store: MetadataStore, store_ids: Iterable[str]) -> dict[str, ExternalAddress]:
    """The addresses outside of those of the stores that have one; one batch read for each hundred stores."""
    wanted = sorted(set(store_ids))
    addresses: dict[str, ExternalAddress] = {}
    for start in range(0, len(wanted), READS_PER_BATCH_MAX):
        for record in store.get_many([lease_key(each) for each in wanted[start : start + READS_PER_BATCH_MAX]]):
            if record is not None and (lease := decode_store_lease(record.body)).external is not None:
                addresses[lease.store_id] = lease.external
    return addresses


class ClusterRecords:
    """Reads the records of the cluster, several containers in one batch."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def leases(self) -> list[StoredLease]:
        """The leases of all stores, ordered by store id; one query.

        Raises:
            IllegalStateError: there are more than STORES_MAX.
        """
        page = self.store.query(CLUSTER_PARTITION, first=STORES_FIRST, last=STORES_LAST, limit=STORES_MAX + 1)
        if len(page.records) > STORES_MAX:
            raise IllegalStateError(
                f"the cluster has more than {STORES_MAX} segment store processes: run fewer and larger ones"
            )
        return [StoredLease(decode_store_lease(record.body), record.version) for record in page.records]

    def lease(self, store_id: str) -> StoredLease | None:
        """One read."""
        record = self.store.get(lease_key(store_id))
        return None if record is None else StoredLease(decode_store_lease(record.body), record.version)

    def container_map(self) -> StoredMap:
        """One read."""
        return stored_map(self.store.get(MAP_KEY))

    def map_and_claims(self, containers: Sequence[int]) -> tuple[StoredMap, dict[int, int | None]]:
        """The map, and the epoch of each container's claim, None without one; one batch read for 99 containers."""
        keys = [MAP_KEY, *(Key(CLUSTER_PARTITION, claim_sort(each)) for each in containers)]
        records: list[Record | None] = []
        for first in range(0, len(keys), READS_PER_BATCH_MAX):
            records += self.store.get_many(keys[first : first + READS_PER_BATCH_MAX])
        epochs = [None if record is None else record.version for record in records[1:]]
        return stored_map(records[0]), dict(zip(containers, epochs, strict=True))

    def containers(self, containers: Sequence[int]) -> list[ContainerState]:
        """One batch read for 50 containers."""
        states = []
        step = READS_PER_BATCH_MAX // 2
        for first in range(0, len(containers), step):
            batch = containers[first : first + step]
            keys = [Key(CLUSTER_PARTITION, sort(each)) for each in batch for sort in (claim_sort, snapshot_sort)]
            records = self.store.get_many(keys)
            states += [_state(each, *records[2 * index : 2 * index + 2]) for index, each in enumerate(batch)]
        return states


def check_snapshot(state: ContainerState) -> Write:
    """A check that the snapshot pointer of a container is still the one that was read, or still does not exist."""
    return Check(Key(CLUSTER_PARTITION, snapshot_sort(state.container)), state.pointer_version)


def _state(container: int, claim_record: Record | None, pointer_record: Record | None) -> ContainerState:
    """The state of a container.

    After a clean shutdown no store's log is needed, because the newest snapshot has everything that the log has. This
    stays true for later claims of the container, until a store is about to serve it.
    """
    pointer = None if pointer_record is None else decode_snapshot_pointer(pointer_record.body)
    version = None if pointer_record is None else pointer_record.version
    if claim_record is None:
        return ContainerState(container, None, None, pointer, None, version)
    claim = decode_claim(claim_record.body)
    clean = pointer is not None and pointer.clean and (claim.from_clean or pointer.epoch == claim_record.version)
    hold = None if clean else ContainerHold(claim.store_id, claim_record.version, claim.log_in_s3)
    return ContainerState(container, claim, claim_record.version, pointer, hold, version)
