"""Who owns which container, decided only as in production: by leases, silence and isolation.

A container leaves its store when that store has ended, is silent, or says that it reaches no other store. No rule looks
at how far a recovery is, or at what an owner acknowledges: stores do not tell each other. So a recovery that makes no
progress keeps its container, and a run in which that happens ends with a violation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.model.container_logs import ReplicaId
from headrace.replication.log_recovery import LogRecovery
from simulation.owner import Owner
from simulation.scheduler import MS, SECOND
from simulation.store import Store

if TYPE_CHECKING:
    from simulation.cluster import Cluster

_LOOK_EVERY: Final = 100 * MS
_ISOLATED_AFTER: Final = 3 * SECOND


class Assignments:
    """The container map, and the stores that follow it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stores: dict[int, Store] = {}
        self._silent_since: dict[int, int] = {}
        self._isolated_since: dict[int, int] = {}

    def assign(self, container: int, store: Store) -> None:
        """The map gives a container to a store, whether or not its owner is well."""
        self._stores[container] = store

    def look(self) -> None:
        """Judge the stores, assign the containers of those that keep none, and let each store open what it has."""
        cluster = self._cluster
        for store in cluster.stores:
            self._note(self._silent_since, store, holds=self._is_silent(store))
            self._note(self._isolated_since, store, holds=self._reaches_no_other(store))
        if not cluster.metadata.is_out:
            keeping = [store for store in cluster.stores if self._keeps_containers(store)]
            for container in range(cluster.swarm.containers):
                if self._stores.get(container) not in keeping:
                    self._assign_to_one(container, keeping)
                self._open(container)
        cluster.scheduler.after(_LOOK_EVERY, "look", self.look)

    # Stores.

    def _note(self, since: dict[int, int], store: Store, *, holds: bool) -> None:
        if holds:
            since.setdefault(store.number, self._cluster.scheduler.now)
        else:
            since.pop(store.number, None)

    def _is_silent(self, store: Store) -> bool:
        return not store.is_running or self._cluster.scheduler.is_paused(store.number)

    def _reaches_no_other(self, store: Store) -> bool:
        """Whether a store has logs, or recovers some, and each replica of them in other stores is silent."""
        replicas = {replica for owner in store.owners.values() for replica in _replicas(owner)} - {store.replica}
        return bool(replicas) and all(self._is_silent_to(store, replica) for replica in replicas)

    def _is_silent_to(self, store: Store, replica: ReplicaId) -> bool:
        """Whether nothing answers a store where a replica was."""
        other = self._cluster.stores[replica[0]]
        return self._is_silent(other) or self._cluster.network.silence(store.number, other.number) is not None

    def _keeps_containers(self, store: Store) -> bool:
        now, suspicion = self._cluster.scheduler.now, self._cluster.swarm.suspicion
        is_isolated = now - self._isolated_since.get(store.number, now) >= _ISOLATED_AFTER
        return not is_isolated and now - self._silent_since.get(store.number, now) < suspicion

    # Containers.

    def _assign_to_one(self, container: int, keeping: list[Store]) -> None:
        """Give a container to a store that has a copy of its log, if one is there."""
        stored = self._cluster.metadata.logs[container].log
        members = stored.members if stored is not None else ()
        choices = [store for store in keeping if store.replica in members] or keeping
        if choices:
            self._stores[container] = self._cluster.draws.one_of(choices, "assign", container)

    def _open(self, container: int) -> None:
        """Let the store of a container open it, unless it does so or serves it, under the claim that is in force."""
        store = self._stores.get(container)
        if store is None or self._is_silent(store):
            return
        owner = store.owners.get(container)
        claim = self._cluster.metadata.claims[container].version
        if owner is not None and not owner.has_failed and owner.epoch in (0, claim):
            return
        store.owners.pop(container, None)
        store.take_over(container)


def _replicas(owner: Owner) -> tuple[ReplicaId, ...]:
    """Those that hold a log, or are asked for it while it is recovered."""
    if owner.has_failed or owner.epoch == 0:
        return ()
    machine = owner.machine
    return machine.replicas if isinstance(machine, LogRecovery) else machine.log.members
