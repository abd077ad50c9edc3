"""Brings the bytes of one container to tier 2, and its removals to the chunk directory; then lets the log go.

Each round is a bounded piece of work that may be repeated: runs that an earlier attempt wrote are found in the
directory and taken as they are. While tier 2 is away rounds fail and are tried again, ever more slowly; appends go on
until the cache is full. When the claim is lost the container stops.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    ThrottledError,
    UnavailableError,
)
from headrace.model.names import is_transient_segment_name
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.segmentstore.containers.checkpoints import Checkpoints
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.unstored_load import UnstoredLoad
from headrace.segmentstore.storage.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory
from headrace.segmentstore.storage.limits import StorageLimits
from headrace.segmentstore.storage.object_names import ObjectNames, put_new
from headrace.segmentstore.storage.packer import pack
from headrace.segmentstore.storage.small_runs import SmallRuns
from headrace.segmentstore.storage.snapshot_writer import SnapshotWriter

_log = logging.getLogger(__name__)

REMOVALS_PER_ROUND_MAX: Final = 64


class StorageWriter:
    """One per container; `wake` lets it look at once instead of at its next tick."""

    def __init__(
        self,
        container: SegmentContainer,
        directory: ChunkDirectory,
        chunk_storage: ChunkStorage,
        clock: Clock,
        limits: StorageLimits,
        snapshots: SnapshotWriter,
        names: ObjectNames,
        small_runs: SmallRuns,
        unstored: UnstoredLoad,
    ) -> None:
        self._container = container
        self._directory = directory
        self._chunk_storage = chunk_storage
        self._clock = clock
        self._limits = limits
        self._snapshots = snapshots
        self._checkpoints = Checkpoints(container, limits.checkpoint_every_bytes)
        self._woken = asyncio.Event()
        self._draining = False
        self._names = names
        self._small_runs = small_runs
        self._load = unstored
        self._retrying = False
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        container.on_news = self.wake

    def start(self) -> None:
        """Work until `stop`."""
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_calm(self) -> bool:
        """Whether tier 2 answers, and neither the cache nor the log needs it urgently."""
        return not self._hurried and not self._retrying

    @property
    def _hurried(self) -> bool:
        container = self._container
        return self._draining or container.pool.under_pressure or container.log.ledger.wants_truncation

    def wake(self) -> None:
        self._woken.set()

    async def drain(self) -> bool:
        """Store everything that was accepted, checkpoint, and write the last snapshot: the container takes no more.

        The next start has little to read then, and needs nothing of this one's volume if this returns True.

        Raises:
            UnavailableError, FencedError: the container has stopped.
        """
        if self._task is None or self._task.done():
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

    async def checkpoint(self) -> None:
        """Log a checkpoint of this moment, and let go of what lies before it if tier 2 has that; raises as `drain`."""
        self._checkpoints.write()
        await self._container.log.durable()
        if self._checkpoints.truncate_log():
            await self._container.log.durable()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        retry_s = self._limits.retry_first_s
        while self._container.failure is None:
            try:
                await self._load.wait()
                more = await self.round()
                retry_s, self._retrying = self._limits.retry_first_s, False
            except (UnavailableError, ThrottledError) as error:
                if self._container.failure is not None:
                    return
                self._container.metrics.storage_retries += 1
                self._retrying = True
                _log.warning(
                    "event=storage_retry container=%d retry_s=%.1f error=%r",
                    self._container.container,
                    retry_s,
                    error.message,
                )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, self._limits.retry_max_s)
                continue
            except HeadraceError as error:
                self._container.log.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - a defect must stop the container, not silently its tiering
                _log.exception("event=storage_writer_failed container=%d", self._container.container)
                self._container.log.fail(HeadraceError(f"the storage writer failed: {error!r}"))
                return
            if not more:
                await self._rest()

    async def _rest(self) -> None:
        if self._drained is not None and not self._unstored():
            resolve(self._drained)
        # Not asyncio.wait_for: before Python 3.12 it may swallow a cancellation that meets a wake-up.
        timer = asyncio.get_running_loop().call_later(self._limits.tick_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def round(self) -> bool:
        """One bounded piece of work; whether there may be more to do at once.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; nothing is lost, try again.
            FencedError: the container has another owner.
            CorruptError: the directory contradicts the log.
        """
        more = await self._forget_removed()
        more |= await self._trim_truncated()
        if self._flush_due():
            more |= await self._move_merged()
            more |= await self._flush()
        self._rest_segments()
        if self._checkpoints.due:
            self._checkpoints.write()
        self._checkpoints.truncate_log()
        await self._snapshots.advance()
        return more

    # Flushing

    def _flush_due(self) -> bool:
        if self._hurried:
            return True
        now_s = self._clock.monotonic_s()
        unstored_bytes = 0
        for segment in self._container.dirty.values():
            unstored_bytes += segment.unstored_bytes
            since_s = segment.unstored_since_s
            if since_s is not None and now_s - since_s >= self._limits.flush_age_s:
                return True
        return unstored_bytes >= self._limits.flush_bytes

    def _unstored(self) -> list[Segment]:
        """Segments with durable bytes to store, the longest waiting first."""
        dirty = self._container.dirty.values()
        unstored = [segment for segment in dirty if segment.unstored_bytes and not segment.removed]
        return sorted(unstored, key=lambda segment: segment.unstored_since_s or 0.0)

    async def _flush(self) -> bool:
        """Store one object; whether something is left."""
        pool = self._container.pool
        started_s = self._clock.monotonic_s()
        with self._names.new() as object_name:
            packed = pack(self._unstored(), object_name, self._limits.object_bytes_max)
            if not packed.runs:
                return False
            pool.pin(packed.blocks)
            try:
                await put_new(self._chunk_storage, object_name, packed.parts)
            finally:
                pool.unpin(packed.blocks)
            for first in range(0, len(packed.runs), RUNS_PER_WRITE_MAX):
                await self._enter(packed.runs[first : first + RUNS_PER_WRITE_MAX], packed.length, started_s)
        self._container.metrics.flushes += 1
        self._container.metrics.flushed_bytes += packed.length
        _log.info(
            "event=flush container=%d object=%s bytes=%d runs=%d seconds=%.3f",
            self._container.container,
            object_name,
            packed.length,
            len(packed.runs),
            self._clock.monotonic_s() - started_s,
        )
        return self._draining or packed.length >= self._limits.object_bytes_max or pool.under_pressure

    async def _enter(self, runs: list[tuple[Segment, ChunkRun]], object_length: int, packed_at_s: float) -> None:
        """Write runs of one transaction to the directory, then count their bytes as stored.

        A crash between two of them leaves runs that nobody entered: they are packed again, into another object.
        """
        waiting = [(segment, run) for segment, run in runs if _still_wanted(segment, run)]
        while waiting:
            done = _FlushMark([segment for segment, _ in waiting])
            try:
                found = await self._directory.add([(segment.name, run) for segment, run in waiting], object_length)
                entered = list(found.items()) if found else list(enumerate(run for _, run in waiting))
                for index, run in entered:
                    self._take_as_stored(waiting[index][0], run)
                    if not found:  # what is left came after this flush had begun
                        waiting[index][0].unstored_since_s = packed_at_s
                stored = [waiting[index][0] for index, _ in entered]
                self._container.note_stored([(segment.number, segment.storage_length) for segment in stored])
            finally:
                done()
            waiting = [
                (segment, run)
                for index, (segment, run) in enumerate(waiting)
                if found and index not in found and _still_wanted(segment, run)
            ]

    def _take_as_stored(self, segment: Segment, run: ChunkRun) -> None:
        if run.end > segment.readable_length:
            what = (
                f"up to {run.end}, the log only up to {segment.readable_length}: acknowledged bytes are missing in it"
            )
            raise self._contradiction(segment, run, what)
        if segment.index.entry_start(run.end) != run.end:
            raise self._contradiction(
                segment, run, f"in a run that ends at {run.end}, inside an append: it is not ours"
            )
        if run.end > segment.storage_length:
            segment.advance_storage(run.end)
            self._small_runs.note(segment.name, run.length)
        if run.offset < segment.start_offset:
            segment.trimmed_offset = 0  # truncated before it was stored: look again

    def _contradiction(self, segment: Segment, run: ChunkRun, what: str) -> CorruptError:
        message = f"the chunk directory has {segment.name} {what}"
        _log.critical(
            "event=foreign_change container=%d object=%s error=%r", self._container.container, run.object_name, message
        )
        return CorruptError(message, details={"segment": segment.name, "offset": run.offset})

    # Editing the directory

    async def _move_merged(self) -> bool:
        """Give runs that came by merges to the segments that have them now."""
        more = False
        for segment in list(self._container.dirty.values()):
            while segment.moves and segment.moves[0].offset <= segment.storage_length < segment.readable_length:
                more = True
                move = segment.moves[0]
                name, runs = await self._directory.runs_of_move(segment.name, move, segment.storage_length)
                if segment.removed or not segment.moves or segment.moves[0] is not move:
                    break  # while we asked, a truncation or deletion made it pointless
                done = _FlushMark([segment])
                try:
                    await self._move(segment, name, runs)
                finally:
                    done()
        return more

    async def _move(self, segment: Segment, name: str, runs: list[ChunkRun]) -> None:
        move = segment.moves[0]
        if not runs:
            names = [place.name for place in move.places]
            raise CorruptError(f"the chunk directory has lost runs of {names}, merged into {segment.name}")
        if name == segment.name:
            entered = runs  # an earlier attempt moved them
        else:
            moved = [run.moved(segment.storage_length - runs[0].offset, move.ordering) for run in runs]
            conflicts = await self._directory.move(name, segment.name, runs, moved)
            entered = list(conflicts.values()) if conflicts else moved
        for run in sorted(entered, key=lambda run: run.offset):
            self._take_as_stored(segment, run)
        self._container.note_stored([(segment.number, segment.storage_length)])

    async def _forget_removed(self) -> bool:
        """Remove the runs of removed segments, some of them; whether there are more."""
        metadata = self._container.metadata
        durable = self._container.log.durable_entry
        dirty = self._container.dirty.values()
        needed = {place.name for segment in dirty for move in segment.moves for place in move.places}
        ready = [name for name, entry in metadata.deletions.items() if entry <= durable and name not in needed]
        for name in ready[:REMOVALS_PER_ROUND_MAX]:
            runs = await self._directory.page(name, limit=RUNS_PER_WRITE_MAX)
            removed = await self._directory.remove(name, runs)
            if removed == len(runs) < RUNS_PER_WRITE_MAX:
                if metadata.has_records and not is_transient_segment_name(name):
                    await self._directory.remove_record(name)  # last: runs without it would be nobody's
                self._container.note_deletion_stored(name)
        return bool(ready)

    async def _trim_truncated(self) -> bool:
        """Remove runs that lie before the start of their segment, some of them; whether there are more."""
        more = False
        for segment in list(self._container.dirty.values()):
            start = segment.durable_start_offset  # a truncation that a crash undoes must not cost its bytes
            if segment.trimmed_offset >= start:
                continue
            # A run that a merge moved here stays until the log knows of the move: else nobody could tell where it went.
            moved_end = segment.storage_length
            runs = await self._directory.page(segment.name, limit=RUNS_PER_WRITE_MAX)
            old = [run for run in runs if run.end <= min(start, moved_end)]
            # The last run stays until tier 2's snapshot has this start: else a store without this log would find
            # nothing of the segment, and take it for a deleted one.
            keeps_last = len(old) == len(runs) > 0 and segment.told_start < start
            gone = old[:-1] if keeps_last else old
            if gone and not self._container.stored_is_durable:
                continue
            removed = await self._directory.remove(segment.name, gone)
            more |= removed > 0
            if removed == len(old) < RUNS_PER_WRITE_MAX:
                segment.trimmed_offset = start
        return more

    def _rest_segments(self) -> None:
        """Forget segments that have nothing left to do."""
        resting = [
            number
            for number, segment in self._container.dirty.items()
            if self._is_gone(segment)
            or (
                segment.storage_length >= segment.length
                and not segment.moves
                and segment.trimmed_offset >= segment.start_offset
            )
        ]
        for number in resting:
            self._container.dirty.pop(number).unstored_since_s = None

    def _is_gone(self, segment: Segment) -> bool:
        """Whether the segment was removed and no crash brings it back; until then it keeps what it was merged from."""
        container = self._container
        removal = container.metadata.deletions.get(segment.name, -1)
        return segment.removed and removal <= container.log.durable_entry


class _FlushMark:
    """Keeps removals of segments waiting while their directory is written."""

    __slots__ = ("_future", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._segments = segments
        for segment in segments:
            segment.flushing = self._future

    def __call__(self) -> None:
        for segment in self._segments:
            segment.flushing = None
        resolve(self._future)


def _still_wanted(segment: Segment, run: ChunkRun) -> bool:
    return not segment.removed and segment.storage_length == run.offset
