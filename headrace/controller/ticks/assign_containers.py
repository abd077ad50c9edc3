"""Rewrites the container map when the set of serving segment stores has changed.

Any process may run it, and several may run it at once: the map is one record with conditional writes. A log is
discarded only in a transaction that also checks that its store's lease is still the ended one that was read. So a store
that returns either keeps its containers, or learns from the map that it has lost them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords, ContainerState
from headrace.metadata.container_map import write_map
from headrace.metadata.store_lease import StoredLease, check_lease
from headrace.model.cluster import ContainerMap, assign
from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import WriteConflictError

ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Assignment:
    """A container map, and the leases and container states from which it was computed."""

    map: ContainerMap
    leases: list[StoredLease]
    containers: list[ContainerState]
    changed: tuple[int, ...]
    """Containers that this assignment moved to another store."""

    discarded_logs: tuple[int, ...]
    """Containers whose log this assignment discarded. Bytes of the log that are not in tier 2 are lost."""


def assign_containers(records: ClusterRecords, container_count: int, now_ms: int) -> Assignment:
    """Compute the map for the present leases and store it; costs a query, two reads, and a write if the map changes.

    Raises:
        ConflictError: other processes changed the map during each of ATTEMPTS_MAX attempts.
        ThrottledError, UnavailableError: the metadata store does not answer.
    """
    for _ in range(ATTEMPTS_MAX):
        stored, leases = records.container_map(), records.leases()
        containers = records.containers(range(container_count))
        holds = {state.container: state.hold for state in containers}
        wanted = assign(stored.map, [each.lease for each in leases], holds, container_count, now_ms)
        newly = {
            each: epoch for each, epoch in wanted.discarded_logs.items() if stored.map.discarded_logs.get(each) != epoch
        }
        if wanted == stored.map:
            return Assignment(wanted, leases, containers, (), ())
        last_owners = {hold.store_id for each in newly if (hold := holds[each]) is not None}
        checks = [check_lease(each.lease.store_id, each) for each in leases if each.lease.store_id in last_owners]
        try:
            records.store.write(write_map(wanted, stored.version), *checks)
        except WriteConflictError:
            continue
        changed = tuple(each for each, owner in wanted.stores.items() if stored.map.stores.get(each) != owner)
        return Assignment(wanted, leases, containers, changed, tuple(sorted(newly)))
    raise ConflictError("others are changing the container map: try again")


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
