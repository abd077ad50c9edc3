"""One simulated store process: what `segmentstore_fargate.wiring` puts together, on simulated ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from headrace import wire
from headrace.metadata.cluster_records import ClusterRecords, claim_key
from headrace.model.cluster import StoreLease
from headrace.model.errors import FencedError, HeadraceError
from headrace.model.rates import TICK_S
from headrace.ports.clock import Clock
from headrace.ports.ledger import LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.log.composite_ledgers import CompositeLedgers
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedgers
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.ledgers import ThreadedLogRecords
from segmentstore_fargate.membership import Membership, Place
from segmentstore_fargate.openings import OPENINGS_SHARE
from simulation.scheduler import SECOND
from simulation.store_level.connections import StoreConnection
from simulation.store_level.swarm import StoreSwarm
from simulation.store_level.tier_two import (
    SimulatedChunkStorage,
    SimulatedClock,
    SimulatedLogReader,
    SimulatedMetadataStore,
    TierTwo,
)
from simulation.world.journal_driver import SimulatedJournal
from simulation.world.loop import SimulatedLoop, SimulatedProcess
from simulation.world.volume import Volume, VolumeDisk

_RECEIVE_BYTES: Final = 32 << 20
_CONNECTIONS_MAX: Final = 100
_TAKE_OVER_AFTER_MS: Final = 3_600_000
"""So long that no log is discarded: with one copy that loses data, as it must."""

STOP_S: Final = 30.0


class StoreProcess:
    """A store that runs on a volume until it is killed, stopped, or ends itself; `on_end` hears of the last two."""

    def __init__(
        self,
        loop: SimulatedLoop,
        swarm: StoreSwarm,
        tier_two: TierTwo,
        number: int,
        volume: Volume,
        on_end: Callable[[StoreProcess], None],
    ) -> None:
        self.number = number
        self.name = f"store-{number}"
        self.process = loop.new_process(self.name)
        self.volume = volume
        self.disk = VolumeDisk(volume)
        self.store: SegmentStore | None = None
        self.journal: SimulatedJournal | None = None
        self.listens = False
        self.connections: list[StoreConnection] = []
        self._loop = loop
        self._swarm = swarm
        self._tier_two = tier_two
        self._on_end = on_end
        self._membership: Membership | None = None
        self._memory = ReceiveMemory(_RECEIVE_BYTES, _CONNECTIONS_MAX)
        self._stopping = False
        self._main = self.process.spawn(self._run())

    def epoch(self, container: int) -> int | None:
        """The epoch with which this process serves a container; None if it does not."""
        owned = None if self.store is None or not self.listens else self.store.owned.get(container)
        return None if owned is None else owned.container.epoch

    @property
    def hands_over(self) -> bool:
        """Whether this process has stopped a container in order to hand it over, and flushes the rest."""
        store = self.store
        return store is not None and bool(store.claims.keys() - store.owned.keys() - store.openings.keys())

    def connect(self, client: SimulatedProcess, deliver: Callable[[wire.WireCommand | None], None]) -> StoreConnection:
        """A new connection of a client."""
        connection = StoreConnection(self._loop, client, self.process, self._swarm.network_delay, deliver)
        self.connections.append(connection)

        def accept() -> None:
            if self.store is None or not self.listens:
                connection.reset()
                return
            connection.accept(self.store, self._memory, self._random_uuid)

        self.process.call_soon(accept)
        return connection

    def kill(self) -> None:
        """kill -9: nothing of it runs any more."""
        self.listens = False
        self._loop.kill(self.process)
        if self.journal is not None:
            self.journal.kill()
        self.reset_connections()

    def reset_connections(self) -> None:
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.reset()

    def stop(self) -> None:
        """Stop in order, as at SIGTERM."""
        if not self._stopping and self.process.is_alive:
            self._stopping = True
            self.process.spawn(self._stop())

    def when_settled(self, done: Callable[[], None]) -> None:
        """Call `done` when everything is durable and reported that this process has accepted until now."""
        self.process.spawn(self._settle(done))

    def _random_uuid(self) -> int:
        draws = self._loop.draws
        return draws.number("uuid", self.process.number) << 64 | draws.number("uuid", self.process.number)

    async def _run(self) -> None:
        try:
            await self._start()
        except (HeadraceError, OSError) as error:
            self._loop.scheduler.note(f"start failed: {error}")
            self._end()

    async def _start(self) -> None:
        swarm, clock = self._swarm, SimulatedClock(self._loop)
        metadata = SimulatedMetadataStore(self._tier_two)
        journal = self.new_journal(copies=1)
        store = self.new_store(OneCopyLedgerStore(journal), clock, metadata)
        name = self.name
        identity = StoreLease(name, name, 1, f"zone-{self.number}", 100, self.volume.name, "", _TAKE_OVER_AFTER_MS)
        share = tuple(range(swarm.layout.count)) if self.number == 0 else ()
        place = Place(swarm.layout.count, share)
        self._membership = Membership(store, metadata, clock, identity, place, lambda _: self._end())
        await self._membership.register()
        await asyncio.to_thread(journal.start)
        self.listens = True
        await self._membership.join()
        await self.tick(store)

    def new_journal(self, copies: int) -> SimulatedJournal:
        """The journal of this process, not started yet."""
        self.journal = SimulatedJournal(
            self._loop,
            self.process,
            self.disk,
            self._loop.draws,
            file_bytes=self._swarm.journal_file_bytes,
            copy_from_files=self._swarm.copy_from_files,
            copies=copies,
            on_failure=self._end,
        )
        return self.journal

    def new_store(self, ledgers: LedgerStore, clock: Clock, metadata: MetadataStore) -> SegmentStore:
        """The segment store of this process."""
        swarm = self._swarm
        in_s3 = ObjectLedgers(
            SimulatedChunkStorage(self._tier_two),
            ThreadedLogRecords(metadata),
            lambda: self._loop.draws.fraction("jitter", self.number),
            swarm.log_limits,
            partial(SimulatedLogReader, self._tier_two),
        )
        self.store = SegmentStore(
            CompositeLedgers(swarm.layout, ledgers, in_s3),
            swarm.cache_bytes,
            clock,
            metadata,
            SimulatedChunkStorage(self._tier_two),
            container_count=swarm.containers,
            s3_containers=swarm.s3_containers,
            block_bytes=swarm.block_bytes,
            limits=swarm.limits,
            table_limits=swarm.table_limits,
            on_failure=self._container_failed,
        )
        return self.store

    async def tick(self, store: SegmentStore) -> None:
        """Update the rates, until the process ends."""
        while True:
            store.tick_rates()
            await asyncio.sleep(TICK_S)

    async def drain(self, store: SegmentStore, deadline_s: float) -> None:
        """Wait until what was accepted is durable."""
        for owned in list(store.owned.values()):
            with suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await owned.container.log.durable()

    async def _stop(self) -> None:
        """As `SegmentStoreProcess.stop`, but requests may outlive their connections for a while."""
        membership, store, journal = self._membership, self.store, self.journal
        if membership is None or store is None or journal is None:
            self._end()
            return
        self._main.cancel()
        await membership.announce_leaving()
        had_time = await self._within(STOP_S * OPENINGS_SHARE, membership.finish_openings)
        self.listens = False
        await self.drain(store, self._loop.time() + STOP_S)
        self.reset_connections()
        had_time &= await self._within(STOP_S, store.close)
        if had_time:
            self._check_flushed()
        await membership.end()
        await asyncio.to_thread(journal.close)
        self._end()

    async def _within(self, deadline_s: float, step: Callable[[float], Awaitable[None]]) -> bool:
        """Do a step of the stop, which has a deadline. Returns whether it ended before."""
        start_s = self._loop.time()
        await step(deadline_s)
        return self._loop.time() - start_s < deadline_s

    def _check_flushed(self) -> None:
        """A stop that ends before its deadlines leaves no log of a container that this process has claimed.

        A claim that was written late is not demanded: the process may have read before that it has none.
        """
        states = ClusterRecords(self._tier_two.metadata).containers(range(self._swarm.layout.count))
        writers = self._tier_two.writers
        on_disk = [each.container for each in states if each.hold is not None and not each.hold.log_in_s3]
        left = [each for each in on_disk if writers[claim_key(each)] is self.process]
        if left:
            self._loop.violations.append(
                f"store {self.number} has stopped before its deadline, and containers {left} need its log"
            )

    async def _settle(self, done: Callable[[], None]) -> None:
        if self.store is not None:
            for owned in list(self.store.owned.values()):
                with suppress(HeadraceError):
                    await owned.container.log.durable()
        done()

    def _container_failed(self, container: SegmentContainer, error: HeadraceError) -> None:
        """As in `SegmentStoreProcess`."""
        failed = self.journal is not None and self.journal.failure is not None
        if not failed and self._membership is not None and not isinstance(error, FencedError):
            self._membership.container_failed(container.container, error)

    def _end(self) -> None:
        """End this process; it is started again."""
        if self.process.is_alive:
            self.kill()
            self._on_end(self)


RESTART_AFTER: Final = (SECOND // 10, 3 * SECOND)
