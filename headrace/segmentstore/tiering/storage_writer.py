"""Flushes the bytes of one container to tier 2, applies removals to the chunk directory, and truncates the log.

Each pass is a bounded piece of work that may be repeated: it finds runs in the directory that an earlier attempt wrote.
While tier 2 does not answer or refuses, passes fail and are retried with a back-off, and appends continue until the
cache is full. When the claim is lost or tier 2 contradicts the log the container stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.model.errors import HeadraceError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import ItemRefusedError
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.quarantine import quarantine
from headrace.segmentstore.containers.recovery import Checkpoints
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.periodic_task import NO_REST, PeriodicTask, Rest
from headrace.segmentstore.tiering.chunk_directory import ENTERED_WRITES_MAX, ChunkDirectory, fitting
from headrace.segmentstore.tiering.directory_upkeep import DirectoryUpkeep, FlushMark
from headrace.segmentstore.tiering.maintenance import ends_container, reported_as_refusal
from headrace.segmentstore.tiering.object_uploads import ObjectUploads, Upload, pack
from headrace.segmentstore.tiering.owner_writes import ObjectNames
from headrace.segmentstore.tiering.snapshot_store import SnapshotWriter
from headrace.segmentstore.tiering.storage_limits import StorageLimits

_log = logging.getLogger(__name__)


PREPARED_BYTES_MAX: Final = 4 << 20
"""What `drain` may have to flush after `prepare_drain`: one PUT, which takes a fraction of a second."""


class StorageWriter:
    """One per container; `wake` lets it look at once instead of at its next tick."""

    def __init__(
        self,
        container: SegmentContainer,
        directory: ChunkDirectory,
        upkeep: DirectoryUpkeep,
        chunk_storage: ChunkStorage,
        clock: Clock,
        limits: StorageLimits,
        snapshots: SnapshotWriter,
        names: ObjectNames,
        backfill: Backfill,
    ) -> None:
        self._container = container
        self._directory = directory
        self._clock = clock
        self._limits = limits
        self._snapshots = snapshots
        self._checkpoints = Checkpoints(container, limits.checkpoint_every_bytes)
        self._draining = False
        self._names = names
        self._upkeep = upkeep
        self._backfill = backfill
        self._uploads = ObjectUploads(chunk_storage, container.pool, limits.objects_in_flight_max)
        self._periodic = PeriodicTask(
            self._run,
            self._failed,
            retry_first_s=limits.retry_first_s,
            retry_max_s=limits.retry_max_s,
            woken=container.news,
        )
        self._drained: asyncio.Future[None] | None = None
        self._prepared: asyncio.Future[None] | None = None
        self._snapshots_before = 0

    def start(self) -> None:
        """Work until `stop`."""
        self._periodic.start()

    @property
    def is_calm(self) -> bool:
        """Whether tier 2 answers, and neither the cache nor the log needs it urgently."""
        return not self._hurried and not self.is_retrying

    @property
    def is_retrying(self) -> bool:
        """Whether the last request to tier 2 has failed."""
        return self._periodic.is_retrying

    @property
    def _hurried(self) -> bool:
        container = self._container
        is_leaving = self._draining or self._prepared is not None
        return is_leaving or container.pool.under_pressure or container.log.ledger.wants_truncation

    def wake(self) -> None:
        self._container.wake_flusher()

    async def prepare_drain(self) -> None:
        """Flush until little is left for `drain`, and write a snapshot, while the container accepts operations.

        It makes the requests that `drain` will make, so that a container is not stopped when tier 2 does not answer.

        Raises:
            UnavailableError, FencedError: the container has stopped.
        """
        if not self._periodic.is_running:
            return
        self._snapshots.want()
        self._snapshots_before = self._snapshots.written
        self._prepared = self._container.log.expect()
        self.wake()
        try:
            await self._prepared
        finally:
            self._prepared = None

    async def drain(self) -> bool:
        """Flush everything that was accepted, checkpoint, and write the last snapshot. The container accepts no more.

        The next start has little to read, and does not need this volume if this returns True.

        Raises:
            UnavailableError, FencedError: the container has stopped.
        """
        if not self._periodic.is_running:
            return False
        # Else an append that is being synced now would become durable after the last look for what tier 2 lacks.
        await self._container.log.durable()
        self._drained = self._container.log.expect()
        self._draining = True
        self.wake()
        await self._drained
        await self.checkpoint()
        await self.stop()
        return await self._snapshots.write_last()

    @property
    def may_resume(self) -> bool:
        """Whether the container can still be served here although `drain` has begun."""
        return self._container.failure is None and not self._snapshots.may_be_clean

    def resume(self) -> None:
        """Work as before `drain`, which has failed or was cancelled."""
        self._draining, self._drained = False, None
        if not self._periodic.is_running:
            self._periodic.start()

    async def checkpoint(self) -> None:
        """Log a checkpoint, and truncate the log before it if tier 2 has all of that; raises as `drain`."""
        self._checkpoints.write()
        await self._container.log.durable()
        if self._checkpoints.truncate_log():
            await self._container.log.durable()

    async def stop(self) -> None:
        await self._periodic.stop()
        self._uploads.discard()

    async def _run(self) -> Rest | None:
        if self._container.failure is not None:
            return None
        # In one tick a fast writer fills the cache, and would be throttled although tier 2 has nothing to do.
        self._container.wake_flusher_after(self._limits.object_bytes_max)
        more = await self.run_pass()
        if self._prepared is not None and self._is_prepared:
            resolve(self._prepared)
        if more:
            return NO_REST
        if self._drained is not None and not self._untiered():
            resolve(self._drained)
        return Rest(0.0, self._limits.tick_s)

    @property
    def _is_prepared(self) -> bool:
        dirty = self._container.dirty.values()
        untiered_bytes = sum(segment.untiered_bytes for segment in dirty if segment.is_flushable)
        return self._snapshots.written > self._snapshots_before and untiered_bytes <= PREPARED_BYTES_MAX

    def _failed(self, error: Exception, retry_s: float) -> bool:
        container = self._container
        match error:
            case HeadraceError() if not ends_container(error):
                if container.failure is not None:
                    return False
                container.metrics.storage_retries += 1
                if not reported_as_refusal(container, error, retry_s):
                    _log.warning(
                        "event=storage_retry container=%d retry_s=%.1f error=%r",
                        container.container,
                        retry_s,
                        error.message,
                    )
                return True
            case HeadraceError():
                container.log.fail(error)
            case _:  # a defect must stop the container, not silently its tiering
                _log.exception("event=storage_writer_failed container=%d", container.container)
                container.log.fail(HeadraceError(f"the storage writer failed: {error!r}"))
        return False

    async def run_pass(self) -> bool:
        """Do one bounded piece of work. Returns whether there may be more to do now.

        After a recovery it waits for the backfill, which loads the bytes to flush.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; nothing is lost, try again.
            FencedError: the container has another owner.
            CorruptError: the directory contradicts the log.
        """
        await self._backfill.wait()
        upkeep = self._upkeep
        more = await upkeep.forget_removed(self._uploads.merged_sources)
        waits = False
        if self._uploads or self._flush_due():
            if waits := self._waits_for_snapshot:
                self._snapshots.want()
            more |= await upkeep.move_merged()
            more |= await self._flush()
            more |= await upkeep.move_merged()
        more |= await upkeep.trim_truncated()  # last: after a start there may be much to look at, and bytes wait
        upkeep.rest_segments()
        if self._checkpoints.due:
            self._checkpoints.write()
        self._checkpoints.truncate_log()
        await self._snapshots.advance()
        return more or (waits and not self._waits_for_snapshot)

    # Flushing

    def _flush_due(self) -> bool:
        if self._hurried:
            return True
        now_s = self._clock.monotonic_s()
        untiered_bytes = 0
        for segment in self._container.dirty.values():
            if segment.quarantined:
                continue
            untiered_bytes += segment.untiered_bytes
            since_s = segment.untiered_since_s
            if segment.is_urgent or (since_s is not None and now_s - since_s >= self._limits.flush_age_s):
                return True
        return untiered_bytes >= self._limits.flush_bytes

    def _untiered(self) -> list[Segment]:
        """Segments with durable bytes to store: urgent ones, then the longest waiting first."""
        untiered = [segment for segment in self._container.dirty.values() if segment.is_flushable]
        return sorted(untiered, key=lambda segment: (not segment.is_urgent, segment.untiered_since_s or 0.0))

    async def _flush(self) -> bool:
        """Start the PUTs that there is room for, and enter the oldest objects. Returns whether something is left."""
        try:
            self._start_uploads()
            if not self._uploads:
                return False
            stored = await self._uploads.stored()
            await self._enter_objects(stored)
        except BaseException:
            # What was packed behind an object may only enter after it: all of it is packed again.
            self._uploads.discard()
            raise
        self._uploads.entered(stored)
        for upload in stored:
            self._note_flushed(upload)
        is_full = stored[-1].packed.length >= self._limits.object_bytes_max
        return bool(self._uploads) or self._draining or is_full or self._container.pool.under_pressure

    def _note_flushed(self, upload: Upload) -> None:
        packed = upload.packed
        self._container.metrics.flushes += 1
        self._container.metrics.flushed_bytes += packed.length
        _log.info(
            "event=flush container=%d object=%s bytes=%d runs=%d seconds=%.3f",
            self._container.container,
            upload.object_name,
            packed.length,
            len(packed.runs),
            self._clock.monotonic_s() - upload.packed_at_s,
        )

    def _start_uploads(self) -> None:
        """Pack and send objects until the window is full. Behind the first one only whole objects: they are few."""
        while self._uploads.has_room:
            if self._uploads and self._unpacked_bytes() < self._limits.object_bytes_max:
                return
            with contextlib.ExitStack() as release:
                object_name = release.enter_context(self._names.new())
                started_s = self._clock.monotonic_s()
                bytes_max, epoch = self._limits.object_bytes_max, self._container.epoch
                packed = pack(
                    self._untiered(), object_name, bytes_max, self._packed_end, epoch, self._upkeep.merge_must_wait
                )
                if not packed.runs:
                    return
                self._uploads.start(packed, object_name, release.pop_all(), started_s)

    @property
    def _waits_for_snapshot(self) -> bool:
        """Whether there are bytes that tier 2 may only get after a snapshot."""
        return any(map(self._upkeep.wants_snapshot, self._untiered()))

    def _packed_end(self, segment: Segment) -> int | None:
        """As `ObjectUploads.packed_end`. None also for a segment that must wait for a snapshot."""
        return None if self._upkeep.must_wait(segment) else self._uploads.packed_end(segment)

    def _unpacked_bytes(self) -> int:
        """The durable bytes that could be packed now."""
        wanted = (segment for segment in self._container.dirty.values() if segment.is_flushable)
        ends = [(segment, self._packed_end(segment)) for segment in wanted]
        return sum(segment.durable.length - end for segment, end in ends if end is not None)

    async def _enter_objects(self, uploads: Sequence[Upload]) -> None:
        """Write the runs of stored objects to the directory, in the order of their packing.

        A crash between two transactions leaves runs without a record. They are packed again, into another object.
        """
        objects = {upload.object_name: upload for upload in uploads}
        runs = [each for upload in uploads for each in upload.packed.runs]
        while runs:
            count = fitting((run for _, run in runs), ENTERED_WRITES_MAX)
            try:
                await self._enter(runs[:count], objects)
            except ItemRefusedError:
                await self._enter_apart(runs[:count], objects)
            del runs[:count]

    async def _enter_apart(self, runs: Iterable[tuple[Segment, ChunkRun]], objects: Mapping[str, Upload]) -> None:
        """Enter the runs of each segment by itself: for some of them the metadata store refuses an item for good."""
        by_home: dict[Segment, list[tuple[Segment, ChunkRun]]] = {}
        for place, run in runs:
            by_home.setdefault(place.home[0], []).append((place, run))
        for home, own in by_home.items():
            try:
                await self._enter(own, objects)
            except ItemRefusedError as error:
                quarantine(self._container, home, error)

    async def _enter(self, runs: Iterable[tuple[Segment, ChunkRun]], objects: Mapping[str, Upload]) -> None:
        """Write runs of one transaction to the directory, then count their bytes as stored."""
        waiting = _still_wanted(runs)
        while waiting:
            lengths = {run.object_name: objects[run.object_name].packed.length for _, run in waiting}
            done = FlushMark([place.home[0] for place, _ in waiting])
            try:
                with self._container.unanswered.noted(*(place.name for place, _ in waiting)):
                    stored_runs = await self._directory.add([(place.name, run) for place, run in waiting], lengths)
                taken: dict[Segment, None] = {}
                for index, (place, run) in enumerate(waiting):
                    if place.tiered.length != run.offset or (stored_runs and index not in stored_runs):
                        continue
                    self._upkeep.take_as_stored(place, stored_runs.get(index, run))
                    taken[place] = None
                    if not stored_runs:  # what is left came after this flush had begun
                        place.home[0].untiered_since_s = objects[run.object_name].packed_at_s
                        place.home[0].is_urgent = False
                self._upkeep.note_stored(taken)
            finally:
                done()
            waiting = _still_wanted(
                each for index, each in enumerate(waiting) if stored_runs and index not in stored_runs
            )


def _still_wanted(runs: Iterable[tuple[Segment, ChunkRun]]) -> list[tuple[Segment, ChunkRun]]:
    """The runs of segments that exist, if each continues what the directory has, or a run before it."""
    ends: dict[Segment, int] = {}
    wanted: list[tuple[Segment, ChunkRun]] = []
    for place, run in runs:
        if not place.home[0].accepted.removed and ends.get(place, place.tiered.length) == run.offset:
            wanted.append((place, run))
            ends[place] = run.end
    return wanted
