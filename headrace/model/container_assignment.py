"""Assigns each container to a store: by capacity, evenly over zones, with the fewest moves.

A container that moves goes to a store that has a copy of its log, if one of them has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from headrace.model.cluster import (
    ContainerHold,
    ContainerMap,
    Holds,
    ProtocolVersions,
    StoreLease,
    may_be_taken_over,
)
from headrace.model.replica_placement import zone_of

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
    serving = sorted(filter(ables.can_serve, leases), key=lambda one: one.store_id)
    if not serving:
        return former
    here = {one.store_id for one in serving}
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
    owned: dict[str, list[int]] = {one.store_id: [] for one in serving}
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
    total = sum(one.capacity for one in serving)
    parts = {one.store_id: count * one.capacity // total for one in serving}
    # Stores that would lose a container by rounding down come first, then those with logs; ties are broken by name.
    order = {
        one.store_id: (held[one.store_id] <= parts[one.store_id], -with_log.get(one.store_id, 0), one.store_id)
        for one in serving
    }
    zones: dict[str, list[StoreLease]] = {}
    for one in serving:
        zones.setdefault(one.zone, []).append(one)
    wanting: list[str] = []  # at most one per zone: the store that gets the zone's extra container
    for _, members in sorted(zones.items()):
        uneven = sorted((one.store_id for one in members if count * one.capacity % total), key=order.__getitem__)
        capacity = sum(one.capacity for one in members)
        due = count * capacity // total - sum(parts[one.store_id] for one in members)
        for store_id in uneven[:due]:
            parts[store_id] += 1
        if count * capacity % total:
            wanting.append(uneven[due])
    missing = count - sum(parts.values())
    for store_id in sorted(wanting, key=order.__getitem__)[:missing]:
        parts[store_id] += 1
    return parts
