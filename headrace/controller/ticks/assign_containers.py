"""Containers are assigned to stores again when the set of serving stores has changed, or when a lease has expired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.metadata.cluster_records import (
    ClusterRecords,
    ContainerState,
    StoredLease,
    check_lease,
    delete_lease,
    write_lease,
    write_map,
)
from headrace.metadata.container_log import ContainerLogRecords, StoredLog
from headrace.model.cluster import (
    ContainerHold,
    ContainerMap,
    StoreLease,
    StoreState,
    lost,
    may_be_ended,
    may_be_forgotten,
    task_stopped,
)
from headrace.model.errors import ConflictError
from headrace.model.replica_placement import LogMembers, assign
from headrace.model.replication_health import ReplicationHealth, logs_with_one_copy, replication_health, serving_zones
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError

# Rewrites the container map when the set of serving segment stores has changed.
#
# Any process may run it, and several may run it at once: the map is one record with conditional writes. A log is
# discarded only in a transaction that also checks that its store's lease is still the ended one that was read. So a
# store that returns either keeps its containers, or learns from the map that it has lost them.

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


# The tick that finds segment stores with an expired lease, and reassigns their containers after the waiting time.
#
# The work of a tick is bounded by the number of stores. Concurrent ticks are safe: a lease is ended with a conditional
# write on its version.

# The check for logs of which one copy is left. The tick makes it while a store says that a log lacks copies.


def find_single_copies(store: MetadataStore, clock: Clock, container_count: int) -> tuple[int, ...]:
    """The containers whose owner cannot acknowledge, because fewer than two members of their log serve.

    Costs a query, and a batch read for 100 containers.

    Raises:
        CorruptError: a log record cannot be read.
        ThrottledError, UnavailableError: the metadata store does not answer; the next tick checks again.
    """
    zones = serving_zones((stored.lease for stored in ClusterRecords(store).leases()), clock.now_ms())
    logs = {each: stored.log for each, stored in ContainerLogRecords(store).read_many(range(container_count)).items()}
    return logs_with_one_copy(logs, zones)


@dataclass(frozen=True, slots=True)
class ClusterChecked:
    """The result of a check of the stores' leases."""

    stores_serving: int
    stores_lost: tuple[str, ...]
    """All stores that are lost now."""

    newly_lost: tuple[str, ...] = ()
    """The stores that this check found lost."""

    moved: tuple[int, ...] = ()
    """Containers that were assigned to another store."""

    discarded_logs: tuple[int, ...] = ()
    """Containers among `moved` that continue without their log, of which there was one copy."""

    replication: ReplicationHealth = field(default_factory=ReplicationHealth)
    """What the stores say of the copies of their logs."""


def detect_failed_stores(store: MetadataStore, clock: Clock, container_count: int) -> ClusterChecked:
    """End the leases that have expired and update the container map.

    Costs one query and one read if nothing has changed. If a store is lost or the map must change, two queries and two
    reads more.

    Raises:
        ThrottledError, UnavailableError: the metadata store does not answer; the next tick checks again.
        ConflictError: other processes keep changing the map.
    """
    records, now_ms = ClusterRecords(store), clock.now_ms()
    leases = records.leases()
    newly_lost = tuple(
        stored.lease.store_id
        for stored in leases
        if may_be_ended(stored.lease, now_ms) and _end(records, stored, lost(stored.lease, now_ms))
    )
    if not newly_lost and _is_settled(records, leases, container_count, now_ms):
        return _checked([stored.lease for stored in leases])
    return _reassign(records, container_count, now_ms, newly_lost)


def end_lease_of_task(store: MetadataStore, clock: Clock, container_count: int, task: str) -> ClusterChecked:
    """End the leases of the stores that ran in a stopped ECS task. The local disk of the task is gone too.

    A task that no lease names changes nothing: its stores may have been replaced already. Costs and raises as
    `detect_failed_stores` does.
    """
    records, now_ms = ClusterRecords(store), clock.now_ms()
    leases = records.leases()
    ended = tuple(
        stored.lease.store_id
        for stored in leases
        if task and stored.lease.task == task and _end(records, stored, task_stopped(stored.lease, now_ms))
    )
    if not ended:
        return _checked([stored.lease for stored in leases])
    return _reassign(records, container_count, now_ms, ended)


def _end(records: ClusterRecords, stored: StoredLease, ended: StoreLease) -> bool:
    if ended == stored.lease:
        return False
    try:
        records.store.write(write_lease(ended, stored.version))
    except WriteConflictError:
        return False  # The lease was renewed, or another check has ended it.
    return True


def _is_settled(records: ClusterRecords, stored_leases: list[StoredLease], container_count: int, now_ms: int) -> bool:
    """Whether the map would stay as it is even if no container had a log; saves reading which stores have the logs."""
    leases = [stored.lease for stored in stored_leases]
    stored_map = records.container_map().map
    wanted = assign(stored_map, leases, {}, container_count, now_ms)
    return wanted.stores == stored_map.stores and not any(
        may_be_forgotten(lease, stored_map, {}, now_ms) for lease in leases
    )


def _reassign(
    records: ClusterRecords, container_count: int, now_ms: int, newly_lost: tuple[str, ...]
) -> ClusterChecked:
    made = assign_containers(records, container_count, now_ms)
    holds = {state.container: state.hold for state in made.containers}
    # An operator may accept the loss of a member only if its lease says that it has ended.
    with_copies = {store_id for members in made.members.values() for store_id in members}
    for stored in made.leases:
        is_member = stored.lease.store_id in with_copies
        if not is_member and may_be_forgotten(stored.lease, made.map, holds, now_ms):
            try:
                records.store.write(delete_lease(stored))
            except WriteConflictError:
                continue  # The store has returned and renewed its lease.
    return _checked([stored.lease for stored in made.leases], newly_lost, made.changed, made.discarded_logs)


def _checked(
    leases: list[StoreLease],
    newly_lost: tuple[str, ...] = (),
    moved: tuple[int, ...] = (),
    discarded_logs: tuple[int, ...] = (),
) -> ClusterChecked:
    serving = sum(lease.state is StoreState.SERVING for lease in leases)
    away = tuple(lease.store_id for lease in leases if lease.state is StoreState.LOST)
    return ClusterChecked(serving, away, newly_lost, moved, discarded_logs, replication_health(leases))
