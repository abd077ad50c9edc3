"""The cluster of segment stores: their leases, and the container map that assigns each container to a store.

A store holds a lease and renews it. Appends that a container's owner has acknowledged and not yet flushed to tier 2 are
only in the log on that owner's disk. So a container moves after its owner has flushed everything to tier 2. It also
moves when its store has been away for too long; then its log is discarded.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import ExternalAddress

# The versions of the protocol between replicas that a store speaks.
#
# A release speaks the version of the release before, so that stores of both form one log during a deployment. Stores
# without a common version must not share a log: none of them could read the copies of the others.

VERSION_MAX: Final = (1 << 16) - 1
"""HELLO has two bytes for a version."""


@dataclass(frozen=True, slots=True)
class ProtocolVersions:
    """All versions from `low` to `high`.

    Raises:
        InvalidRequestError: `low` is less than 1 or more than `high`, or `high` is more than VERSION_MAX.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= VERSION_MAX:
            raise InvalidRequestError(
                f"there are no protocol versions from {self.low} to {self.high}: they are numbers from 1 to "
                f"{VERSION_MAX}, the lowest one first"
            )

    def shared(self, other: ProtocolVersions) -> ProtocolVersions | None:
        """The versions that both speak; None without any."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return ProtocolVersions(low, high) if low <= high else None

    def __str__(self) -> str:
        return f"version {self.low}" if self.low == self.high else f"versions {self.low} to {self.high}"


FIRST_PROTOCOL: Final = ProtocolVersions(1, 1)
"""What a store speaks whose lease says nothing else."""

REPLICA_PROTOCOL: Final = ProtocolVersions(1, 1)
"""What this release speaks."""


HEARTBEAT_EVERY_S: Final = 3.0
"""The time between two renewals of a lease. A renewal is one conditional write per process."""

LEASE_S: Final = 10.0
LEASE_MARGIN_S: Final = 1.0
"""A store that could not renew its lease stops acknowledging this long before its end, by its monotonic clock."""

CLOCK_SKEW_MAX_MS: Final = 2_000
"""The largest difference between the clocks of a store and of the process that judges its lease. The process waits this
much longer before it treats the lease as expired."""

TAKE_OVER_AFTER_DEFAULT_S: Final = 300.0
"""How long the cluster waits for a lost store to return with its disk. Then other stores take over its containers
without its log."""

STORE_FORGOTTEN_AFTER_MS: Final = 24 * 3600 * 1000
"""A store is no longer listed this long after it ended, unless a container or a log still depends on it."""

STORES_MAX: Final = 200
"""Processes of segment stores in one cluster. It bounds the one query that finds them."""

CAPACITY_DEFAULT: Final = 100


UNSERVED_MAX_MS: Final = 900_000
"""How long a store may keep its lease without serving a container. This is longer than the scan of a full journal
(64 GiB at 100 MB/s take 11 minutes). It is counted over restarts, so that a store that cannot serve does not block
others."""

GIVING_WAY_MS: Final = 60_000
"""Such a store stays away for its take-over time and this much longer: the tick and the other stores need time to take
its containers over."""


STARTS_KEPT: Final = 5
"""How many of its newest starts a lease has."""

RESTARTING_WITHIN_MS: Final = 1_800_000
"""A store with STARTS_KEPT starts within this time does not last, even if it serves at the moment. Deployments and
single crashes are rarer."""

FLUSH_LAG_S_MAX: Final = 60.0
"""A store flushes a byte within seconds. If one has waited longer, tier 2 refuses or throttles requests, or is slow."""


class StoreState(enum.StrEnum):
    """What is known of a store."""

    SERVING = "SERVING"
    LEAVING = "LEAVING"
    """The store was told to stop. It flushes its containers to tier 2 and gets no new ones."""
    LEFT = "LEFT"
    """The store has completed a clean shutdown."""
    LOST = "LOST"
    """The lease of the store has expired, or its task has stopped."""


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """What a store says of the logs that it owns.

    `isolated`: it reaches no other store, so it can acknowledge nothing. `stalled`: its disk ends no commit, while two
    other members of its logs write. `blocked` are the containers whose recovery waits for replicas that do not answer.
    `under_replicated` counts the containers with fewer copies than wanted.
    """

    isolated: bool = False
    blocked: tuple[int, ...] = ()
    under_replicated: int = 0
    stalled: bool = False

    @property
    def may_own(self) -> bool:
        """Whether the store can serve containers, as far as other stores and its own disk decide that."""
        return not self.isolated and not self.stalled


@dataclass(frozen=True, slots=True)
class StoreLease:
    """A store and its lease. Times in milliseconds since the Unix epoch.

    Clients connect to `host` and `port`. `zone` is the availability zone id, `capacity` the weight against other
    stores. `incarnation` grows with each start. `volume` identifies the disk, `task` the ECS task ("" elsewhere). The
    cluster waits `take_over_after_ms` for a lost store to return; `take_over_ms` is when that time ends, once the store
    has ended.
    """

    store_id: str
    host: str
    port: int
    zone: str
    capacity: int
    volume: str
    task: str
    take_over_after_ms: int
    incarnation: int = 0
    state: StoreState = StoreState.SERVING
    lease_until_ms: int = 0
    ended_ms: int | None = None
    take_over_ms: int | None = None
    unserved_since_ms: int | None = None
    """Since when the store has had containers to open and has served none. None: it serves, or has none to open."""

    replica_id: str = ""
    """The replica of this store's journal as hexadecimal digits; "" if the store replicates nothing."""

    replica_port: int = 0
    """Other stores connect to it in order to replicate; 0 if the store replicates nothing."""

    revision: int = 0
    """The revision of the task definition; 0 outside of ECS."""

    replication: ReplicationStatus = field(default_factory=ReplicationStatus)
    volume_gone: bool = False
    """The ECS task has stopped, and its disk was deleted with it."""

    replica_protocol: ProtocolVersions = FIRST_PROTOCOL
    """What the store speaks with other stores that replicate."""

    tls_name: str = ""
    """The name in the store's certificate, which clients and other stores verify; "" if they connect without TLS."""

    external: ExternalAddress | None = None
    """Where clients outside the network of the stores connect; None: nowhere."""

    release: str = ""
    """The release of the store's code, as `0.3`; "" for 0.2, which does not say it."""

    starts_ms: tuple[int, ...] = ()
    """The times of the newest starts, in ascending order. A lease that was ended and is registered again counts."""

    unflushed_since_ms: int | None = None
    """Since when the oldest byte waits for tier 2. None: it has waited for less than FLUSH_LAG_S_MAX, or none waits."""

    @property
    def has_ended(self) -> bool:
        return self.state in (StoreState.LEFT, StoreState.LOST)

    @property
    def keeps_containers(self) -> bool:
        """Whether the store goes on serving. If it replicates, it reaches other stores, and its disk does not stall."""
        return self.state is StoreState.SERVING and self.replication.may_own

    @property
    def keeps_copies(self) -> bool:
        """Whether logs may have copies on the store. A disk that stalls may go on, and is better than no third copy."""
        return self.state is StoreState.SERVING and not self.replication.isolated

    def is_expired(self, now_ms: int) -> bool:
        """Whether the store must have stopped acknowledging, also with the largest clock difference."""
        return not self.has_ended and now_ms > self.lease_until_ms + CLOCK_SKEW_MAX_MS


