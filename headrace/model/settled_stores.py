"""Whether a store that replicates has taken its place, so that a deployment may continue.

It serves what the map gives it, it is a member of every log that wants a copy on it, and no older task of its zone is
a member of any log. Then the older task can be stopped without any log losing a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LogState
from headrace.model.ensembles import ReplicaId
from headrace.model.replica_placement import place_replicas, replica_of, zone_of


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
