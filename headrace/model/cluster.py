"""Which segment stores there are, and which of them has which container.

A store holds a lease that it renews; the container map says which store each container belongs to. What a container's
owner has acknowledged and tier 2 has not lies in a log on that owner's disk: so a container moves when its owner has
brought everything to tier 2, or when that log is given up because its store has been away for too long.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

HEARTBEAT_EVERY_S: Final = 3.0
"""Between two renewals of a lease: one conditional write per process."""

LEASE_S: Final = 10.0
LEASE_MARGIN_S: Final = 1.0
"""So much before its lease ends a store that could not renew it stops acknowledging, on its monotonic clock."""

CLOCK_SKEW_MAX_MS: Final = 2_000
"""How far the clocks of a store and of whoever judges its lease may differ: so much longer a lease is respected."""

TAKE_OVER_AFTER_DEFAULT_S: Final = 300.0
"""How long a lost store is expected back on its own disk before its containers go on without its log."""

STORE_FORGOTTEN_AFTER_MS: Final = 24 * 3600 * 1000
"""A store that ended so long ago, and that nothing depends on any more, is not listed any more."""

STORES_MAX: Final = 200
"""Processes of segment stores in one cluster: bounds the one query that finds them."""

CAPACITY_DEFAULT: Final = 100


UNSERVED_MAX_MS: Final = 900_000
"""So long a store may keep its lease without serving a container. Longer than the scan of a full journal (64 GiB at 100
MB/s take 11 minutes), and counted over restarts, so that a store that cannot serve does not keep others from it."""

GIVING_WAY_MS: Final = 60_000
"""So much longer than its take-over time such a store stays away: a tick and the stores need a moment to take over."""


class StoreState(enum.StrEnum):
    """What is known of a store."""

    SERVING = "SERVING"
    LEAVING = "LEAVING"
    """It was told to stop: it brings what it has to tier 2 and gets nothing new."""
    LEFT = "LEFT"
    """It has stopped in good order."""
    LOST = "LOST"
    """Its lease has run out, or its task has stopped."""


@dataclass(frozen=True, slots=True)
class StoreLease:
    """A store and its lease. Times in milliseconds since the Unix epoch.

    `host` and `port` are what clients connect to, `zone` its availability zone id, `capacity` its weight against other
    stores. `incarnation` grows with each start. `volume` identifies its disk, `task` its ECS task ("" elsewhere).
    `take_over_after_ms` is how long it is expected back; `take_over_ms`, once it has ended, until when.
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
    """Since when it has had containers to open and served none of them; None: it serves, or has none to open."""

    @property
    def has_ended(self) -> bool:
        return self.state in (StoreState.LEFT, StoreState.LOST)

    def is_expired(self, now_ms: int) -> bool:
        """Whether it has surely stopped acknowledging, whatever its clock says."""
        return not self.has_ended and now_ms > self.lease_until_ms + CLOCK_SKEW_MAX_MS


def registered(store: StoreLease, former: StoreLease | None, now_ms: int) -> StoreLease:
    """The lease with which a store starts, or starts again."""
    incarnation = 1 if former is None else former.incarnation + 1
    unserved_since_ms = now_ms
    if former is not None and former.unserved_since_ms is not None and not _serves_too_late(former, now_ms):
        unserved_since_ms = former.unserved_since_ms
    started = replace(store, incarnation=incarnation, state=StoreState.SERVING, unserved_since_ms=unserved_since_ms)
    return renewed(started, now_ms)


def noted_serving(lease: StoreLease, serves_something: bool, now_ms: int) -> StoreLease:
    """The lease with what is known of how long the store has served nothing."""
    if serves_something:
        return replace(lease, unserved_since_ms=None)
    return lease if lease.unserved_since_ms is not None else replace(lease, unserved_since_ms=now_ms)


def giving_way_ms(lease: StoreLease | None, now_ms: int) -> int:
    """How long a store that serves nothing must not renew this lease, nor take it up again; 0 if it may.

    After UNSERVED_MAX_MS it lets the lease run out, and comes back when others have had the time to take over.
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
    """How long a store must wait before it takes the place of its former self.

    On the same disk the former self is dead, since its journal was locked. On another one it may still acknowledge.
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
    """The lease of a store that has stopped; what it could not bring to tier 2 waits for it as after a loss."""
    return _ended(lease, StoreState.LEFT, now_ms, lease.take_over_after_ms)


