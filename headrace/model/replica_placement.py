"""Decides which stores should hold the copies of a container's log, and which store serves each container.

Members of a log are in different zones. Within a zone, rendezvous hashing selects the store, so that a store that joins
or leaves changes the members of few containers only.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from headrace.model.cluster import (
    REPLICA_PROTOCOL,
    ContainerHold,
    ContainerMap,
    Holds,
    ProtocolVersions,
    StoreLease,
    StoreState,
    may_be_taken_over,
)
from headrace.model.container_logs import COPIES, ReplicaId
from headrace.zones import LOCAL_ZONE

_HASH_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Placement:
    """Where copies are wanted: the replica of each zone, the zone of each replica, and the replicas that are destroyed.

    A replica is destroyed if its store registered with another replica id, or its task has stopped or is about to.
    """

    wanted: Mapping[str, ReplicaId] = field(default_factory=dict)
    zones: Mapping[ReplicaId, str] = field(default_factory=dict)
    destroyed: frozenset[ReplicaId] = frozenset()


class ReplicaAddress(NamedTuple):
    """`tls_name` is that in the store's certificate; "": its store uses no TLS. `zone` is where the store is.

    `store_id` is for people only.
    """

    host: str
    port: int
    tls_name: str = ""
    zone: str = ""
    store_id: str = ""


def replica_of(lease: StoreLease) -> ReplicaId | None:
    """The replica of a store; None if the store replicates nothing."""
    return ReplicaId(bytes.fromhex(lease.replica_id)) if lease.replica_id else None


class StoreInZone(Protocol):
    """A store: its lease, or what the API says of it."""

    @property
    def store_id(self) -> str: ...

    @property
    def zone(self) -> str: ...


def zone_of(store: StoreInZone) -> str:
    """The zone that no other copy of a log may be in: that of the store, or the store itself without real zones."""
    return store.store_id if store.zone == LOCAL_ZONE else store.zone


def lease_of(replica: ReplicaId, leases: Iterable[StoreLease]) -> StoreLease | None:
    """The lease of the store that has this replica; None if its store registered with another one or is forgotten."""
    return next((lease for lease in leases if lease.replica_id == replica.hex()), None)


def address_of(replica: ReplicaId, leases: Iterable[StoreLease]) -> ReplicaAddress | None:
    """Where other stores reach a replica; None if its store does not replicate or is not known.

    A store whose lease has expired has an address, too: it may have lost only the metadata store.
    """
    lease = lease_of(replica, leases)
    if lease is None or not lease.replica_port:
        return None
    return ReplicaAddress(lease.host, lease.replica_port, lease.tls_name, lease.zone, lease.store_id)


def is_destroyed(replica: ReplicaId, leases: Iterable[StoreLease]) -> bool:
    """Whether a replica that was a member of a log will not be there again.

    A store registers its replica before any log can name it. So a replica without a lease was replaced or forgotten.
    """
    lease = lease_of(replica, leases)
    return lease is None or lease.volume_gone or lease.state in (StoreState.LEAVING, StoreState.LEFT)


def may_be_removed(lease: StoreLease | None) -> bool:
    """Whether an operator may accept the loss of the replica of this lease (`lease_of`).

    Its store must have ended. On ECS its task must be reported as stopped, too: a store that is only cut off could go
    on acknowledging into a log that continues without it.
    """
    return lease is None or (lease.has_ended and (not lease.task or lease.volume_gone))


def place_replicas(
    container: int,
    own: ReplicaId,
    members: Sequence[ReplicaId],
    leases: Sequence[StoreLease],
    copies: int = COPIES,
) -> Placement:
    """Where the copies of a container are wanted, whose log has these members and is owned by the store of `own`.

    At most `copies` zones are named: that of the owner, those of members that are kept, then the others by hash. A
    member is kept while its store serves, unless its zone has a store of a newer revision. All of them speak one common
    version of the protocol, since each may become the owner.
    """
    zones = {replica: zone_of(lease) for lease in leases if (replica := replica_of(lease)) is not None}
    own_zone = zones.get(own)
    own_lease = lease_of(own, leases)
    spoken = REPLICA_PROTOCOL if own_lease is None else own_lease.replica_protocol
    candidates = _candidates(leases, spoken).items()
    chosen = {zone: _chosen(container, stores, members) for zone, stores in candidates if zone != own_zone}
    occupied = {zones.get(member) for member in members}
    order = sorted(
        chosen, key=lambda zone: (zone not in occupied, -_weight(container, zone, chosen[zone].capacity), zone)
    )
    wanted: dict[str, ReplicaId] = {}
    for zone in order:
        shared = spoken.shared(chosen[zone].replica_protocol)
        if shared is not None and len(wanted) < copies - 1:
            wanted[zone], spoken = _replica(chosen[zone]), shared
    if own_zone is not None:
        wanted[own_zone] = own
    destroyed = frozenset(each for each in {*zones, *members} if is_destroyed(each, leases))
    return Placement(wanted, zones, destroyed)


def first_members(
    container: int, own: ReplicaId, leases: Sequence[StoreLease], copies: int = COPIES
) -> tuple[ReplicaId, ...]:
    """The members of a new log: the owner's replica first, then one in each of the other zones, up to `copies`.

    There are fewer where fewer zones have a store that replicates.
    """
    wanted = place_replicas(container, own, (), leases, copies).wanted.values()
    return (own, *(replica for replica in wanted if replica != own))[:copies]


def _candidates(leases: Iterable[StoreLease], spoken: ProtocolVersions) -> dict[str, list[StoreLease]]:
    """The stores of the newest revision that can take copies from an owner who speaks these versions, by zone."""
    by_zone: dict[str, list[StoreLease]] = {}
    for lease in leases:
        is_able = lease.keeps_copies and spoken.shared(lease.replica_protocol) is not None
        if is_able and lease.replica_id and lease.replica_port:
            by_zone.setdefault(zone_of(lease), []).append(lease)
    for zone, stores in by_zone.items():
        newest = max(lease.revision for lease in stores)
        by_zone[zone] = [lease for lease in stores if lease.revision == newest]
    return by_zone


def _chosen(container: int, stores: Sequence[StoreLease], members: Sequence[ReplicaId]) -> StoreLease:
    """The member among the stores of a zone, else the store with the highest weight."""
    there = [lease for lease in stores if _replica(lease) in members]
    return max(there or stores, key=lambda lease: (_weight(container, lease.store_id, lease.capacity), lease.store_id))


def _replica(lease: StoreLease) -> ReplicaId:
    return ReplicaId(bytes.fromhex(lease.replica_id))


def _weight(container: int, name: str, capacity: int) -> float:
    """Weighted rendezvous hashing: of several names, each has the highest weight in proportion to its capacity."""
    digest = hashlib.sha256(f"{container}/{name}".encode()).digest()
    fraction = (int.from_bytes(digest[:_HASH_BYTES]) + 1) / (2 ** (8 * _HASH_BYTES) + 1)
    return -capacity / math.log(fraction)


# Assigns each container to a store: by capacity, evenly over zones, with the fewest moves.
#
# A container that moves goes to a store that has a copy of its log, if one of them has room.

LogMembers = Mapping[int, Collection[str]]
"""By container: the stores that are members of its log. A container without an entry has no copies."""

_NO_MEMBERS: Final[LogMembers] = {}


def assign(
    former: ContainerMap,
    leases: Sequence[StoreLease],
    holds: Holds,
    container_count: int,
    now_ms: int,
    members: LogMembers = _NO_MEMBERS,
) -> ContainerMap:
    """The map that gives every container to one store, by capacity and evenly over zones, with the fewest moves.

    A store gets at most its share rounded up, and so does a zone. Containers whose log is on a store that has ended
    stay assigned to it until its take-over time is over; then that log is discarded. Containers of a store that ends,
    stops or is isolated go to `members` of their logs first. So do those of a store that replicates, once its zone has
    a store of a newer revision: a deployment stops the older task only when it has no copy any more, and an owner
    always has one. A store that shares no version of the protocol with most zones could not replicate, and counts as
    isolated. Without a serving store the map stays as it is.
    """
    by_id = {lease.store_id: lease for lease in leases}
    ables = _Ables(leases)
    serving = sorted(filter(ables.can_serve, leases), key=lambda lease: lease.store_id)
    if not serving:
        return former
    here = {lease.store_id for lease in serving}
    stores: dict[int, str] = {}
    discarded: dict[int, int] = {}
    free: list[int] = []
    for container in range(container_count):
        owner, hold = former.stores.get(container), holds.get(container)
        if hold is not None and _is_discarded(container, hold, former, by_id, now_ms):
            discarded[container] = hold.epoch
            hold = None
        if owner in here:
            stores[container] = str(owner)
        elif hold is not None and not ables.hands_over(by_id.get(hold.store_id)):
            stores[container] = hold.store_id
        else:
            free.append(container)
    _balance(stores, free, serving, members)
    return ContainerMap(dict(sorted(stores.items())), discarded)


class _Ables:
    """The stores that can serve containers."""

    def __init__(self, leases: Sequence[StoreLease]) -> None:
        replicating = [lease for lease in leases if lease.keeps_containers and lease.replica_id]
        zones: dict[ProtocolVersions, set[str]] = {}
        for lease in replicating:
            zones.setdefault(lease.replica_protocol, set()).add(zone_of(lease))
        self._reached = {
            versions: len(set[str]().union(*(zones[other] for other in zones if versions.shared(other))))
            for versions in zones
        }
        self._newest: dict[str, int] = {}  # revisions of replicating stores, by zone
        for lease in filter(self._is_understood, replicating):
            self._newest[zone_of(lease)] = max(lease.revision, self._newest.get(zone_of(lease), 0))

    def can_serve(self, lease: StoreLease) -> bool:
        """A store that reaches no other store can acknowledge nothing, and one of an older revision is about to end."""
        if not lease.keeps_containers or not lease.replica_id:
            return lease.keeps_containers
        return self._is_understood(lease) and lease.revision >= self._newest.get(zone_of(lease), 0)

    def hands_over(self, lease: StoreLease | None) -> bool:
        """Whether a store that has a container's log is there, and gives the container away."""
        return lease is not None and not lease.has_ended and not self.can_serve(lease)

    def _is_understood(self, lease: StoreLease) -> bool:
        """Whether no other store shares a version of the protocol with more zones."""
        return self._reached[lease.replica_protocol] == max(self._reached.values())


