"""How well the logs of a cluster are replicated, which logs need a store, and whether a store has taken its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import COPIES, COPIES_MIN, NO_COPIES, ContainerLog, LogState, ReplicaId
from headrace.model.replica_placement import place_replicas, replica_of, zone_of

# How well the logs of a cluster are replicated, as its stores say in their leases and as the log records say.

# Whether a deployment may continue with the stores of the next zone: only while every log has all its copies.
#
# The next zone then loses one copy of each log at most, and two others are left.


def missing_copies(
    logs: Mapping[int, ContainerLog | None], zone_of: Mapping[ReplicaId, str], blocked: Collection[int], zones: int
) -> list[str]:
    """Describe each container for which the deployment must wait, in the order of their numbers.

    `logs` has the record of each container, None without one. `zone_of` has the zone of each replica whose store
    serves. `blocked` are the containers that wait for replicas. `zones` is the number of zones of the deployment.

    A container without a record has no history. Of a log that is EMPTY or LOST no replica is needed. A log in S3 has no
    replicas. None of them waits.
    """
    wanted = min(COPIES, zones)
    problems = []
    for container, log in sorted(logs.items()):
        if container in blocked:
            problems.append(f"container {container} is blocked: it waits for replicas")
        elif log is not None and log.state is LogState.OPEN and log.copies != NO_COPIES:
            covered = {zone_of[member] for member in log.members if member in zone_of}
            if len(covered) < wanted:
                problems.append(f"the log of container {container} has copies in {len(covered)} of {wanted} zones")
    return problems


@dataclass(frozen=True, slots=True)
class ReplicationHealth:
    """Containers that wait for replicas, the number of logs with fewer copies than wanted, and the isolated stores."""

    blocked: tuple[int, ...] = ()
    under_replicated: int = 0
    isolated: tuple[str, ...] = ()


def replication_health(leases: Iterable[StoreLease]) -> ReplicationHealth:
    """What the stores that have not ended say of the logs that they own."""
    running = [lease for lease in leases if not lease.has_ended]
    return ReplicationHealth(
        tuple(sorted({container for lease in running for container in lease.replication.blocked})),
        sum(lease.replication.under_replicated for lease in running),
        tuple(sorted(lease.store_id for lease in running if lease.replication.isolated)),
    )


def serving_zones(leases: Iterable[StoreLease], now_ms: int) -> dict[ReplicaId, str]:
    """The zone of each replica whose store serves: it is neither stopping nor silent."""
    serving = (lease for lease in leases if lease.state is StoreState.SERVING and not lease.is_expired(now_ms))
    return {replica: zone_of(lease) for lease in serving if (replica := replica_of(lease)) is not None}


def logs_with_one_copy(logs: Mapping[int, ContainerLog | None], zone_of: Mapping[ReplicaId, str]) -> tuple[int, ...]:
    """The containers whose log has fewer members that serve than it needs to acknowledge.

    `zone_of` has the replicas whose store serves. A log with one copy by configuration is not among them.
    """
    return tuple(
        container
        for container, log in sorted(logs.items())
        if log is not None and log.state is LogState.OPEN and log.copies > 1
        if sum(member in zone_of for member in log.members) < COPIES_MIN
    )


# Which logs need a store: to acknowledge, to lose no entry, or until they have ended.


def logs_that_need(
    own: ReplicaId, logs: Mapping[int, ContainerLog | None], zone_of: Mapping[ReplicaId, str]
) -> tuple[int, ...]:
    """The containers whose log would have fewer than two members that serve without the replica `own`.

    `zone_of` has the replicas whose store serves. A log with one copy by configuration moves through tier 2 and needs
    no particular store.
    """
    return tuple(
        container
        for container, log in sorted(logs.items())
        if log is not None and log.state is LogState.OPEN and log.copies > 1 and own in log.members
        if sum(member != own and member in zone_of for member in log.members) < COPIES_MIN
    )


def logs_lost_without(
    own: ReplicaId, logs: Mapping[int, ContainerLog | None], serving: Collection[ReplicaId]
) -> tuple[int, ...]:
    """The containers whose log could lack acknowledged entries if the disk of the replica `own` is deleted.

    `serving` are the replicas whose store serves: without `own`, a recovery must find enough members among them.
    """
    return tuple(
        container
        for container, log in sorted(logs.items())
        if log is not None and log.state is LogState.OPEN and own in log.members
        if not log.ensemble.is_read_quorum([each for each in log.members if each != own and each in serving])
    )


def keeps_leaving_store(own: ReplicaId, logs: Iterable[ContainerLog | None], leases: Iterable[StoreLease]) -> bool:
    """Whether a store that stops must keep its replica `own` available.

    It must while a record names the replica and another store with a replica is there: either that store replaces the
    replica in its logs, or it still flushes them and needs a second copy until the end.
    """
    has_others = any(not each.has_ended and each.replica_id not in ("", own.hex()) for each in leases)
    return has_others and any(log is not None and own in log.members for log in logs)


def is_copy_unneeded(log: ContainerLog | None, own: ReplicaId, promise: int) -> bool:
    """Whether the replica `own`, whose highest promise is given, may drop its copy of a log with this record.

    An owner may count on a replica that the record does not name yet. So the log must have ended, or a later owner than
    the one with the promise must have opened its ledger: then no write of the former one can take effect any more.
    """
    if log is None or own in log.members:
        return False
    return log.state is not LogState.OPEN or log.ledgers[-1].epoch > promise


# Whether a store that replicates has taken its place, so that a deployment may continue.
#
# It serves what the map gives it, it is a member of every log that wants a copy on it, and no older task of its zone is
# a member of any log. Then the older task can be stopped without any log losing a copy.


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a store has read of the cluster.

    `stores` is the store of each container by the map, `logs` the record of each container's log, None without one.
    """

    stores: Mapping[int, str]
    logs: Mapping[int, ContainerLog | None]
    leases: Sequence[StoreLease]