def lost(lease: StoreLease, now_ms: int, *, volume_gone: bool = False) -> StoreLease:
    """The lease of a store that does not answer; nobody waits for one whose disk went with its task."""
    return _ended(lease, StoreState.LOST, now_ms, 0 if volume_gone else lease.take_over_after_ms)


def task_stopped(lease: StoreLease, now_ms: int) -> StoreLease:
    """The lease of a store whose ECS task has stopped: it acknowledges nothing, and its disk is gone with it."""
    if lease.state is StoreState.LEFT:
        return replace(lease, take_over_ms=min(now_ms, lease.take_over_ms or now_ms))
    return lost(lease, now_ms, volume_gone=True)


def may_be_forgotten(lease: StoreLease, container_map: ContainerMap, holds: Holds, now_ms: int) -> bool:
    """Whether a store ended long ago, and no container or log of one is its."""
    if lease.ended_ms is None or now_ms - lease.ended_ms < STORE_FORGOTTEN_AFTER_MS:
        return False
    holders = {hold.store_id for hold in holds.values() if hold is not None}
    return lease.store_id not in holders and lease.store_id not in container_map.stores.values()


def _ended(lease: StoreLease, state: StoreState, now_ms: int, wait_ms: int) -> StoreLease:
    until_ms = min(lease.lease_until_ms, now_ms)
    return replace(lease, state=state, lease_until_ms=until_ms, ended_ms=now_ms, take_over_ms=now_ms + wait_ms)


@dataclass(frozen=True, slots=True)
class ContainerHold:
    """The log of a container lies with this store and is needed; `epoch` is that of the store's claim."""

    store_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ContainerMap:
    """The store of each container.

    `given_up` names logs that are not waited for any more: the epoch by container. It is a hint for who may claim, and
    decides nothing: a store that is back before its container was claimed keeps it.
    """

    stores: Mapping[int, str] = field(default_factory=dict)
    given_up: Mapping[int, int] = field(default_factory=dict)

    def containers_of(self, store_id: str) -> tuple[int, ...]:
        """In their order."""
        return tuple(sorted(container for container, owner in self.stores.items() if owner == store_id))


Holds = Mapping[int, ContainerHold | None]
"""By container; None (or nothing): tier 2 has all of it, or nobody ever had it."""


class Duty(enum.Enum):
    """What a store does about a container."""

    NOTHING = "nothing"
    KEEP = "keep"
    OPEN = "open"
    WAIT = "wait"
    """It belongs here, but its log lies with another store, which has to bring it to tier 2 first."""
    HAND_OVER = "hand over"


def duty_when_open(store_id: str, container: int, container_map: ContainerMap) -> Duty:
    """What `store_id` does about a container that it serves. Whether it still may serve it only its claim says."""
    return Duty.KEEP if container_map.stores.get(container) in (None, store_id) else Duty.HAND_OVER


def duty_when_closed(store_id: str, container: int, hold: ContainerHold | None, container_map: ContainerMap) -> Duty:
    """What `store_id` does about a container that it does not serve.

    A store that holds the log of a container that belongs to another one opens it in order to hand it over, even if
    the map says that the log was given up: as long as no other store has claimed the container, nothing is lost.
    """
    given_up = hold is not None and container_map.given_up.get(container) == hold.epoch
    held_here = hold is not None and hold.store_id == store_id
    if container_map.stores.get(container) == store_id:
        return Duty.OPEN if hold is None or held_here or given_up else Duty.WAIT
    return Duty.OPEN if held_here else Duty.NOTHING


def may_be_taken_over(holder: StoreLease | None, now_ms: int) -> bool:
    """Whether containers may be claimed whose log is with the store of this lease: it has ended and was waited for.

    A claim of such a container is one transaction with a check that the lease is still the one that was judged. So the
    claims of a store stay as they are while its lease runs, except for what it hands over itself.
    """
    return holder is None or (holder.take_over_ms is not None and now_ms >= holder.take_over_ms)


