"""The tick that finds segment stores with an expired lease, and reassigns their containers after the waiting time.

The work of a tick is bounded by the number of stores. Concurrent ticks are safe: a lease is ended with a conditional
write on its version.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, StoredLease, delete_lease, write_lease
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import StoreLease, StoreState, lost, may_be_ended, may_be_forgotten, task_stopped
from headrace.model.replica_placement import assign
from headrace.model.replication_health import ReplicationHealth, logs_with_one_copy, replication_health, serving_zones
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError

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
    found = records.leases()
    newly_lost = tuple(
        stored.lease.store_id
        for stored in found
        if may_be_ended(stored.lease, now_ms) and _end(records, stored, lost(stored.lease, now_ms))
    )
    if not newly_lost and _is_settled(records, found, container_count, now_ms):
        return _checked([stored.lease for stored in found])
    return _reassign(records, container_count, now_ms, newly_lost)


def end_lease_of_task(store: MetadataStore, clock: Clock, container_count: int, task: str) -> ClusterChecked:
    """End the leases of the stores that ran in a stopped ECS task. The local disk of the task is gone too.

    A task that no lease names changes nothing: its stores may have been replaced already. Costs and raises as
    `detect_failed_stores` does.
    """
    records, now_ms = ClusterRecords(store), clock.now_ms()
    found = records.leases()
    ended = tuple(
        stored.lease.store_id
        for stored in found
        if task and stored.lease.task == task and _end(records, stored, task_stopped(stored.lease, now_ms))
    )
    if not ended:
        return _checked([stored.lease for stored in found])
    return _reassign(records, container_count, now_ms, ended)


def _end(records: ClusterRecords, stored: StoredLease, ended: StoreLease) -> bool:
    if ended == stored.lease:
        return False
    try:
        records.store.write(write_lease(ended, stored.version))
    except WriteConflictError:
        return False  # The lease was renewed, or another check has ended it.
    return True


def _is_settled(records: ClusterRecords, found: list[StoredLease], container_count: int, now_ms: int) -> bool:
    """Whether the map would stay as it is even if no container had a log; saves reading which stores have the logs."""
    leases = [stored.lease for stored in found]
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
