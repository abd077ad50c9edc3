"""A container that a store serves, from the steps of its opening on, and what all containers of a store share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from headrace.codec.container_snapshots import ContainerSnapshot, encode_snapshot
from headrace.model.containers import FIRST_EPOCH, OpeningProgress, OpeningStep, SnapshotPointer
from headrace.model.errors import CorruptError, FencedError, HeadraceError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.ledger import Ledger, LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.scaling_reports import ScalingReports
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.containers.recovery import Recovery
from headrace.segmentstore.containers.writer_expiry import SWEEP_EVERY_S
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.segmentstore.tables.index_store import IndexStore
from headrace.segmentstore.tables.table_store import TableMemory, TableStore
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.compactor import CompactionBudget, Compactor, SmallRuns
from headrace.segmentstore.tiering.directory_upkeep import DirectoryUpkeep
from headrace.segmentstore.tiering.garbage_collector import GarbageCollector
from headrace.segmentstore.tiering.maintenance import MaintenanceTasks, Sweep
from headrace.segmentstore.tiering.owner_writes import ObjectNames
from headrace.segmentstore.tiering.range_cache import RangeCache
from headrace.segmentstore.tiering.restoration import reconcile_after_loss, restore_container
from headrace.segmentstore.tiering.segment_records import SWEEPS_PER_IDLE_TIME, Evictor, SegmentRecords
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore, SnapshotWriter
from headrace.segmentstore.tiering.storage_limits import StorageLimits
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
    snapshot_writer = SnapshotWriter(
        container, snapshots, clock, limits, upkeep.note_snapshot, upkeep.note_taken, covered=covered
    )
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


# Opens one container in steps, from its claim until it is served.
#
# Each step may fail and be repeated. `undo` discards what the steps have created in this process. What they wrote to
# tier 2 carries the epoch of the claim, and a repeated step finds it.

_log = logging.getLogger(__name__)


class ContainerOpening:
    """`epoch` is None before the claim. `on_failure` is passed to the container when it is built.

    `progress` has the earlier failures of the container, if it has stopped before.
    """

    def __init__(
        self,
        parts: SharedParts,
        container: int,
        on_failure: Callable[[SegmentContainer, HeadraceError], None],
        progress: OpeningProgress | None = None,
    ) -> None:
        self.container = container
        self.epoch: int | None = None
        self.progress = progress or OpeningProgress()
        self.owned: OwnedContainer | None = None
        self._parts = parts
        self._on_failure = on_failure
        self._ledger: Ledger | None = None
        self._recovery: Recovery | None = None
        self._backfill: Backfill | None = None
        self._snapshot_store: SnapshotStore | None = None
        self._restored = False
        self._is_ahead = False
        self._newer: ContainerSnapshot | None = None
        self._started_s = 0.0

    def claimed(self, epoch: int) -> None:
        """Note that the container was claimed with this epoch."""
        parts = self._parts
        self.epoch = epoch
        # One for all attempts: it numbers the snapshots of this epoch, so that no object name is reused.
        self._snapshot_store = SnapshotStore(parts.metadata_store, parts.chunk_storage, self.container, epoch)
        self.progress = self.progress.done()

    async def advance(self) -> None:
        """Do the next step. The caller does the first one, the claim, and the last one, which confirms it.

        Raises:
            CorruptError: the log is damaged, or the data in tier 2 is inconsistent.
            FencedError: the container belongs to a newer owner.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        steps = {
            OpeningStep.LEDGER: self._open_ledger,
            OpeningStep.RESTORE: self._restore,
            OpeningStep.CHECKPOINT: self._checkpoint,
        }
        await steps[self.progress.step]()
        self.progress = self.progress.done()

    async def failed(self, error: Exception) -> None:
        """Note that the current step has failed, and discard what would prevent its repetition."""
        self.progress = self.progress.failed(error)
        if self.progress.step is OpeningStep.LEDGER:
            await self.undo()

    async def undo(self) -> None:
        """Discard everything but the claim, so that nothing is in memory and the log can be opened again.

        Raises:
            UnavailableError: the journal has failed.
        """
        if self.owned is not None:
            self.owned.container.log.end(FencedError(f"container {self.container} is not opened here"))
            await self.owned.stop()
        recovery, self._recovery, self.owned, self._backfill = self._recovery, None, None, None
        self._restored = self._is_ahead = False
        self._newer = None
        if self._ledger is not None:
            self._ledger = None
            await self._parts.ledgers.release(self.container)
        if recovery is not None:
            recovery.metadata.release_memory()

    def start(self) -> OwnedContainer:
        """Start the background work of the container. Call it when the claim was confirmed."""
        if self.owned is None:
            raise AssertionError("a container is served before it was opened")
        segment_container = self.owned.container
        segment_container.metrics.recovery_s = self._parts.clock.monotonic_s() - self._started_s
        if self._backfill is not None:
            self._backfill.start(segment_container.log)
        self.owned.writer.start()
        self.owned.maintenance.start()
        _log.info(
            "event=container_open container=%d epoch=%d segments=%d unstored_segments=%d next_entry=%d seconds=%.3f",
            self.container,
            segment_container.epoch,
            len(segment_container.metadata.segments),
            len(segment_container.dirty),
            segment_container.log.ledger.next_entry,
            segment_container.metrics.recovery_s,
        )
        return self.owned

    # Steps

    async def _open_ledger(self) -> None:
        self._started_s = self._parts.clock.monotonic_s()
        ledgers, epoch = self._parts.ledgers, self._claimed_epoch
        await drop_past_log(ledgers, self.container, await self._snapshots.pointer())
        self._ledger = ledger = await ledgers.open(self.container, epoch)
        rates = ContainerRates(self._parts.clock, self._parts.scaling_reports)
        recovery = Recovery(self.container, self._parts.pool, self._parts.clock, rates)
        self._backfill = await recovery.run(ledger)
        self._recovery = recovery
        _log.info(
            "event=recovered container=%d seconds=%.3f log_bytes=%d operations=%d",
            self.container,
            self._parts.clock.monotonic_s() - self._started_s,
            ledger.held_bytes,
            recovery.operations,
        )
        self._parts.ordering_clock.observe(recovery.frames.last_ordering)

    async def _restore(self) -> None:
        recovery, snapshots = self._recovered, self._snapshots
        pointer = await snapshots.pointer()
        if pointer is None and recovery.has_cut_checkpoint:
            raise CorruptError(
                f"the checkpoint of container {self.container} is incomplete, and tier 2 has no snapshot of it"
            )
        if not recovery.told_nothing:
            await self._look_for_loss(pointer)
            if pointer is not None:
                await snapshots.take_clean_mark_off(pointer)
            return
        if pointer is None and self._claimed_epoch == FIRST_EPOCH:
            return
        snapshot = await restore_container(snapshots, self._directory(), pointer)
        recovery.restore(snapshot)
        self._parts.ordering_clock.observe(snapshot.ordering)
        self._restored = True

    async def _look_for_loss(self, pointer: SnapshotPointer | None) -> None:
        """Note whether the log continues after an accepted loss, and tier 2 may be ahead of what is left of it.

        A snapshot of an owner after the loss says that tier 2 and the log were reconciled before it.
        """
        continued_at = None if self._ledger is None else self._ledger.continued_at
        self._is_ahead = continued_at is not None and (pointer is None or pointer.epoch < continued_at.epoch)
        if not self._is_ahead or pointer is None:
            return
        snapshot = await self._snapshots.load(pointer)
        self._parts.ordering_clock.observe(snapshot.ordering)
        self._newer = snapshot if snapshot.ordering > self._recovered.ordering_at_loss else None

    async def _reconcile(self, container: SegmentContainer) -> None:
        await reconcile_after_loss(container, self._directory(), self._newer)
        snapshot = replace(container.metadata.stored_snapshot(), ordering=container.log.current_ordering)
        parts = await asyncio.to_thread(lambda: list(encode_snapshot(snapshot)))
        await self._snapshots.replace(parts, clean=False)

    async def _checkpoint(self) -> None:
        parts, recovery = self._parts, self._recovered
        if self._ledger is None or self._backfill is None:
            raise AssertionError("a container is built before its log was opened")
        directory = self._directory()
        records = SegmentRecords(parts.metadata_store, directory, recovery.metadata)
        container = SegmentContainer(
            self.container,
            self._claimed_epoch,
            recovery.metadata,
            partial(
                OperationLog,
                self._ledger,
                parts.ordering_clock,
                recovery.frames.next_sequence,
                parts.gate if parts.ledgers.needs_lease(self.container) else None,
                pool=parts.pool,
            ),
            parts.pool,
            parts.clock,
            self._on_failure,
            parts.log_room,
            recovery.rates,
            records.find,
        )
        container.dirty.update(recovery.dirty)
        covered = recovery.told_nothing
        self.owned = assemble(parts, container, directory, records, self._snapshots, self._backfill, covered=covered)
        if self._is_ahead:
            await self._reconcile(container)
        if self._restored or self._is_ahead:
            # Before any client is served: later operations in the log refer to the restored segments.
            await self.owned.writer.checkpoint()

    # Internal

    @property
    def _claimed_epoch(self) -> int:
        if self.epoch is None:
            raise AssertionError("a container is opened before it was claimed")
        return self.epoch

    @property
    def _recovered(self) -> Recovery:
        if self._recovery is None:
            raise AssertionError("a container is restored before its log was read")
        return self._recovery

    @property
    def _snapshots(self) -> SnapshotStore:
        if self._snapshot_store is None:
            raise AssertionError("a container is opened before it was claimed")
        return self._snapshot_store

    def _directory(self) -> ChunkDirectory:
        parts = self._parts
        observe = parts.ordering_clock.observe
        return ChunkDirectory(parts.metadata_store, self.container, self._claimed_epoch, parts.clock, observe)


async def drop_past_log(ledgers: LedgerStore, container: int, pointer: SnapshotPointer | None) -> None:
    """Discard the container's log on this volume if a newer epoch has taken over the container since."""
    epoch = ledgers.epochs().get(container)
    if epoch is not None and pointer is not None and pointer.epoch > epoch:
        _log.warning("event=log_of_the_past container=%d epoch=%d newer_epoch=%d", container, epoch, pointer.epoch)
        await ledgers.forget(container)