def _is_discarded(
    container: int, hold: ContainerHold, former: ContainerMap, by_id: Mapping[str, StoreLease], now_ms: int
) -> bool:
    """A discarded log stays discarded. The lease of the log's store decides whether other stores may claim."""
    if former.discarded_logs.get(container) == hold.epoch:
        return True
    lease = by_id.get(hold.store_id)
    return lease is not None and may_be_taken_over(lease, now_ms, log_in_s3=hold.log_in_s3)


def _balance(stores: dict[int, str], free: list[int], serving: Sequence[StoreLease], members: LogMembers) -> None:
    """Assign the free containers to stores, and move containers away from stores that have more than their part.

    Containers with the fewest members among these stores come first, as long as their members have room.
    """
    owned: dict[str, list[int]] = {lease.store_id: [] for lease in serving}
    for container, owner in sorted(stores.items()):
        if owner in owned:
            owned[owner].append(container)
    count = len(free) + sum(map(len, owned.values()))
    with_log = Counter(store_id for container in free for store_id in set(members.get(container, ())))
    parts = _parts(serving, {store_id: len(held) for store_id, held in owned.items()}, with_log, count)
    room: dict[str, int] = {}
    for store_id, held in owned.items():
        free.extend(held[parts[store_id] :])
        room[store_id] = max(0, parts[store_id] - len(held))
    able = {container: [each for each in sorted(members.get(container, ())) if room.get(each)] for container in free}
    for container in sorted(free, key=lambda each: (len(able[each]) or len(room) + 1, each)):
        takers = [each for each in able[container] if room[each]] or sorted(room)
        taker = max(takers, key=room.__getitem__)
        stores[container] = taker
        room[taker] -= 1