def registered(store: StoreLease, former: StoreLease | None, now_ms: int) -> StoreLease:
    """The lease with which a store starts or restarts."""
    incarnation = 1 if former is None else former.incarnation + 1
    unserved_since_ms = now_ms
    if former is not None and former.unserved_since_ms is not None and not _serves_too_late(former, now_ms):
        unserved_since_ms = former.unserved_since_ms
    # A start in the future was noted by a clock that was wrong.
    starts_ms = (*(each for each in (() if former is None else former.starts_ms) if each <= now_ms), now_ms)
    started = replace(
        store,
        incarnation=incarnation,
        state=StoreState.SERVING,
        unserved_since_ms=unserved_since_ms,
        starts_ms=starts_ms[-STARTS_KEPT:],
    )
    return renewed(started, now_ms)


def is_restarting(starts_ms: Sequence[int], now_ms: int) -> bool:
    """Whether a store with these newest starts starts again and again.

    Starts further in the future than RESTARTING_WITHIN_MS say nothing: the clock of the store was wrong.
    """
    return len(starts_ms) >= STARTS_KEPT and abs(now_ms - starts_ms[-STARTS_KEPT]) < RESTARTING_WITHIN_MS


def noted_serving(lease: StoreLease, serves_something: bool, now_ms: int) -> StoreLease:
    """The lease with the time since which the store has served no container."""
    if serves_something:
        return replace(lease, unserved_since_ms=None)
    return lease if lease.unserved_since_ms is not None else replace(lease, unserved_since_ms=now_ms)


def noted_replication(lease: StoreLease, status: ReplicationStatus) -> StoreLease:
    """The lease with what the store says of its logs now."""
    return replace(lease, replication=status)


def noted_flush_lag(lease: StoreLease, lag_s: float, now_ms: int) -> StoreLease:
    """The lease with the age of the oldest byte that tier 2 does not have, if that is too much."""
    since_ms = max(1, now_ms - int(lag_s * 1000))  # the clock may have been set back, and no record has a negative time
    return replace(lease, unflushed_since_ms=since_ms if lag_s > FLUSH_LAG_S_MAX else None)


