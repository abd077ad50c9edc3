"""How well the logs of a cluster are replicated, as its stores say in their leases and as the log records say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LogState
from headrace.model.ensembles import COPIES_MIN, ReplicaId
from headrace.model.replica_placement import replica_of, zone_of


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