def _parts(
    serving: Sequence[StoreLease], held: Mapping[str, int], with_log: Mapping[str, int], count: int
) -> dict[str, int]:
    """How many of `count` containers each store gets: its share by capacity, rounded so that the fewest move.

    `with_log` counts the free containers of whose log a store has a copy: stores with many are rounded up first.
    Rounding is bounded for stores and for zones. A solution always exists, since each store is in exactly one zone.
    """
    total = sum(each.capacity for each in serving)
    parts = {lease.store_id: count * lease.capacity // total for lease in serving}
    # Stores that would lose a container by rounding down come first, then those with logs; ties are broken by name.
    order = {
        lease.store_id: (
            held[lease.store_id] <= parts[lease.store_id],
            -with_log.get(lease.store_id, 0),
            lease.store_id,
        )
        for lease in serving
    }
    zones: dict[str, list[StoreLease]] = {}
    for each in serving:
        zones.setdefault(each.zone, []).append(each)
    wanting: list[str] = []  # at most one per zone: the store that gets the zone's extra container
    for _, members in sorted(zones.items()):
        uneven = sorted(
            (member.store_id for member in members if count * member.capacity % total), key=order.__getitem__
        )
        capacity = sum(member.capacity for member in members)
        due = count * capacity // total - sum(parts[member.store_id] for member in members)
        for store_id in uneven[:due]:
            parts[store_id] += 1
        if count * capacity % total:
            wanting.append(uneven[due])
    missing = count - sum(parts.values())
    for store_id in sorted(wanting, key=order.__getitem__)[:missing]:
        parts[store_id] += 1
    return parts