def giving_way_ms(lease: StoreLease | None, now_ms: int) -> int:
    """How long a store that serves no container must neither renew this lease nor register again; 0 if it may.

    After UNSERVED_MAX_MS the store lets the lease expire. It returns after other stores have had the time to take over.
    """
    if lease is None or not _serves_too_late(lease, now_ms):
        return 0
    free_ms = lease.take_over_ms
    if free_ms is None:
        free_ms = lease.lease_until_ms + CLOCK_SKEW_MAX_MS + lease.take_over_after_ms
    return max(0, free_ms + GIVING_WAY_MS - now_ms)


def _serves_too_late(lease: StoreLease, now_ms: int) -> bool:
    return lease.unserved_since_ms is not None and now_ms - lease.unserved_since_ms > UNSERVED_MAX_MS


def registration_wait_ms(former: StoreLease | None, volume: str, now_ms: int) -> int:
    """How long a store must wait before it replaces its former process, whose lease is `former`.

    On the same disk the former process has ended, since the new one could lock the journal. With another disk the
    former process may still acknowledge appends until its lease has expired.
    """
    if former is None or former.has_ended or former.volume == volume:
        return 0
    return max(0, former.lease_until_ms + CLOCK_SKEW_MAX_MS - now_ms)


def renewed(lease: StoreLease, now_ms: int) -> StoreLease:
    until_ms = now_ms + int(LEASE_S * 1000)
    return replace(lease, lease_until_ms=until_ms, ended_ms=None, take_over_ms=None)


def leaving(lease: StoreLease, now_ms: int) -> StoreLease:
    """The lease of a store that is stopping."""
    return renewed(replace(lease, state=StoreState.LEAVING), now_ms)


def left(lease: StoreLease, now_ms: int) -> StoreLease:
    """The lease of a store that has stopped. Containers that it could not flush wait for it as after a loss."""
    return _ended(lease, StoreState.LEFT, now_ms, lease.take_over_after_ms)


def lost(lease: StoreLease, now_ms: int, *, volume_gone: bool = False) -> StoreLease:
    """The lease of a store that does not answer. With `volume_gone` its disk is lost, so no container waits for it."""
    ended = _ended(lease, StoreState.LOST, now_ms, 0 if volume_gone else lease.take_over_after_ms)
    return replace(ended, volume_gone=volume_gone)


def task_stopped(lease: StoreLease, now_ms: int) -> StoreLease:
    """The lease of a store whose ECS task has stopped: the store has ended, and its disk is lost."""
    if lease.state is StoreState.LEFT:
        return replace(lease, take_over_ms=min(now_ms, lease.take_over_ms or now_ms), volume_gone=True)
    if lease.state is StoreState.LOST and lease.volume_gone:
        return lease
    return lost(lease, now_ms, volume_gone=True)


def may_be_forgotten(lease: StoreLease, container_map: ContainerMap, holds: Holds, now_ms: int) -> bool:
    """Whether a store ended long ago, and has neither a container nor a container's log."""
    if lease.ended_ms is None or now_ms - lease.ended_ms < STORE_FORGOTTEN_AFTER_MS:
        return False
    with_logs = {hold.store_id for hold in holds.values() if hold is not None}
    return lease.store_id not in with_logs and lease.store_id not in container_map.stores.values()


def _ended(lease: StoreLease, state: StoreState, now_ms: int, wait_ms: int) -> StoreLease:
    until_ms = min(lease.lease_until_ms, now_ms)
    return replace(lease, state=state, lease_until_ms=until_ms, ended_ms=now_ms, take_over_ms=now_ms + wait_ms)


@dataclass(frozen=True, slots=True)
class ContainerHold:
    """The log of a container is on the disk of this store and is needed. `epoch` is the epoch of the store's claim.

    `log_in_s3`: the log is in S3 instead. While the store is there it flushes the log before it gives the container
    away. Once it has ended, no other store has to wait for it.
    """

    store_id: str
    epoch: int
    log_in_s3: bool = False


@dataclass(frozen=True, slots=True)
class ContainerMap:
    """The store of each container.

    `discarded_logs` names the logs for which the cluster no longer waits: the epoch by container. It only suggests
    which containers to claim. A store that returns before another store has claimed its container keeps the container.
    """

    stores: Mapping[int, str] = field(default_factory=dict)
    discarded_logs: Mapping[int, int] = field(default_factory=dict)

    def containers_of(self, store_id: str) -> tuple[int, ...]:
        """The containers of a store, in ascending order."""
        return tuple(sorted(container for container, owner in self.stores.items() if owner == store_id))


Holds = Mapping[int, ContainerHold | None]
"""By container. None, or no entry: tier 2 has all data of the container, or no store has ever claimed it."""