def unsettled_reasons(own: StoreLease, served: Collection[int], view: ClusterView) -> list[str]:
    """Describe why the store of the lease `own` has not taken its place; nothing if it has.

    `served` are the containers that it serves.
    """
    return [*_unserved(own, served, view), *_missing_copies(own, view), *_older_members(own, view)]


def _unserved(own: StoreLease, served: Collection[int], view: ClusterView) -> list[str]:
    """Containers of this store that it does not serve.

    The first store of a deployment cannot serve: a log needs a second store that replicates, which is deployed only
    when this one is well. So a container without a log does not count while no such store of another zone serves. Those
    of other zones may have one copy, if a deployment changes that.
    """
    replicating = [each for each in view.leases if each.state is StoreState.SERVING and each.replica_id]
    is_alone = all(zone_of(each) == zone_of(own) for each in replicating)
    return [
        f"container {container} is not served"
        for container, store_id in sorted(view.stores.items())
        if store_id == own.store_id and container not in served
        if not is_alone or _is_open(view.logs.get(container))
    ]


def _missing_copies(own: StoreLease, view: ClusterView) -> list[str]:
    replica = replica_of(own)
    return [
        f"the log of container {container} wants a copy that is not complete"
        for container, log in sorted(view.logs.items())
        if log is not None and _is_open(log) and log.copies > 1 and replica not in log.members
        if replica in _wanted(container, log, view)
    ]


def _older_members(own: StoreLease, view: ClusterView) -> list[str]:
    older = {
        replica: each.store_id
        for each in view.leases
        if zone_of(each) == zone_of(own) and each.revision < own.revision and not each.has_ended
        if (replica := replica_of(each)) is not None
    }
    return [
        f"the log of container {container} has a copy on the older store {older[member]}"
        for container, log in sorted(view.logs.items())
        if log is not None and _is_open(log)
        for member in log.members
        if member in older
    ]


def _wanted(container: int, log: ContainerLog, view: ClusterView) -> Collection[ReplicaId]:
    """The replicas that are wanted as members of a log, as its owner sees it; none if its owner is not known."""
    owner = next((each for each in view.leases if each.store_id == view.stores.get(container)), None)
    replica = replica_of(owner) if owner is not None else None
    if replica is None:
        return ()
    return place_replicas(container, replica, log.members, view.leases, log.copies).wanted.values()


def _is_open(log: ContainerLog | None) -> bool:
    return log is not None and log.state is LogState.OPEN