def assign(
    former: ContainerMap, leases: Sequence[StoreLease], holds: Holds, container_count: int, now_ms: int
) -> ContainerMap:
    """The map that gives every container to one store, by capacity and evenly over zones, with the fewest moves.

    A store gets its share rounded up at most, and so does a zone. Containers whose log lies with a store that has
    ended stay with it until its time is over; then that log is given up. Without a store that serves nothing changes.
    """
    by_id = {lease.store_id: lease for lease in leases}
    serving = sorted((one for one in leases if one.state is StoreState.SERVING), key=lambda one: one.store_id)
    if not serving:
        return former
    here = {one.store_id for one in serving}
    stores: dict[int, str] = {}
    given_up: dict[int, int] = {}
    free: list[int] = []
    for container in range(container_count):
        owner, hold = former.stores.get(container), holds.get(container)
        if hold is not None and _is_given_up(container, hold, former, by_id, now_ms):
            given_up[container] = hold.epoch
            hold = None
        if owner in here:
            stores[container] = str(owner)
        elif hold is not None and not _is_leaving(hold.store_id, by_id):
            stores[container] = hold.store_id
        else:
            free.append(container)
    _balance(stores, free, serving)
    return ContainerMap(dict(sorted(stores.items())), given_up)


def _is_leaving(store_id: str, by_id: Mapping[str, StoreLease]) -> bool:
    lease = by_id.get(store_id)
    return lease is not None and lease.state is StoreState.LEAVING


def _is_given_up(
    container: int, hold: ContainerHold, former: ContainerMap, by_id: Mapping[str, StoreLease], now_ms: int
) -> bool:
    """A log that was given up once stays so; whether the container may still be claimed its holder's lease says."""
    if former.given_up.get(container) == hold.epoch:
        return True
    lease = by_id.get(hold.store_id)
    return lease is not None and may_be_taken_over(lease, now_ms)


def _balance(stores: dict[int, str], free: list[int], serving: Sequence[StoreLease]) -> None:
    """Give the free containers to stores, and take from those that have more than their part."""
    owned: dict[str, list[int]] = {one.store_id: [] for one in serving}
    for container, owner in sorted(stores.items()):
        if owner in owned:
            owned[owner].append(container)
    count = len(free) + sum(map(len, owned.values()))
    parts = _parts(serving, {store_id: len(held) for store_id, held in owned.items()}, count)
    room: dict[str, int] = {}
    for store_id, held in owned.items():
        free.extend(held[parts[store_id] :])
        room[store_id] = max(0, parts[store_id] - len(held))
    for container in sorted(free):
        taker = max(sorted(room), key=room.__getitem__)
        stores[container] = taker
        room[taker] -= 1


def _parts(serving: Sequence[StoreLease], held: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of `count` containers each store gets: its share by capacity, rounded so that the fewest move.

    Rounding is bounded for stores and for zones alike; that always works out, since zones nest stores.
    """
    total = sum(one.capacity for one in serving)
    parts = {one.store_id: count * one.capacity // total for one in serving}
    # A store that would lose a container by rounding down comes first, then the order of names.
    keeps = {one.store_id: held[one.store_id] > parts[one.store_id] for one in serving}
    zones: dict[str, list[StoreLease]] = {}
    for one in serving:
        zones.setdefault(one.zone, []).append(one)
    wanting: list[str] = []  # per zone at most one: the store that makes the zone's share round up
    for _, members in sorted(zones.items()):
        uneven = sorted(
            (one.store_id for one in members if count * one.capacity % total), key=lambda name: (not keeps[name], name)
        )
        capacity = sum(one.capacity for one in members)
        due = count * capacity // total - sum(parts[one.store_id] for one in members)
        for store_id in uneven[:due]:
            parts[store_id] += 1
        if count * capacity % total:
            wanting.append(uneven[due])
    missing = count - sum(parts.values())
    for store_id in sorted(wanting, key=lambda name: (not keeps[name], name))[:missing]:
        parts[store_id] += 1
    return parts


class ContainerStanding(enum.StrEnum):
    """How it stands with a container."""

    SERVED = "SERVED"
    MOVING = "MOVING"
    """The store that the map names waits for the one that has its log, or is about to go on without that."""
    FREE = "FREE"
    """Tier 2 has all of it, and the store that the map names opens it in a moment."""
    WAITING = "WAITING"
    """Its log lies with a store that is away and expected back."""


def container_standing(
    container: int, hold: ContainerHold | None, container_map: ContainerMap, leases: Mapping[str, StoreLease]
) -> ContainerStanding:
    """How it stands with a container whose log lies where `hold` says; `leases` by store id."""
    if hold is None:
        return ContainerStanding.FREE
    holder = leases.get(hold.store_id)
    is_there = holder is not None and not holder.has_ended
    if container_map.stores.get(container) == hold.store_id:
        return ContainerStanding.SERVED if is_there else ContainerStanding.WAITING
    given_up = container_map.given_up.get(container) == hold.epoch
    return ContainerStanding.MOVING if is_there or given_up else ContainerStanding.WAITING