class ContainerAction(enum.Enum):
    """What a store does about a container."""

    NOTHING = "nothing"
    KEEP = "keep"
    OPEN = "open"
    WAIT = "wait"
    """The map assigns the container to this store, but its log is on another store, which must flush it to tier 2
    first."""
    HAND_OVER = "hand over"


def action_when_open(store_id: str, container: int, container_map: ContainerMap) -> ContainerAction:
    """What `store_id` does about a container that it serves. Only its claim decides whether it may still serve it."""
    if container_map.stores.get(container) in (None, store_id):
        return ContainerAction.KEEP
    return ContainerAction.HAND_OVER


def action_when_closed(
    store_id: str, container: int, hold: ContainerHold | None, container_map: ContainerMap
) -> ContainerAction:
    """What `store_id` does about a container that it does not serve.

    A store that has the log of a container of another store opens the container in order to hand it over. It does so
    even if the map says that the log was discarded: no data is lost until another store has claimed the container.
    """
    is_discarded = hold is not None and container_map.discarded_logs.get(container) == hold.epoch
    held_here = hold is not None and hold.store_id == store_id
    if container_map.stores.get(container) == store_id:
        may_open = hold is None or held_here or is_discarded
        return ContainerAction.OPEN if may_open else ContainerAction.WAIT
    return ContainerAction.OPEN if held_here else ContainerAction.NOTHING


UNHEARD_S: Final = 50.0
"""How much longer the tick waits for a store that replicates, after its lease has run out. Its peers notice its end in
seconds. If they do not, the store has lost only DynamoDB: it goes on, and a takeover would cost more than it gains."""


def may_be_ended(lease: StoreLease, now_ms: int) -> bool:
    """Whether the tick may end a lease that was not renewed."""
    return lease.is_expired(now_ms - int(UNHEARD_S * 1000) if lease.replica_id else now_ms)


SILENT_S: Final = 1.5
"""A link without a message for this long is silent: its heartbeats are more frequent."""

UNCHANGED_S: Final = 4.0
"""A store that is silent has ended if its lease has not changed for this long, on the clock of the store that looks."""


UNCHANGED_WITHOUT_LINK_S: Final = LEASE_S + CLOCK_SKEW_MAX_MS / 1000
"""A store to which there is no link has ended if its lease has not changed for this long."""


def has_ended_silently(lease: StoreLease, silent_s: float | None, unchanged_s: float) -> bool:
    """Whether another store may end a lease.

    `silent_s` is for how long the store's replica has been silent, None without a link to it. `unchanged_s` is for how
    long the lease was seen without a change. A wrong suspicion costs a takeover and loses nothing: replicas fence the
    former owner.
    """
    if not lease.replica_id or lease.has_ended:
        return False
    if silent_s is None:
        return unchanged_s >= UNCHANGED_WITHOUT_LINK_S
    return silent_s >= SILENT_S and unchanged_s >= UNCHANGED_S


def may_be_taken_over(lease: StoreLease | None, now_ms: int, *, log_in_s3: bool = False) -> bool:
    """Whether other stores may claim the containers whose log is on the store of this lease, or is its log in S3.

    They may if the store has ended and its take-over time has passed, or if it has no lease. The claim is one
    transaction with a check that the lease has not changed since it was judged. So no other store can claim a container
    of a store whose lease is valid, unless that store hands it over, or says that it is isolated or that its disk
    stalls: then it cannot flush a checkpoint either. Replicas fence it. No take-over time has to pass for a log in S3,
    which does not need the disk of the store.
    """
    if lease is not None and lease.replica_id and not lease.replication.may_own:
        return True
    if log_in_s3 and lease is not None and lease.has_ended:
        return True
    return lease is None or (lease.take_over_ms is not None and now_ms >= lease.take_over_ms)


class ContainerStanding(enum.StrEnum):
    """How it stands with a container."""

    # The OpenAPI document contains this name and this docstring.

    SERVED = "SERVED"
    MOVING = "MOVING"
    """The store that the map names waits for the store that has the log, or is about to open it without that log."""
    FREE = "FREE"
    """Tier 2 has all data of the container, and the store that the map names is about to open it."""
    WAITING = "WAITING"
    """The log is on a store that is away and expected back."""


def container_status(
    container: int, hold: ContainerHold | None, container_map: ContainerMap, leases: Mapping[str, StoreLease]
) -> ContainerStanding:
    """The status of a container whose log is where `hold` says; `leases` by store id."""
    if hold is None:
        return ContainerStanding.FREE
    lease = leases.get(hold.store_id)
    is_there = lease is not None and not lease.has_ended
    if container_map.stores.get(container) == hold.store_id:
        return ContainerStanding.SERVED if is_there else ContainerStanding.WAITING
    is_discarded = container_map.discarded_logs.get(container) == hold.epoch
    return ContainerStanding.MOVING if is_there or is_discarded else ContainerStanding.WAITING
