"""A simulated store process whose logs have three copies, on links to the other stores: as `SegmentStoreProcess`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from headrace.adapters.memory.replicas import MemoryReplicaNetwork
from headrace.model.cluster import REPLICA_PROTOCOL, StoreLease
from headrace.model.container_logs import ReplicaId
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.segmentstore.log.journal.replica_identity import load_identity
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions, recovered_logs
from segmentstore_fargate.heartbeat import until_answered
from segmentstore_fargate.membership import Membership, Place
from segmentstore_fargate.openings import OPENINGS_SHARE
from segmentstore_fargate.replicated_logs import ReplicatedLogs
from simulation.store_level.process_links import HostInProcess, ProcessLinks
from simulation.store_level.store_process import STOP_S, StoreProcess
from simulation.store_level.tier_two import SimulatedClock, SimulatedMetadataStore
from simulation.world.journal_driver import SimulatedJournal

_LISTEN_AFTER_S: Final = 10.0
_REPLICA_PORT: Final = 1
"""The simulated network finds a replica by its id."""

WRITER_BOUNDS: Final = WriterBounds(silence_ms=2_000, pulse_ms=200, stall_ms=1_500)
RECOVERY_BOUNDS: Final = RecoveryBounds(fence_grace_ms=50, retry_ms=300)


class ReplicatedStoreProcess(StoreProcess):
    """`network` has the links of all stores. `on_replica` is called once the journal was read."""

    def __init__(
        self,
        network: MemoryReplicaNetwork,
        zone: str,
        on_replica: Callable[[ReplicatedStoreProcess, HostInProcess], None],
        *arguments: Any,
    ) -> None:
        self.replica: ReplicaId | None = None
        self._network = network
        self._zone = zone
        self._on_replica = on_replica
        self._logs: ReplicatedLogs | None = None
        super().__init__(*arguments)

    def kill(self) -> None:
        if self.replica is not None:
            self._loop.outside.run(self._network.kill, self.replica)
        super().kill()

    async def _start(self) -> None:
        clock, metadata = SimulatedClock(self._loop), SimulatedMetadataStore(self._tier_two)
        journal = self.new_journal(self._swarm.copies)
        logs = self._logs = ReplicatedLogs(
            journal,
            metadata,
            clock,
            self._swarm.layout.count,
            lambda _container, _error: self._end(),
            self._beat,
            writer_bounds=WRITER_BOUNDS,
            recovery_bounds=RECOVERY_BOUNDS,
        )
        store = self.new_store(logs.ledgers, clock, metadata)
        place = Place(self._swarm.layout.count, ())
        membership = self._membership = Membership(
            store, metadata, clock, self._identity(), place, lambda _: self._end(), logs.status
        )
        await membership.register()
        await asyncio.to_thread(journal.start)
        await self._start_replication(journal, logs, membership)
        joining = asyncio.ensure_future(membership.join())
        await asyncio.wait([joining], timeout=_LISTEN_AFTER_S)
        self.listens = True
        await joining
        await self.tick(store)

    def _identity(self) -> StoreLease:
        known = (load_identity(self.disk) or b"").hex()
        return StoreLease(
            self.name,
            self.name,
            1,
            self._zone,
            100,
            self.volume.name,
            self.volume.task,
            0,
            replica_id=known,
            replica_port=_REPLICA_PORT,
            replica_protocol=REPLICA_PROTOCOL,
        )

    async def _start_replication(self, journal: SimulatedJournal, logs: ReplicatedLogs, membership: Membership) -> None:
        """As `SegmentStoreProcess._start_replication`."""
        sessions = ReplicaSessions(journal, recovered_logs(journal), lambda _container, _error: self._end())
        replica = self.replica = sessions.replica
        self._on_replica(self, HostInProcess(self._loop, self.process, sessions))
        links = self._loop.outside.run(self._network.links, replica)
        logs.start(sessions, ProcessLinks(self._loop, self.process, links))
        await until_answered("lease", lambda: membership.heartbeat.name_replica(replica.hex()))
        await until_answered("leases", logs.watch_peers)

    async def _beat(self) -> None:
        """The lease of another store was ended: its containers may be this store's now."""
        if self._membership is not None:
            await self._membership.heartbeat.beat()

    async def _stop(self) -> None:
        """As `SegmentStoreProcess.stop`."""
        membership, store, journal, logs = self._membership, self.store, self.journal, self._logs
        if membership is None or store is None or journal is None or logs is None:
            self._end()
            return
        deadline_s = self._loop.time() + STOP_S
        self._main.cancel()
        await membership.announce_leaving()
        await membership.finish_openings(STOP_S * OPENINGS_SHARE)
        self.listens = False
        await self.drain(store, deadline_s)
        self.reset_connections()
        await store.close(max(0.0, deadline_s - self._loop.time()))
        await logs.leave(deadline_s)
        await membership.end()
        await logs.stop()
        await asyncio.to_thread(journal.close)
        self._end()
