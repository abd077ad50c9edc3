"""Rewrites the container map when the set of serving segment stores has changed.

Any process may run it, and several may run it at once: the map is one record with conditional writes. A log is
discarded only in a transaction that also checks that its store's lease is still the ended one that was read. So a store
that returns either keeps its containers, or learns from the map that it has lost them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords, ContainerState, StoredLease, check_lease, write_map
from headrace.metadata.container_log import ContainerLogRecords, StoredLog
from headrace.model.cluster import ContainerHold, ContainerMap, StoreLease
from headrace.model.errors import ConflictError
from headrace.model.replica_placement import LogMembers, assign
from headrace.ports.metadata_store import WriteConflictError

ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Assignment:
    """A container map, and the leases, container states and members of logs from which it was computed."""

    map: ContainerMap
    leases: list[StoredLease]
    containers: list[ContainerState]
    members: LogMembers
    changed: tuple[int, ...]
    """Containers that this assignment moved to another store."""

    discarded_logs: tuple[int, ...]
    """Containers whose only log this assignment discarded. Bytes of it that are not in tier 2 are lost.

    A container whose log has copies is not among them: its next owner recovers it from another member.
    """


def assign_containers(records: ClusterRecords, container_count: int, now_ms: int) -> Assignment:
    """Compute the map for the present leases and store it.

    Costs two queries and two reads, and a write if the map changes.

    Raises:
        ConflictError: other processes changed the map during each of ATTEMPTS_MAX attempts.
        ThrottledError, UnavailableError: the metadata store does not answer.
    """
    log_records = ContainerLogRecords(records.store)
    for _ in range(ATTEMPTS_MAX):
        stored, leases = records.container_map(), records.leases()
        containers, logs = records.containers(range(container_count)), log_records.all()
        holds = {state.container: state.hold for state in containers}
        plain = [each.lease for each in leases]
        members = _members(logs, plain)
        wanted = assign(stored.map, plain, holds, container_count, now_ms, members)
        newly = {
            each: epoch for each, epoch in wanted.discarded_logs.items() if stored.map.discarded_logs.get(each) != epoch
        }
        if wanted == stored.map:
            return Assignment(wanted, leases, containers, members, (), ())
        last_owners = {hold.store_id for each in newly if (hold := holds[each]) is not None}
        checks = [check_lease(each.lease.store_id, each) for each in leases if each.lease.store_id in last_owners]
        try:
            records.store.write(write_map(wanted, stored.version), *checks)
        except WriteConflictError:
            continue
        changed = tuple(each for each, owner in wanted.stores.items() if stored.map.stores.get(each) != owner)
        lost = [each for each in sorted(newly) if not _has_copies(holds[each], logs.get(each), plain)]
        return Assignment(wanted, leases, containers, members, changed, tuple(lost))
    raise ConflictError("others are changing the container map: try again")


def _members(logs: Mapping[int, StoredLog], leases: Sequence[StoreLease]) -> LogMembers:
    """The stores that have a copy of each container's log."""
    stores = {lease.replica_id: lease.store_id for lease in leases if lease.replica_id}
    return {
        container: [stores[member.hex()] for member in log.members if member.hex() in stores]
        for container, (log, _) in logs.items()
        if log is not None
    }


def _has_copies(hold: ContainerHold | None, stored: StoredLog | None, leases: Sequence[StoreLease]) -> bool:
    """Whether nothing is lost without the disk of the store that served a container last.

    A store that replicates acknowledges nothing before it has written the log record.
    """
    if hold is not None and hold.log_in_s3:
        return True
    if stored is not None and stored.log is not None:
        return stored.log.copies != 1
    return any(lease.replica_id for lease in leases if hold is not None and lease.store_id == hold.store_id)


def take_unassigned(records: ClusterRecords, store_id: str, share: tuple[int, ...]) -> ContainerMap:
    """Assign the unassigned containers of `share` to a store. This is how a new cluster gets its first map.

    A container whose log belongs to another store is left to `assign_containers`. Costs one read, and another read and
    a write if a container is unassigned. Raises as `assign_containers` does.
    """
    for _ in range(ATTEMPTS_MAX):
        stored = records.container_map()
        missing = [container for container in share if container not in stored.map.stores]
        states = records.containers(missing) if missing else []
        mine = [each.container for each in states if each.hold is None or each.hold.store_id == store_id]
        if not mine:
            return stored.map
        stores = {**stored.map.stores, **dict.fromkeys(mine, store_id)}
        wanted = ContainerMap(dict(sorted(stores.items())), stored.map.discarded_logs)
        try:
            records.store.write(write_map(wanted, stored.version))
        except WriteConflictError:
            continue
        return wanted
    raise ConflictError("others are changing the container map: try again")
