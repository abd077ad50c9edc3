"""Write the container map anew when the stores that serve are others than those that it names.

Who runs it does not matter, and several may at once: the map is one record under a conditional write. A log is given up
only in one transaction with a check that its store's lease is still the ended one that was read, so that a store which
comes back either keeps its containers or learns from the map that it lost them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords, ContainerState, StoredLease, check_lease, write_map
from headrace.model.cluster import ContainerMap, assign
from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import WriteConflictError

ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Assignment:
    """The map after an attempt, and what it rests on. `changed`: containers that got another store by it."""

    map: ContainerMap
    leases: list[StoredLease]
    containers: list[ContainerState]
    changed: tuple[int, ...]
    given_up: tuple[int, ...]
    """Containers whose log was given up by it: what of it tier 2 does not have is lost."""


def assign_containers(records: ClusterRecords, container_count: int, now_ms: int) -> Assignment:
    """A query, two reads, and a write if the map changes.

    Raises:
        ConflictError: others change the map all the time.
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
        holders = {hold.store_id for each in newly if (hold := holds[each]) is not None}
        checks = [check_lease(each.lease.store_id, each) for each in leases if each.lease.store_id in holders]
        try:
            records.store.write(write_map(wanted, stored.version), *checks)
        except WriteConflictError:
            continue
        changed = tuple(each for each, owner in wanted.stores.items() if stored.map.stores.get(each) != owner)
        return Assignment(wanted, leases, containers, changed, tuple(sorted(newly)))
    raise ConflictError("others are changing the container map: try again")


def take_unassigned(records: ClusterRecords, store_id: str, share: tuple[int, ...]) -> ContainerMap:
    """Give those containers of `share` to a store that no store has in the map: how a cluster begins.

    One read, and a write if there are any. What others hold the log of is left to `assign_containers`. Raises as it.
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
