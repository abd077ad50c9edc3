"""A simulated store: a volume, and while it runs, one process with replicas and owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.codec.replica_messages import ReplicaMessage
from headrace.model.ensembles import ReplicaId
from simulation.disk import SimulatedDisk
from simulation.journal import LostRecordsError, SimulatedJournal
from simulation.network import Address
from simulation.owner import Owner
from simulation.replica_process import REPLICA_MESSAGES, ReplicaProcess
from simulation.scheduler import MS

if TYPE_CHECKING:
    from simulation.cluster import Cluster

_RESTART_DELAY = 500 * MS
_TICK = 50 * MS


class Store:
    """Number `number` of the cluster, in its zone. `process` is None while it is down."""

    def __init__(self, cluster: Cluster, number: int, zone: int) -> None:
        self.number = number
        self.zone = zone
        self.incarnation = 0
        self.volumes = 0
        self.process: ReplicaProcess | None = None
        self.owners: dict[int, Owner] = {}
        self.slow_until = 0
        self.clock_offset_ms = 0
        self.is_retired = False
        self._is_ticking = False
        self._cluster = cluster
        self.disk = self._new_volume()

    @property
    def address(self) -> Address:
        return Address(self.number, self.incarnation)

    @property
    def replica(self) -> ReplicaId:
        return self.disk.replica

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def journal(self) -> SimulatedJournal:
        """The journal of the process that runs."""
        assert self.process is not None
        assert isinstance(self.process.journal, SimulatedJournal)
        return self.process.journal

    def now_ms(self) -> int:
        return self._cluster.scheduler.now // MS + self.clock_offset_ms

    # Starting and stopping.

    def start(self) -> None:
        """Start a process on the volume, which is replaced if it cannot be trusted."""
        if self.process is not None or self.is_retired:
            return
        self.incarnation += 1
        try:
            journal = SimulatedJournal(self.disk)
        except LostRecordsError:
            self._cluster.checkers.state("journal set aside")
            self.replace_volume()
            journal = SimulatedJournal(self.disk)
        cluster, address = self._cluster, self.address
        cluster.checkers.scanned(journal.replica, journal.entries())
        self.process = ReplicaProcess(
            journal,
            lambda target, message: cluster.network.send(address, target, message),
            self._schedule_commit,
            self.fail,
            cluster.checkers,
        )
        cluster.network.register(address, self._receive)
        cluster.registered(self)

    def stop(self) -> None:
        """The process ends without notice."""
        if self.process is None:
            return
        self.process = None
        self._is_ticking = False
        self.owners.clear()
        self._cluster.network.unregister(self.address)
        self._cluster.connections_lost(self)

    def fail(self, reason: str) -> None:
        """A journal failed: fail-stop, then a restart."""
        if self.process is None:
            return
        self._cluster.checkers.state("journal failed")
        self.crash()

    def crash(self, *, cuts_power: bool = False) -> None:
        """Kill the process and start it again after a while."""
        self.stop()
        if cuts_power:
            self.disk.cut_power()
        delay = self._cluster.draws.between(_RESTART_DELAY // 20, _RESTART_DELAY * 2, "restart", self.number)
        self._cluster.scheduler.after(delay, "start", self.start)

    def replace_volume(self) -> None:
        """The volume is gone; the next process has an empty one, and is another replica."""
        self.disk.is_destroyed = True
        self._cluster.destroyed.add(self.disk.replica)
        self.disk = self._new_volume()

    def _new_volume(self) -> SimulatedDisk:
        self.volumes += 1
        replica = self._new_replica_id()
        self._cluster.checkers.new_replica(replica, self.zone)
        swarm, draws = self._cluster.swarm, self._cluster.draws
        return SimulatedDisk(replica, self.number, swarm.sector_bytes, draws)

    def _new_replica_id(self) -> ReplicaId:
        """16 bytes that no volume had before."""
        return ReplicaId(bytes((self.number, self.volumes)) * 8)

    # Messages.

    def send(self, replica: ReplicaId, message: ReplicaMessage) -> bool:
        """Send to the process that has a replica. False if there is none that could be connected to."""
        target = self._cluster.address_of(replica)
        if target is None:
            return False
        self._cluster.network.send(self.address, target, message)
        return True

    def _receive(self, sender: Address, message: ReplicaMessage) -> None:
        if self.process is None:
            return
        if isinstance(message, REPLICA_MESSAGES):
            self.process.receive(sender, message)
            return
        replica = self._cluster.replica_at(sender)
        if replica is None:
            return
        for owner in list(self.owners.values()):
            if owner.container in self._containers_of(message, owner):
                owner.receive(replica, message)

    @staticmethod
    def _containers_of(message: ReplicaMessage, owner: Owner) -> tuple[int, ...]:
        container = getattr(message, "container", None)
        return (owner.container,) if container is None else (container,)

    # Commits and time.

    def _schedule_commit(self) -> None:
        """Begin a commit at the next turn, unless one is under way: what is queued meanwhile is in the next one."""
        process = self.process
        if process is None or process.is_committing:
            return
        process.is_committing = True
        self._cluster.scheduler.after(1, "commit begins", lambda: self._begin_commit(process), self.number)

    def _begin_commit(self, process: ReplicaProcess) -> None:
        if process is not self.process:
            return
        if not process.begin_commit():
            process.is_committing = False
            return
        cluster = self._cluster
        delay = cluster.draws.between(cluster.swarm.commit_delay // 2, cluster.swarm.commit_delay, "sync", self.number)
        delay += max(0, self.slow_until - cluster.scheduler.now)
        cluster.scheduler.after(delay, "commit ends", lambda: self._end_commit(process), self.number)

    def _end_commit(self, process: ReplicaProcess) -> None:
        if process is not self.process:
            return
        journal = process.journal
        assert isinstance(journal, SimulatedJournal)
        headers = journal.writing()
        process.is_committing = False
        if not journal.disk.fail_next_sync and not journal.disk.is_destroyed:
            self._cluster.checkers.synced(journal.replica, headers)
        process.end_commit()
        if process is self.process:
            self._schedule_commit()

    def _schedule_tick(self, incarnation: int) -> None:
        """Owners need ticks; replicas do not."""
        self._is_ticking = True
        delay = self._cluster.draws.between(_TICK * 3 // 4, _TICK * 5 // 4, "tick", self.number)
        self._cluster.scheduler.after(delay, "tick", lambda: self._tick(incarnation), self.number)

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self._is_ticking = False
        if self.process is None or not self.owners:
            return
        for container, owner in list(self.owners.items()):
            owner.tick(self.now_ms(), self._cluster.placement(container))
            if owner.has_failed and self.owners.get(container) is owner:
                del self.owners[container]
            if self.process is None:
                return
        self._schedule_tick(incarnation)

    def take_over(self, container: int) -> None:
        """Become the owner of a container, unless this store already tries to, or serves it."""
        if self.process is None or container in self.owners:
            return
        owner = Owner(
            container,
            self.address,
            self.process.journal,
            self._cluster.metadata,
            self._cluster.swarm,
            self.send,
            self._cluster.checkers,
            self._cluster.wanted(self, container),
            self._cluster.zones(),
            self.now_ms(),
        )
        self.owners[container] = owner
        owner.start()
        if not self._is_ticking:
            self._schedule_tick(self.incarnation)
