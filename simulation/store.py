"""A simulated store: a volume, and while it runs, one process with replicas and owners."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.codec.replica_messages import ReplicaMessage
from headrace.model.container_logs import ContainerLog, ReplicaId
from simulation.disk import DiskError, SimulatedDisk
from simulation.journal import SimulatedJournal
from simulation.network import Address, Link
from simulation.owner import Owner
from simulation.replica_process import REPLICA_MESSAGES, ReplicaProcess
from simulation.scheduler import MS

if TYPE_CHECKING:
    from simulation.cluster import Cluster

_RESTART_DELAY = 500 * MS
_TICK = 50 * MS
_IDLE = 300 * MS
_THREAD_DELAY = 20 * MS
_THREAD_DELAY_MAX = 3_000 * MS


class Store:
    """Number `number` of the cluster, in its zone. `process` is None while it is down."""

    def __init__(self, cluster: Cluster, number: int, zone: int) -> None:
        self.number = number
        self.zone = zone
        self.incarnation = 0
        self.replica = ReplicaId(bytes(16))
        """That of the newest process: a journal has its identity from its first start on."""
        self.process: ReplicaProcess | None = None
        self.owners: dict[int, Owner] = {}
        self.slow_until = 0
        self.clock_offset_ms = 0
        self.dies_in_commit = False
        """Whether the process is killed when its next commit is about to end, with some of its steps done."""
        self.is_retired = False
        self._is_ticking = False
        self._cluster = cluster
        self.disk = self._new_volume()

    @property
    def address(self) -> Address:
        return Address(self.number, self.incarnation)

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
        """Start a process on the volume. Its journal is another replica if the volume is new or lost records."""
        if self.process is not None or self.is_retired:
            return
        self.incarnation += 1
        cluster, address = self._cluster, self.address
        try:
            journal = SimulatedJournal(self.disk, cluster.swarm.file_bytes, cluster.checkers.synced)
        except DiskError:
            cluster.checkers.state("journal did not start")
            cluster.scheduler.after(_RESTART_DELAY, "start", self.start)
            return
        self._identify(journal)
        cluster.checkers.scanned(journal.replica, journal.entries(), journal.recovered(), is_damaged=journal.is_damaged)
        self.process = ReplicaProcess(
            journal,
            lambda target, message: cluster.network.send(address, target, message),
            self._schedule_commit,
            self.fail,
            cluster.checkers,
            lambda: cluster.scheduler.now,
        )
        cluster.network.register(address, self._receive)
        cluster.registered(self)
        self._schedule_garbage(self.process)

    def stop(self) -> None:
        """The process ends without notice."""
        if self.process is None:
            return
        self.journal().end_process()
        self.process = None
        self._is_ticking = False
        self.owners.clear()
        self._cluster.network.unregister(self.address)
        self._cluster.connections_lost(self)

    def link_lost(self, replica: ReplicaId, link: Link) -> None:
        """A link to another store has ended, in both roles: to its replica, and from the owners in its process."""
        if self.process is not None:
            self.process.link_lost(link)
        for owner in list(self.owners.values()):
            owner.link_lost(replica)

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
        self.disk = self._new_volume()

    def _new_volume(self) -> SimulatedDisk:
        return SimulatedDisk(self.number, self._cluster.swarm.sector_bytes, self._cluster.draws)

    def _identify(self, journal: SimulatedJournal) -> None:
        """Note whether this is the replica of the process before."""
        cluster, before = self._cluster, self.replica
        if journal.replica == before:
            return
        self.replica = journal.replica
        cluster.checkers.new_replica(journal.replica, self.zone)
        if self.incarnation > 1:
            cluster.destroyed.add(before)
        if journal.is_quarantined:
            cluster.checkers.state("journal set aside")

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
            link = self._cluster.network.link_from(sender, self.number)
            self.process.receive(sender, link.number, message)
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
        if self.dies_in_commit:
            self.dies_in_commit = False
            self.crash()
            return
        process.is_committing = False
        process.end_commit()
        if process is self.process and process.has_queued:
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
            cluster = self._cluster
            owner.tick(self.now_ms(), cluster.placement(container), cluster.wanted(self, container))
            if owner.has_failed and self.owners.get(container) is owner:
                del self.owners[container]
            if self.process is None:
                return
        self._schedule_tick(incarnation)

    # Copies that no log needs.

    def _schedule_garbage(self, process: ReplicaProcess) -> None:
        every, number = self._cluster.swarm.garbage_every, self.number
        delay = self._cluster.draws.between(every // 2, every, "garbage", number)
        self._cluster.scheduler.after(delay, "garbage", lambda: self._look_for_garbage(process), number)

    def _look_for_garbage(self, process: ReplicaProcess) -> None:
        """Look up the logs of which nothing was heard. The thread that does so may be slow to hand over the answer."""
        if process is not self.process:
            return
        cluster, asked = self._cluster, self._cluster.scheduler.now
        for container in process.idle(_IDLE):

            def answered(found: tuple[ContainerLog | None, int] | None, container: int = container) -> None:
                delay = cluster.draws.heavy_tail(_THREAD_DELAY, _THREAD_DELAY_MAX, "garbage thread", self.number)
                if found is not None:
                    drop = partial(self._discard_unneeded, process, container, found[0], asked)
                    cluster.scheduler.after(delay, "garbage found", drop, self.number)

            cluster.metadata.read_log(self.address, container, answered)
        self._schedule_garbage(process)

    def _discard_unneeded(
        self, process: ReplicaProcess, container: int, record: ContainerLog | None, asked: int
    ) -> None:
        if process is self.process:
            process.discard_unneeded(container, record, asked)

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
