"""Find segment stores whose lease has run out, and give their containers to others when nobody has to wait for them.

Work for one tick, bounded by the number of stores. Two at once do no harm: a lease is ended under its version.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, StoredLease, delete_lease, write_lease
from headrace.model.cluster import StoreLease, StoreState, assign, lost, may_be_forgotten, task_stopped
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError


@dataclass(frozen=True, slots=True)
class ClusterChecked:
    """What a look found and did. `stores_lost` are those that are lost now, `newly_lost` since this look.

    `moved` and `given_up` are containers that got another store, and those of them that go on without their log.
    """

    stores_serving: int
    stores_lost: tuple[str, ...]
    newly_lost: tuple[str, ...] = ()
    moved: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()


def detect_failed_stores(store: MetadataStore, clock: Clock, container_count: int) -> ClusterChecked:
    """One query and one read while all is well; with a store away, or a map to change, a query and two reads more.

    Raises:
        ThrottledError, UnavailableError: the metadata store does not answer; the next tick looks again.
        ConflictError: others change the map all the time.
    """
    records, now_ms = ClusterRecords(store), clock.now_ms()
    found = records.leases()
    newly_lost = tuple(
        stored.lease.store_id
        for stored in found
        if stored.lease.is_expired(now_ms) and _end(records, stored, lost(stored.lease, now_ms))
    )
    if not newly_lost and _is_settled(records, found, container_count, now_ms):
        return _checked([stored.lease for stored in found])
    return _assign_anew(records, container_count, now_ms, newly_lost)


def end_lease_of_task(store: MetadataStore, clock: Clock, container_count: int, task: str) -> ClusterChecked:
    """An ECS task has stopped: its stores are gone, and their disk with them. Costs and raises as a look.

    A task that no store names (any more) changes nothing: its stores may have been replaced already.
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
    return _assign_anew(records, container_count, now_ms, ended)


def _end(records: ClusterRecords, stored: StoredLease, ended: StoreLease) -> bool:
    if ended == stored.lease:
        return False
    try:
        records.store.write(write_lease(ended, stored.version))
    except WriteConflictError:
        return False  # it was renewed, or another look was faster
    return True


def _is_settled(records: ClusterRecords, found: list[StoredLease], container_count: int, now_ms: int) -> bool:
    """Whether no container could belong elsewhere: without reading where their logs are."""
    leases = [stored.lease for stored in found]
    stored_map = records.container_map().map
    wanted = assign(stored_map, leases, {}, container_count, now_ms)
    return wanted.stores == stored_map.stores and not any(
        may_be_forgotten(lease, stored_map, {}, now_ms) for lease in leases
    )


def _assign_anew(
    records: ClusterRecords, container_count: int, now_ms: int, newly_lost: tuple[str, ...]
) -> ClusterChecked:
    made = assign_containers(records, container_count, now_ms)
    holds = {state.container: state.hold for state in made.containers}
    for stored in made.leases:
        if may_be_forgotten(stored.lease, made.map, holds, now_ms):
            try:
                records.store.write(delete_lease(stored))
            except WriteConflictError:
                continue  # it is back
    return _checked([stored.lease for stored in made.leases], newly_lost, made.changed, made.given_up)


def _checked(
    leases: list[StoreLease],
    newly_lost: tuple[str, ...] = (),
    moved: tuple[int, ...] = (),
    given_up: tuple[int, ...] = (),
) -> ClusterChecked:
    serving = sum(lease.state is StoreState.SERVING for lease in leases)
    away = tuple(lease.store_id for lease in leases if lease.state is StoreState.LOST)
    return ClusterChecked(serving, away, newly_lost, moved, given_up)
