"""A whole store in one event loop, on a disk and a tier 2 in memory with faults, for random programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import MemoryConnection
from fuzz.faulty_ports import Faults, FaultyChunks, FaultyMetadata, deliver_writes
from fuzz.inline_journal import InlineJournal
from fuzz.randomness import Random
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.containers import ContainerClaim
from headrace.model.errors import HeadraceError, ThrottledError, UnavailableError
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from segmentstore_fargate.registration import claim_free_container

CONTAINER: Final = 0
FAILED_ON_PURPOSE: Final = "failed on purpose"
_CLAIM: Final = ContainerClaim("store-0", "127.0.0.1", 1, "local")
_CACHE_BYTES: Final = 4 << 20
_CACHE_BLOCK_BYTES: Final = 16 << 10
_SYNCS_S: Final = (0.0, 0.0, 0.004, 0.015)
_RETRY_S: Final = 0.001
_GRACE_S: Final = 20.0


class MemoryWorld:
    """What outlives a store: disk, tier 2, metadata and time. `faults` are those of its ports."""

    def __init__(
        self,
        random: Random,
        limits: StorageLimits,
        table_limits: TableLimits,
        *,
        cache_bytes: int = _CACHE_BYTES,
        block_bytes: int = _CACHE_BLOCK_BYTES,
    ) -> None:
        self.random = random
        self.clock = ManualClock()
        self.faults = Faults(random, self.clock, chunk_share=0.0, metadata_share=0.0, slow_share=0.0, turns_max=1)
        self.disk = MemoryJournalDisk()
        self.metadata = MemoryMetadataStore()
        self.chunks = MemoryChunkStorage(self.clock)
        self.cache_bytes = cache_bytes
        self.block_bytes = block_bytes
        self._limits = limits
        self._table_limits = table_limits
        self._syncs_are_slow = random.random() < 0.7

    def advance(self, seconds: float) -> None:
        """Let time pass for the store, and late writes of metadata take effect."""
        ms = int(seconds * 1000)
        deliver_writes(self.faults, self.metadata, self.clock.now_ms() + ms)
        self.clock.advance(ms)

    def lose_volume(self) -> None:
        """The next store finds an empty disk. Only tier 2 is left."""
        self.disk = MemoryJournalDisk()

    def start(self, on_served: Callable[[OwnedContainer], None] | None = None) -> RunningStore:
        """Start a store. It has no container yet; `on_served` is called when it serves one."""
        return RunningStore(self, self._limits, self._table_limits, on_served)

    def sync_s(self) -> float:
        return self.random.choice(_SYNCS_S) if self._syncs_are_slow else 0.0


class RunningStore:
    """A store process with one container, and the connections to it."""

    def __init__(
        self,
        world: MemoryWorld,
        limits: StorageLimits,
        table_limits: TableLimits,
        on_served: Callable[[OwnedContainer], None] | None,
    ) -> None:
        faults = world.faults
        self._world = world
        self._on_served = on_served
        self._connections: list[MemoryConnection] = []
        self._failures: list[HeadraceError] = []
        self._chunks = FaultyChunks(world.chunks, faults)
        self._metadata = FaultyMetadata(world.metadata, faults)
        self._journal = InlineJournal(world.disk, world.random, world.sync_s, lambda: faults.log_is_full)
        self.store = SegmentStore(
            OneCopyLedgerStore(self._journal),
            world.cache_bytes,
            world.clock,
            self._metadata,
            self._chunks,
            container_count=1,
            block_bytes=world.block_bytes,
            limits=limits,
            table_limits=table_limits,
            on_failure=self._failed,
        )

    @property
    def owned(self) -> OwnedContainer | None:
        """The container, while it is served."""
        return self.store.owned.get(CONTAINER)

    async def open(self) -> OwnedContainer:
        """Claim the container and serve it, however often tier 2 refuses."""
        await self.store.retired(CONTAINER)
        while True:
            records = ClusterRecords(self._world.metadata)
            (state,) = records.containers(range(1))
            epoch = claim_free_container(records, state, _CLAIM, self._world.clock.now_ms())
            assert epoch is not None, "no other store claims it"
            with suppress(ThrottledError, UnavailableError):
                await self.store.open_container(CONTAINER, epoch)
                break
            await asyncio.sleep(_RETRY_S)
        owned = self.store.owned[CONTAINER]
        if self._on_served is not None:
            self._on_served(owned)
        return owned

    def connect(self) -> MemoryConnection:
        random = self._world.random
        self._connections.append(MemoryConnection(self.store, lambda: random.getrandbits(128)))
        return self._connections[-1]

    def fail_container(self) -> None:
        """Stop the container for good, as when its log fails."""
        if self.owned is not None:
            self.owned.container.log.fail(UnavailableError(FAILED_ON_PURPOSE))

    def check_failures(self) -> None:
        """Raise WrongStateError if the container has stopped for another reason."""
        for error in self._failures:
            if error.message != FAILED_ON_PURPOSE:
                raise WrongStateError(f"the container has stopped: {error!r}")

    async def close(self) -> None:
        """End as by SIGTERM."""
        for connection in self._connections:
            connection.close()
        await self.store.close(_GRACE_S)
        self._journal.close()

    async def kill(self) -> None:
        """End as by kill -9. Requests to tier 2 that are under way may still take effect."""
        for connection in self._connections:
            connection.break_off()
        self._chunks.end()
        self._metadata.end()
        self._journal.kill()
        await self.store.close(0)

    def _failed(self, _container: SegmentContainer, error: HeadraceError) -> None:
        self._failures.append(error)
