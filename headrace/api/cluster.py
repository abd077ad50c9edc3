"""Segment stores and containers. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, field

from headrace.model.cluster import ContainerStanding, StoreLease, StoreState
from headrace.model.container_logs import COPIES, REPLICA_ID_BYTES, ContainerLog, LogState, ReplicaId
from headrace.model.containers import ContainerClaim
from headrace.model.documents import Document, about
from headrace.model.replica_placement import is_destroyed, lease_of, may_be_removed


class StoreView(Document, frozen=True):
    """A segment store process.

    `state` is SERVING, LEAVING (shutting down), LEFT (after a graceful shutdown) or LOST. After a store has ended, its
    containers wait for it until `take_over_ms`. `containers` are those that the container map assigns to it.
    """

    store_id: str
    state: StoreState
    host: str
    port: int
    zone: str
    capacity: Annotated[int, about("Weight against other stores")]
    incarnation: Annotated[int, about("Grows with each start")]
    task: Annotated[str | None, about("ARN of its ECS task")]
    lease_until_ms: Annotated[int, about("Milliseconds since 1970")]
    ended_ms: Annotated[int | None, about("Since when it is LEFT or LOST, milliseconds since 1970")] = field(
        name="endedTime"
    )
    take_over_ms: Annotated[int | None, about("Until when its containers wait for it, milliseconds since 1970")] = (
        field(name="takeOverTime")
    )
    containers: Annotated[tuple[int, ...], about("What the container map gives it")]
    starts_ms: Annotated[tuple[int, ...], about("Its newest starts, the oldest first, milliseconds since 1970")] = ()
    unflushed_since_ms: Annotated[
        int | None, about("Since when data waits for S3, if that is longer than a minute, milliseconds since 1970")
    ] = None

    @classmethod
    def of(cls, lease: StoreLease, containers: tuple[int, ...]) -> StoreView:
        return cls(
            store_id=lease.store_id,
            state=lease.state,
            host=lease.host,
            port=lease.port,
            zone=lease.zone,
            capacity=lease.capacity,
            incarnation=lease.incarnation,
            task=lease.task or None,
            lease_until_ms=lease.lease_until_ms,
            ended_ms=lease.ended_ms,
            take_over_ms=lease.take_over_ms,
            containers=containers,
            starts_ms=lease.starts_ms,
            unflushed_since_ms=lease.unflushed_since_ms,
        )


class ClusterView(Document, frozen=True):
    """All stores, sorted by id. `map_version` is None before the first container map is written."""

    map_version: Annotated[int | None, about("Null before the first container map")]
    container_count: int
    stores: tuple[StoreView, ...]


class ContainerView(Document, frozen=True):
    """A container and its two stores.

    The container map assigns it to `store`. Clients are sent to `claimed_by`, which listens at `host` and `port`.
    `state` is SERVED, MOVING, FREE (about to be opened) or WAITING (its store is away and expected back).
    """

    container: int
    store: Annotated[str | None, about("The store that the container map names")]
    state: ContainerStanding
    claimed_by: Annotated[str | None, about("The store that clients are sent to")]
    host: str | None
    port: int | None
    zone: str | None
    epoch: Annotated[int | None, about("Grows with each claim; every endpoint answer carries it")]

    @classmethod
    def of(
        cls,
        container: int,
        store: str | None,
        state: ContainerStanding,
        claim: ContainerClaim | None,
        epoch: int | None,
    ) -> ContainerView:
        return cls(
            container=container,
            store=store,
            state=state,
            claimed_by=claim.store_id if claim else None,
            host=claim.host if claim else None,
            port=claim.port if claim else None,
            zone=claim.zone if claim else None,
            epoch=epoch,
        )


class ContainerMapView(Document, frozen=True):
    """All containers, sorted by number."""

    map_version: int | None
    containers: tuple[ContainerView, ...]


# The replicated logs of containers, and what operators change about them.

EPOCH_MAX = (1 << 53) - 1


class LogMemberView(Document, frozen=True):
    """A replica that holds a log.

    `store`, `store_state` and `zone` are None if no store has registered this replica last. `may_be_removed`: its
    store has ended for certain, so an operator may accept the loss of the replica.
    """

    replica: Annotated[str, about("Id of the journal that holds a copy, hexadecimal digits")]
    store: Annotated[str | None, about("The store that has this journal; null if none has registered it last")]
    store_state: StoreState | None
    zone: str | None
    may_be_removed: Annotated[bool, about("Its store has ended for certain: an operator may accept its loss")]

    @classmethod
    def of(cls, replica: ReplicaId, leases: Sequence[StoreLease]) -> LogMemberView:
        lease = lease_of(replica, leases)
        if lease is None:
            return cls(replica.hex(), None, None, None, may_be_removed(None))
        return cls(replica.hex(), lease.store_id, lease.state, lease.zone, may_be_removed(lease))


class LedgerView(Document, frozen=True):
    """A ledger of a log, and its first entry."""

    epoch: Annotated[int, about("Of the owner that wrote it")]
    first: Annotated[int, about("Its first entry; it ends before the first entry of the next ledger")]


class ContainerLogView(Document, frozen=True):
    """The log of a container. `state` and `copies` are None, and `version` is 0, if it has no record.

    The entries from `truncated` on are not all in tier 2. `next_entry` is the first entry of the next ledger of a log
    that is not open. `complete`: all wanted copies exist. `blocked`: its recovery waits for members that do not answer.
    """

    container: int
    state: Annotated[LogState | None, about("Null if the container has no log record")]
    copies: int | None
    version: Annotated[int, about("Of the log record; 0 without one")]
    members: tuple[LogMemberView, ...]
    ledgers: tuple[LedgerView, ...]
    truncated: Annotated[int, about("Tier 2 has everything before this entry")]
    next_entry: Annotated[int | None, about("Of a log that is not open: its next entry")]
    complete: Annotated[bool, about("All wanted copies exist")]
    blocked: Annotated[bool, about("Its recovery waits for members that do not answer")]

    @classmethod
    def of(
        cls, container: int, log: ContainerLog | None, version: int, leases: Sequence[StoreLease]
    ) -> ContainerLogView:
        blocked = any(container in lease.replication.blocked for lease in leases if not lease.has_ended)
        if log is None:
            return cls(container, None, None, version, (), (), 0, None, complete=True, blocked=blocked)
        there = [member for member in log.members if not is_destroyed(member, leases)]
        return cls(
            container=container,
            state=log.state,
            copies=log.copies,
            version=version,
            members=tuple(LogMemberView.of(member, leases) for member in log.members),
            ledgers=tuple(LedgerView(each.epoch, each.first) for each in log.ledgers),
            truncated=log.truncated_before,
            next_entry=log.next_entry,
            complete=log.state is not LogState.OPEN or len(there) == log.copies,
            blocked=blocked,
        )


class ContainerLogsView(Document, frozen=True):
    """The logs of all containers, sorted by number."""

    logs: tuple[ContainerLogView, ...]


class CopiesChanged(Document, frozen=True):
    """The containers whose log record has the other number of copies now, and open logs that keep theirs."""

    copies: int
    changed: Annotated[tuple[int, ...], about("Containers whose log record was changed")]
    kept: Annotated[tuple[int, ...], about("Containers with an open log, which their owners extend")]


class EpochsRaised(Document, frozen=True):
    """The containers whose epoch was raised, and those that still need another request."""

    raised: tuple[int, ...]
    remaining: Annotated[tuple[int, ...], about("Containers that need another request")]


_ReplicaIdText = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * REPLICA_ID_BYTES}}}$")]


class AcceptedLoss(Document, frozen=True):
    lost: Annotated[
        tuple[_ReplicaIdText, ...], Meta(min_length=1, max_length=COPIES, description="Members that are lost")
    ]
    version: Annotated[int, Meta(ge=1, description="Of the log record that names them")]

    def replicas(self) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(bytes.fromhex(each)) for each in self.lost)


class Copies(Document, frozen=True):
    copies: Literal[1, 3]


class RaisedEpochs(Document, frozen=True):
    above: Annotated[int, Meta(ge=0, le=EPOCH_MAX, description="Each container gets a higher epoch than this")]
