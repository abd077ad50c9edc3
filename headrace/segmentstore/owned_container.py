"""A container that a store serves, with its background tasks, and the parts that all containers of a store share."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.ledger import LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.scaling_reports import ScalingReports
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.operation_log import OrderingClock
from headrace.segmentstore.containers.writer_expiry import SWEEP_EVERY_S
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.segmentstore.tables.index_store import IndexStore
from headrace.segmentstore.tables.table_store import TableMemory, TableStore
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.compactor import CompactionBudget, Compactor, SmallRuns
from headrace.segmentstore.tiering.directory_upkeep import DirectoryUpkeep
from headrace.segmentstore.tiering.evictor import SWEEPS_PER_IDLE_TIME, Evictor
from headrace.segmentstore.tiering.garbage_collector import GarbageCollector
from headrace.segmentstore.tiering.limits import StorageLimits
from headrace.segmentstore.tiering.maintenance import MaintenanceTasks, Sweep
from headrace.segmentstore.tiering.owner_writes import ObjectNames
from headrace.segmentstore.tiering.range_cache import RangeCache
from headrace.segmentstore.tiering.segment_records import SegmentRecords
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore, SnapshotWriter
from headrace.segmentstore.tiering.storage_reader import StorageReader
from headrace.segmentstore.tiering.storage_writer import StorageWriter


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that the containers of one store share."""

    ledgers: LedgerStore
    pool: BlockPool
    clock: Clock
    gate: LeaseGate
    ordering_clock: OrderingClock
    metadata_store: MetadataStore
    chunk_storage: ChunkStorage
    limits: StorageLimits
    table_memory: TableMemory
    read_cache: RangeCache
    compaction_budget: CompactionBudget
    log_room: LogRoom
    scaling_reports: ScalingReports | None
    reading_threads: Executor
    """For directory queries of historical readers, so that flushes do not wait behind them."""


@dataclass(frozen=True, slots=True)
class OwnedContainer:
    """A container that this store serves, with its background tasks."""

    container: SegmentContainer
    writer: StorageWriter
    reader: StorageReader
    tables: TableStore
    evictor: Evictor
    maintenance: MaintenanceTasks
    backfill: Backfill

    async def stop_upkeep(self) -> None:
        """Stop the tasks that would change the container or tier 2, except for the storage writer."""
        await self.maintenance.stop()
        await self.tables.stop()

    def resume(self) -> None:
        """Serve the container again after `stop_upkeep` and a drain that can be undone (`StorageWriter.may_resume`)."""
        self.container.resume()
        self.tables.resume()
        self.writer.resume()
        self.maintenance.start()

    async def stop(self) -> None:
        """Stop the background tasks of the container, which must not be served any more."""
        await self.stop_upkeep()
        await self.writer.stop()
        await self.backfill.stop()


def assemble(
    parts: SharedParts,
    container: SegmentContainer,
    directory: ChunkDirectory,
    records: SegmentRecords,
    snapshots: SnapshotStore,
    backfill: Backfill,
    *,
    covered: bool,
) -> OwnedContainer:
    """Build the tasks of a container without starting them. `covered` is as for `SnapshotWriter`."""
    limits, clock = parts.limits, parts.clock
    epoch, threads = container.epoch, parts.reading_threads
    read_directory = ChunkDirectory(parts.metadata_store, container.container, epoch, clock, threads=threads)
    reader = StorageReader(read_directory, parts.chunk_storage, parts.read_cache)
    index_store = IndexStore(parts.metadata_store, parts.chunk_storage, container.container, epoch, clock)
    tables = TableStore(container, reader, index_store, parts.table_memory, backfill)
    names = ObjectNames(container.container, epoch, clock)
    small_runs = SmallRuns(limits.compacted_runs_min)
    upkeep = DirectoryUpkeep(
        container, directory, small_runs, limits.object_bytes_max, tables.continue_upkeep, covered=covered
    )
    snapshot_writer = SnapshotWriter(container, snapshots, clock, limits, upkeep.note_snapshot, covered=covered)
    writer = StorageWriter(
        container,
        directory,
        upkeep,
        parts.chunk_storage,
        clock,
        limits,
        snapshot_writer,
        names,
        backfill,
    )
    collector = GarbageCollector(directory, parts.chunk_storage, names, clock, limits)
    compactor = Compactor(
        container,
        directory,
        parts.chunk_storage,
        names,
        small_runs,
        parts.compaction_budget,
        lambda: writer.is_calm,
    )
    evictor = Evictor(container, records, snapshots, clock, limits, upkeep.must_wait, tables.forget)
    evictions = Sweep(clock, limits.idle_segment_s / SWEEPS_PER_IDLE_TIME, evictor.sweep)
    expiry = Sweep(clock, SWEEP_EVERY_S, container.writers.sweep)
    maintenance = MaintenanceTasks(container, [collector, compactor, evictions, expiry], limits)
    return OwnedContainer(container, writer, reader, tables, evictor, maintenance, backfill)
