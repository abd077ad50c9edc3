"""The containers of one segment store process, and what they share: journal, cache, tier 2.

Finds the container of a segment. It does not know how connections, claims or AWS work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError, FencedError, HeadraceError
from headrace.model.names import container_of_segment, is_transient_segment_name
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.ledger import Ledger, LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.scaling_reports import ScalingReports
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.operation_log import OperationLog
from headrace.segmentstore.containers.ordering_clock import OrderingClock
from headrace.segmentstore.containers.recovery import Recovery
from headrace.segmentstore.containers.unstored_load import UnstoredLoad
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.segmentstore.metrics import StoreMetrics
from headrace.segmentstore.reading.block_pool import BlockPool
from headrace.segmentstore.storage.chores import Chores
from headrace.segmentstore.storage.chunk_directory import ChunkDirectory
from headrace.segmentstore.storage.compactor import CompactionBudget, Compactor
from headrace.segmentstore.storage.evictor import Evictor
from headrace.segmentstore.storage.garbage_collector import GarbageCollector
from headrace.segmentstore.storage.limits import StorageLimits
from headrace.segmentstore.storage.object_names import ObjectNames
from headrace.segmentstore.storage.range_cache import RangeCache
from headrace.segmentstore.storage.restoration import restore_container
from headrace.segmentstore.storage.segment_records import SegmentRecords
from headrace.segmentstore.storage.small_runs import SmallRuns
from headrace.segmentstore.storage.snapshot_store import SnapshotStore
from headrace.segmentstore.storage.snapshot_writer import SnapshotWriter
from headrace.segmentstore.storage.storage_reader import StorageReader
from headrace.segmentstore.storage.storage_writer import StorageWriter
from headrace.segmentstore.storage.throttle import Throttle
from headrace.segmentstore.tables.index_store import IndexStore
from headrace.segmentstore.tables.limits import TableLimits
from headrace.segmentstore.tables.table_memory import TableMemory
from headrace.segmentstore.tables.table_store import TableStore

_log = logging.getLogger(__name__)


Confirm = Callable[[int, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class OwnedContainer:
    """A container that this store serves."""

    container: SegmentContainer
    writer: StorageWriter
    reader: StorageReader
    tables: TableStore
    evictor: Evictor
    chores: Chores
    unstored: UnstoredLoad


class SegmentStore:
    """`on_failure` is called when a container stops for good."""

    def __init__(
        self,
        ledgers: LedgerStore,
        pool: BlockPool,
        clock: Clock,
        metadata_store: MetadataStore,
        chunk_storage: ChunkStorage,
        *,
        container_count: int,
        limits: StorageLimits | None = None,
        table_limits: TableLimits | None = None,
        on_failure: Callable[[SegmentContainer, HeadraceError], None] | None = None,
        scaling_reports: ScalingReports | None = None,
    ) -> None:
        self.gate = LeaseGate(clock)
        self.pool = pool
        self.clock = clock
        self.container_count = container_count
        self.metrics = StoreMetrics()
        self._ledgers = ledgers
        self._metadata_store = metadata_store
        self._chunk_storage = chunk_storage
        self._limits = limits or StorageLimits()
        self.table_memory = TableMemory(chunk_storage, table_limits or TableLimits())
        self.read_cache = RangeCache(chunk_storage, self._limits.read_cache_bytes)
        self._compaction_budget = CompactionBudget(self._limits.compaction_bytes_per_s, clock)
        self._on_failure = on_failure
        self._scaling_reports = scaling_reports
        self._ordering_clock = OrderingClock(clock)
        self._owned: dict[int, OwnedContainer] = {}
        self._log_room = LogRoom(ledgers.space, lambda: (each.container.log.ledger for each in self._owned.values()))
        self.throttle = Throttle(pool, self._log_room, lambda: [each.container for each in self._owned.values()])
        self._background: set[asyncio.Task[None]] = set()
        self._opening: dict[int, int] = {}
        self._handed_over: dict[int, OwnedContainer] = {}  # what they hold back is acknowledged under their claim
        pool.on_pressure = self._hurry

    @property
    def owned(self) -> Mapping[int, OwnedContainer]:
        return self._owned

    @property
    def claims(self) -> Mapping[int, int]:
        """The claims that this store counts as its own: the epochs of what it serves and opens."""
        served = [*self._handed_over.values(), *self._owned.values()]
        return self._opening | {each.container.container: each.container.epoch for each in served}

    def lose_claim(self, container: int, epoch: int, error: FencedError) -> None:
        """Stop what is served or opened under the claim of this epoch: nothing more of it is acknowledged."""
        owned = self._owned.get(container) or self._handed_over.get(container)
        if owned is not None and owned.container.epoch == epoch:
            owned.container.log.fail(error)
        elif self._opening.get(container) == epoch:
            del self._opening[container]

    async def open_container(self, container: int, epoch: int, confirm: Confirm | None = None) -> None:
        """Recover a container that was claimed with `epoch` from its log or, without one, from tier 2; then serve it.

        A log of the past, behind which another store went on, is let go of. `confirm` looks whether the claim still
        holds, as the last thing before the container is served.

        Raises:
            CorruptError: its log is damaged, or tier 2 contradicts itself.
            FencedError: its log belongs to a newer owner.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        self._opening[container] = epoch
        try:
            await self._open(container, epoch, confirm)
        finally:
            self._opening.pop(container, None)

    async def _open(self, container: int, epoch: int, confirm: Confirm | None) -> None:
        started_s = self.clock.monotonic_s()
        directory = ChunkDirectory(self._metadata_store, container, epoch, self.clock, self._ordering_clock.observe)
        snapshots = SnapshotStore(self._metadata_store, self._chunk_storage, container, epoch)
        pointer = await snapshots.pointer()
        self.let_go_of_past(container, pointer)
        ledger = self._ledgers.open(container, epoch)
        recovery, unstored = await self._recover(container, ledger)
        restored = recovery.told_nothing and pointer is not None
        if recovery.has_cut_checkpoint and pointer is None:
            raise CorruptError(
                f"the checkpoint of container {container} is incomplete, and tier 2 has no snapshot of it"
            )
        if restored and pointer is not None:
            snapshot = await restore_container(snapshots, directory, pointer)
            recovery.restore(snapshot)
            self._ordering_clock.observe(snapshot.ordering)
        segment_container = SegmentContainer(
            container,
            epoch,
            recovery.metadata,
            OperationLog(ledger, self._ordering_clock, recovery.frames.next_sequence, self.gate),
            self.pool,
            self.clock,
            self._container_failed,
            self._log_room,
        )
        segment_container.dirty.update(recovery.dirty)
        covered = recovery.told_nothing
        snapshot_writer = SnapshotWriter(segment_container, snapshots, self.clock, self._limits, covered=covered)
        owned = self._owned_container(segment_container, directory, snapshots, snapshot_writer, unstored)
        if restored:
            # Before anybody is served: the log must tell this before it tells anything else.
            await owned.writer.checkpoint()
        if confirm is not None:
            await confirm(container, epoch)
            if self._opening.get(container) != epoch:
                raise FencedError(f"container {container} of epoch {epoch} was taken over while it was opened")
        if self._scaling_reports is not None:
            segment_container.rates.start(self._scaling_reports)
        segment_container.metrics.recovery_s = self.clock.monotonic_s() - started_s
        self._owned[container] = owned
        self._log_room.look(self.clock.monotonic_s())
        unstored.start(segment_container.log)
        owned.writer.start()
        owned.chores.start()
        self._remove_transients(segment_container)
        _log.info(
            "event=container_open container=%d epoch=%d segments=%d unstored_segments=%d next_entry=%d seconds=%.3f",
            container,
            epoch,
            len(recovery.metadata.segments),
            len(recovery.dirty),
            ledger.next_entry,
            segment_container.metrics.recovery_s,
        )

    def let_go_of_past(self, container: int, pointer: SnapshotPointer | None) -> None:
        """Forget a log of the container that is here if another store went on with it after it was written."""
        found = self._ledgers.epochs().get(container)
        if found is not None and pointer is not None and pointer.epoch > found:
            _log.warning("event=log_of_the_past container=%d epoch=%d newer_epoch=%d", container, found, pointer.epoch)
            self._ledgers.forget(container)

    @property
    def logs_at_rest(self) -> list[int]:
        """Containers that are not served, but whose log is here: they keep the journal from freeing space."""
        return sorted(self._ledgers.epochs().keys() - self._owned.keys())

    async def hand_over(self, container: int, deadline_s: float) -> bool:
        """Take nothing more for a container, bring it to tier 2, and stop serving it; whether another store can go on.

        If not, because tier 2 was too slow, its log is needed here still: the container has stopped, and only a start
        of this store opens it again. Clients are told WrongHost from now on; what was accepted is answered.
        """
        owned = self._owned.pop(container, None)
        if owned is None:
            return True
        self._handed_over[container] = owned
        try:
            return await self._hand_over(owned, deadline_s)
        finally:
            del self._handed_over[container]

    async def _hand_over(self, owned: OwnedContainer, deadline_s: float) -> bool:
        container, started_s = owned.container.container, self.clock.monotonic_s()
        # First: a chore that finds the container leaving would take that for a failure.
        await owned.chores.stop()
        await owned.tables.stop()
        segment_container = owned.container
        segment_container.leave()
        try:
            clean = await asyncio.wait_for(owned.writer.drain(), deadline_s)
        except (HeadraceError, TimeoutError) as error:
            _log.error("event=hand_over_failed container=%d error=%r", container, error)
            clean = False
        await owned.writer.stop()
        await owned.unstored.stop()
        segment_container.log.on_failure = None  # it is none
        segment_container.log.fail(FencedError(f"container {container} was handed over: ask again who has it"))
        owned.tables.abandon()
        if not clean:
            return False
        segment_container.metadata.release_memory()
        self._ledgers.forget(container)
        seconds = self.clock.monotonic_s() - started_s
        _log.info("event=handed_over container=%d epoch=%d seconds=%.3f", container, segment_container.epoch, seconds)
        return True

    def _owned_container(
        self,
        container: SegmentContainer,
        directory: ChunkDirectory,
        snapshots: SnapshotStore,
        snapshot_writer: SnapshotWriter,
        unstored: UnstoredLoad,
    ) -> OwnedContainer:
        """The container with what works for it; nothing of that runs yet."""
        names = ObjectNames(container.container, container.epoch)
        small_runs = SmallRuns(self._limits.compacted_runs_min)
        writer = StorageWriter(
            container,
            directory,
            self._chunk_storage,
            self.clock,
            self._limits,
            snapshot_writer,
            names,
            small_runs,
            unstored,
        )
        collector = GarbageCollector(directory, self._chunk_storage, names, self.clock, self._limits)
        compactor = Compactor(
            container,
            directory,
            self._chunk_storage,
            names,
            small_runs,
            self._compaction_budget,
            lambda: writer.is_calm,
        )
        records = SegmentRecords(self._metadata_store, directory, container.metadata)
        evictor = Evictor(container, records, snapshots, self.clock, self._limits)
        chores = Chores(container, [collector, compactor, evictor, container.writers], self._limits)
        reader = StorageReader(directory, self._chunk_storage, self.read_cache)
        index_store = IndexStore(self._metadata_store, self._chunk_storage, container.container, container.epoch)
        tables = TableStore(container, reader, index_store, self.table_memory, unstored)
        container.idle.find_record, container.idle.forget = records.find, tables.forget
        return OwnedContainer(container, writer, reader, tables, evictor, chores, unstored)

    async def _recover(self, container: int, ledger: Ledger) -> tuple[Recovery, UnstoredLoad]:
        started_s = self.clock.monotonic_s()
        recovery = Recovery(container, self.pool, self.clock)
        unstored = await recovery.run(ledger)
        _log.info(
            "event=recovered container=%d seconds=%.3f log_bytes=%d operations=%d",
            container,
            self.clock.monotonic_s() - started_s,
            ledger.held_bytes,
            recovery.operations,
        )
        self._ordering_clock.observe(recovery.frames.last_ordering)
        return recovery, unstored

    def _remove_transients(self, container: SegmentContainer) -> None:
        """Remove the segments of connections that did not survive."""
        for name in filter(is_transient_segment_name, container.metadata.segments):
            self.run_background(container.delete(name))

    def owner_of(self, segment_name: str) -> OwnedContainer:
        """The container of a segment.

        Raises:
            FencedError: another store owns it.
        """
        container = container_of_segment(segment_name, self.container_count)
        owned = self._owned.get(container)
        if owned is None:
            raise FencedError(f"container {container} of segment {segment_name} is not here")
        return owned

    def tick_rates(self) -> None:
        """Bring the rates of the segments up to date; to be called about every model.rates.TICK_S."""
        self._log_room.look(self.clock.monotonic_s())
        for each in self._owned.values():
            each.container.rates.tick()

    def run_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that belongs to no connection and that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("event=background_work_failed error=%r", error)

    async def close(self, deadline_s: float) -> None:
        """Store what can be stored within the deadline, checkpoint, write the last snapshots, and stop serving."""
        for task in list(self._background):
            task.cancel()
        owned = list(self._owned.values())
        for each in owned:
            await each.chores.stop()
            await each.tables.stop()
        closing = [asyncio.ensure_future(each.writer.drain()) for each in owned]
        if closing:
            _, late = await asyncio.wait(closing, timeout=deadline_s)
            for drain in late:
                drain.cancel()
            ended = await asyncio.gather(*closing, return_exceptions=True)
            for each, result in zip(owned, ended, strict=True):
                if result is not True:  # the next start needs this one's volume, or loses what is late
                    _log.warning("event=close_incomplete container=%d error=%r", each.container.container, result)
        for each in owned:
            await each.writer.stop()
            await each.unstored.stop()
            each.container.log.close()
        self._owned.clear()

    def _hurry(self) -> None:
        for each in self._owned.values():
            each.writer.wake()

    def _container_failed(self, container: SegmentContainer, error: HeadraceError) -> None:
        owned = self._owned.pop(container.container, None)
        if owned is not None:
            owned.tables.abandon()
        if self._on_failure is not None:
            self._on_failure(container, error)
