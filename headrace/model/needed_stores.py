"""Which logs need a store: to acknowledge, to lose no entry, or until they have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headrace.model.cluster import StoreLease
from headrace.model.container_logs import ContainerLog, LogState
from headrace.model.ensembles import COPIES_MIN, ReplicaId


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
