"""What a cluster with three copies adds: links between stores, their faults, and which volume may be lost.

Who opens a container is decided by the stores' own membership, as with one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Final

from headrace.adapters.memory.replicas import MemoryReplicaNetwork
from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome
from headrace.model.cluster import lost
from headrace.model.container_logs import COPIES, NO_COPIES, LogState, ReplicaId, without_lost_members
from headrace.ports.clock import Clock
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND
from simulation.store_level.process_links import HostInProcess
from simulation.store_level.replicated_process import ReplicatedStoreProcess
from simulation.store_level.tier_two import TierTwo
from simulation.world.loop import SimulatedLoop

ZONES: Final = 3
_CUT: Final = (100 * MS, 5 * SECOND)

Stores = Callable[[], Sequence[ReplicatedStoreProcess]]


def zone_of(number: int) -> str:
    """The zone of the store with this number."""
    return f"zone-{number % ZONES}"


class ReplicaCluster:
    """`running` are the stores that run now."""

    def __init__(self, loop: SimulatedLoop, tier_two: TierTwo, containers: int, delay: int, running: Stores) -> None:
        self.network = MemoryReplicaNetwork(delay=lambda _sender, _receiver: self._delay(delay))
        self._loop = loop
        self._draws: Draws = loop.draws
        self._leases = ClusterRecords(tier_two.metadata)
        self._records = ContainerLogRecords(tier_two.metadata)
        self._containers = containers
        self._running = running
        self._replicas: dict[int, ReplicaId] = {}
        self._cuts: set[tuple[ReplicaId, ReplicaId]] = set()

    def heal(self) -> None:
        for first, second in sorted(self._cuts):
            self._loop.outside.run(self.network.heal, first, second)
        self._cuts.clear()

    def note_replica(self, store: ReplicatedStoreProcess, host: HostInProcess) -> None:
        """A store has read its journal: other stores can reach it, also under the name of its former volume."""
        before = self._replicas.get(store.number)
        replica = self._replicas[store.number] = host.replica
        if before is not None and before != replica:
            self._loop.outside.run(partial(self.network.serve, host, at=before))
        else:
            self._loop.outside.run(self.network.serve, host)

    @property
    def are_all_there(self) -> bool:
        """Whether each store that there was runs, and can be reached by the others."""
        return {each.replica for each in self._running()} == set(self._replicas.values())

    def may_lose(self, number: int) -> bool:
        """Whether the log of no container needs the volume of this store: all other members have everything."""
        running = {each.replica for each in self._running()}
        if len(running) < COPIES or number not in self._replicas:
            return False
        for container in range(self._containers):
            log = self._records.read(container).log
            if log is None or log.state is not LogState.OPEN or log.copies == NO_COPIES:
                continue
            if len(log.members) < COPIES or not set(log.members) <= running:
                return False
        return True

    def unheld(self) -> list[int]:
        """Containers whose log is not empty."""
        states = [self._records.read(each).log for each in range(self._containers)]
        return [each for each, log in enumerate(states) if log is not None and log.state is LogState.OPEN]

    def replicas_of(self, numbers: Iterable[int]) -> set[ReplicaId]:
        """The replicas of these stores."""
        return {self._replicas[number] for number in numbers}

    def accept_loss(self, destroyed: Collection[ReplicaId]) -> list[int]:
        """Do what an operator does for logs that cannot be recovered without destroyed replicas: their containers."""
        accepted: list[int] = []
        for container in range(self._containers):
            log, version = self._records.read(container)
            if log is None or log.state is not LogState.OPEN or log.copies == NO_COPIES:
                continue
            left = [member for member in log.members if member not in destroyed]
            if len(left) == len(log.members) or log.ensemble.is_read_quorum(left):
                continue
            outcome = self._records.replace_unowned(container, without_lost_members(log, destroyed), version)
            if outcome is LogWriteOutcome.WRITTEN:
                accepted.append(container)
        return accepted

    def cut(self, number: int, other: int | None, duration: int) -> None:
        """Cut a store off from another one, or from all."""
        own = self._replicas.get(number)
        for first, second in combinations(sorted(self._replicas.items()), 2):
            if (
                number in (first[0], second[0])
                and (other is None or other in (first[0], second[0]))
                and own is not None
            ):
                pair = first[1], second[1]
                self._cuts.add(pair)
                self._loop.outside.run(self.network.cut, *pair)
                self._loop.scheduler.after(duration, "end of a cut", partial(self._heal, pair))

    def reset_links(self, number: int, other: int) -> None:
        """End the links between two stores in both directions. What is on its way is lost."""
        first, second = self._replicas.get(number), self._replicas.get(other)
        if first is not None and second is not None:
            for owner, replica in ((first, second), (second, first)):
                self._loop.outside.run(self.network.lose_link, owner, replica)

    def suspect(self, number: int, clock: Clock) -> bool:
        """End the lease of a store that may be well, and assign its containers to others. False if it has none."""
        found = self._leases.lease(f"store-{number}")
        if found is None or found.lease.has_ended:
            return False
        self._leases.store.write(write_lease(lost(found.lease, clock.now_ms()), found.version))
        assign_containers(self._leases, self._containers, clock.now_ms())
        return True

    def cut_time(self, actor: int) -> int:
        return self._draws.between(*_CUT, "amount", actor)

    def _heal(self, pair: tuple[ReplicaId, ReplicaId]) -> None:
        if pair in self._cuts:
            self._cuts.discard(pair)
            self._loop.outside.run(self.network.heal, *pair)

    def _delay(self, typical: int) -> float:
        return self._draws.between(typical // 4, typical, "replica delay") / SECOND
