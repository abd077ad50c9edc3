"""How well the logs of a cluster are replicated, as its stores say in their leases and as the log records say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import NO_COPIES, ContainerLog, LogState
from headrace.model.ensembles import COPIES, COPIES_MIN, ReplicaId
from headrace.model.replica_placement import replica_of, zone_of

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
    found = []
    for container, log in sorted(logs.items()):
        if container in blocked:
            found.append(f"container {container} is blocked: it waits for replicas")
        elif log is not None and log.state is LogState.OPEN and log.copies != NO_COPIES:
            covered = {zone_of[member] for member in log.members if member in zone_of}
            if len(covered) < wanted:
                found.append(f"the log of container {container} has copies in {len(covered)} of {wanted} zones")
    return found


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
