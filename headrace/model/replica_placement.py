"""Decides which stores should hold the copies of a container's log.

Members of a log are in different zones. Within a zone, rendezvous hashing selects the store, so that a store that joins
or leaves changes the members of few containers only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.model.cluster import REPLICA_PROTOCOL, ProtocolVersions, StoreLease, StoreState
from headrace.model.container_logs import COPIES, ReplicaId

LOCAL_ZONE: Final = "local"
"""Stores with this zone are not in a real one: each of them counts as a zone of its own."""

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
    host: str
    port: int


def replica_of(lease: StoreLease) -> ReplicaId | None:
    """The replica of a store; None if the store replicates nothing."""
    return ReplicaId(bytes.fromhex(lease.replica_id)) if lease.replica_id else None


def zone_of(lease: StoreLease) -> str:
    """The zone that no other copy of a log may be in: that of the store, or the store itself without real zones."""
    return lease.store_id if lease.zone == LOCAL_ZONE else lease.zone


def lease_of(replica: ReplicaId, leases: Iterable[StoreLease]) -> StoreLease | None:
    """The lease of the store that has this replica; None if its store registered with another one or is forgotten."""
    return next((lease for lease in leases if lease.replica_id == replica.hex()), None)


def address_of(replica: ReplicaId, leases: Iterable[StoreLease]) -> ReplicaAddress | None:
    """Where other stores reach a replica; None if its store does not replicate or is not known.

    A store whose lease has expired has an address, too: it may have lost only the metadata store.
    """
    lease = lease_of(replica, leases)
    return ReplicaAddress(lease.host, lease.replica_port) if lease is not None and lease.replica_port else None


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
    found: dict[str, list[StoreLease]] = {}
    for lease in leases:
        is_able = lease.keeps_copies and spoken.shared(lease.replica_protocol) is not None
        if is_able and lease.replica_id and lease.replica_port:
            found.setdefault(zone_of(lease), []).append(lease)
    for zone, stores in found.items():
        newest = max(lease.revision for lease in stores)
        found[zone] = [lease for lease in stores if lease.revision == newest]
    return found


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
