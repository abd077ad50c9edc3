"""Rewrites small runs of one container's segments as larger ones, so that history is read in few large pieces.

Bytes are taken from the cache or read with ranged reads. New runs of several segments share an object. One transaction
replaces the runs of a segment, and fails if they have changed meanwhile. The old objects stay for the garbage
collector's grace period, so that readers which remember an old run can still read it. A crash may leave an object
without any or without some of its runs; the garbage collector finds these by their counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.model.chunks import ChunkRun
from headrace.model.errors import HeadraceError, NotFoundError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.segmentstore.cache.reservations import Block
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.chunk_directory import REPLACED_WRITES_MAX, ChunkDirectory, fitting
from headrace.segmentstore.tiering.owner_writes import ObjectNames, put_new
from headrace.segmentstore.tiering.stored_times import points_of_all, with_times

# Chooses the runs of a segment to merge into one, and remembers which segments may have such runs.
#
# A segment that gets a few kilobytes with every flush would end as thousands of tiny runs. Each is a record of the
# directory, and a request for a reader of history. Many runs of about the same size are merged at a time. A byte is
# therefore rewritten only a few times until it is in a chunk that is large enough.

COMPACTED_CHUNK_BYTES_MIN: Final = 16 << 20
"""Runs of this size stay as they are; smaller ones are merged up to it."""

HINTED_SEGMENTS_MAX: Final = 10_000

_BITS_PER_SIZE_CLASS: Final = 4


class SmallRuns:
    """Remembers of each active segment what was flushed in small runs since its directory was last looked at.

    It forgets at a restart, and the segments that were quiet for longest when there are too many. That costs nothing
    but time: a look at the directory finds older runs too.
    """

    def __init__(self, runs_min: int) -> None:
        self._runs_min = runs_min
        self._since: dict[str, tuple[int, int]] = {}
        self._due: dict[str, None] = {}

    def note(self, segment_name: str, length: int) -> None:
        """The directory has got a run of `length` bytes of this segment."""
        if length >= COMPACTED_CHUNK_BYTES_MIN:
            return
        count, run_bytes = self._since.pop(segment_name, (0, 0))
        count, run_bytes = count + 1, run_bytes + length
        if count >= self._runs_min or run_bytes >= COMPACTED_CHUNK_BYTES_MIN:
            self._due[segment_name] = None
            return
        self._since[segment_name] = (count, run_bytes)
        if len(self._since) > HINTED_SEGMENTS_MAX:
            del self._since[next(iter(self._since))]

    def choose(self, runs: Sequence[ChunkRun]) -> Sequence[ChunkRun]:
        """The last runs that should become one, with the minimum of this store; none if nothing is worth it."""
        return runs_to_merge(runs, self._runs_min)

    def look_again(self, segment_name: str) -> None:
        self._due[segment_name] = None

    def take(self) -> str | None:
        """A segment whose directory is worth a look; the longest waiting first."""
        name = next(iter(self._due), None)
        if name is not None:
            del self._due[name]
        return name

    def __len__(self) -> int:
        return len(self._due)


def runs_to_merge(runs: Sequence[ChunkRun], runs_min: int) -> Sequence[ChunkRun]:
    """Of the last runs of a segment, in order, those that should become one; none if nothing is worth it.

    They are contiguous, small, and can be replaced in one transaction. `runs_min` of about the same size, or smaller,
    are merged even if they do not make a whole chunk.
    """
    small = _small_tail(runs)
    for size_class in sorted({_size_class(run) for run in small}):
        first = len(small)
        while first and _size_class(small[first - 1]) <= size_class:
            first -= 1
        group = small[first:]
        if len(group) >= runs_min or _sum(group) >= COMPACTED_CHUNK_BYTES_MIN:
            chosen = group[: fitting(group, REPLACED_WRITES_MAX)]
            while _sum(chosen[:-1]) >= COMPACTED_CHUNK_BYTES_MIN:
                chosen = chosen[:-1]
            return chosen if len(chosen) > 1 else ()
    return ()


def _small_tail(runs: Sequence[ChunkRun]) -> Sequence[ChunkRun]:
    """The contiguous small runs at the end."""
    first = len(runs)
    while first and runs[first - 1].length < COMPACTED_CHUNK_BYTES_MIN:
        if first < len(runs) and runs[first - 1].end != runs[first].offset:
            break
        first -= 1
    return runs[first:]


def _size_class(run: ChunkRun) -> int:
    """Runs of a class differ in size by a factor of 16 at most."""
    return run.length.bit_length() // _BITS_PER_SIZE_CLASS


def _sum(runs: Sequence[ChunkRun]) -> int:
    return sum(run.length for run in runs)


_log = logging.getLogger(__name__)

RUNS_LOOKED_AT: Final = 128
"""The number of a segment's last runs to consider: those that fit into one transaction, and older ones."""

READS_AT_ONCE_MAX: Final = 8
SEGMENTS_PER_PASS_MAX: Final = 128
OBJECT_BYTES_WANTED: Final = COMPACTED_CHUNK_BYTES_MIN // 2
"""Merges are gathered up to here; all are in memory, and one alone has less than twice `COMPACTED_CHUNK_BYTES_MIN`."""


class CompactionBudget:
    """Limits the compactions of all containers of a process: one at a time, and `bytes_per_s` on average.

    With 0 bytes per second nothing is compacted.
    """

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._taken = False
        self._free_from_s = clock.monotonic_s()

    def take(self) -> bool:
        """Whether the caller may compact now. If so, it must call `give_back` afterwards."""
        if self._taken or not self._bytes_per_s or self._clock.monotonic_s() < self._free_from_s:
            return False
        self._taken = True
        return True

    def give_back(self, spent_bytes: int) -> None:
        self._taken = False
        if spent_bytes:
            self._free_from_s = self._clock.monotonic_s() + spent_bytes / self._bytes_per_s


@dataclass(slots=True)
class _Merge:
    """Runs of a segment that become one, and their bytes."""

    segment: Segment
    runs: Sequence[ChunkRun]
    parts: list[memoryview] = field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(run.length for run in self.runs)

    def merged(self, object_name: str, position: int, block_position: int) -> tuple[ChunkRun, bytes]:
        """The new run, and its time block, which belongs at `block_position`."""
        mark = self.segment.table_mark
        logged = self.runs[-1].logged
        run = ChunkRun(self.runs[0].offset, self.length, object_name, position, table=mark, logged=logged)
        return with_times(run, points_of_all(self.segment, self.runs), block_position)


def _laid_out(merges: Sequence[_Merge], object_name: str) -> tuple[list[tuple[_Merge, ChunkRun, bytes]], int]:
    """The runs with their time blocks, which follow the data of all runs, and the length of the object."""
    position, length = 0, sum(merge.length for merge in merges)
    laid_out = []
    for merge in merges:
        run, block = merge.merged(object_name, position, length)
        laid_out.append((merge, run, block))
        position += run.length
        length += len(block)
    return laid_out, length


class Compactor:
    """Compacts the segments of one container, while `is_calm` says that flushes do not need tier 2 or memory."""

    def __init__(
        self,
        container: SegmentContainer,
        directory: ChunkDirectory,
        chunk_storage: ChunkStorage,
        names: ObjectNames,
        small_runs: SmallRuns,
        budget: CompactionBudget,
        is_calm: Callable[[], bool],
    ) -> None:
        self._container = container
        self._directory = directory
        self._chunk_storage = chunk_storage
        self._names = names
        self._small_runs = small_runs
        self._budget = budget
        self._is_calm = is_calm

    async def run_pass(self) -> bool:
        """Write one object of larger runs, if there are runs to merge. Returns whether there may be more now.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; the same runs are looked at again later.
            FencedError: the container has another owner.
        """
        if not len(self._small_runs) or not self._is_calm() or not self._budget.take():
            return False
        spent_bytes = 0
        taken: list[str] = []
        late = self._container.unanswered.names()
        try:
            merges = await self._choose(taken, late)
            spent_bytes = sum(merge.length for merge in merges)
            if merges:
                await self._merge(merges)
        except (HeadraceError, asyncio.CancelledError):  # a container that was stopped may be resumed
            for name in taken:
                self._small_runs.look_again(name)
            raise
        finally:
            self._budget.give_back(spent_bytes)
        waiting = late.intersection(taken)
        for name in waiting:
            self._small_runs.look_again(name)
        return len(self._small_runs) > len(waiting)

    async def _choose(self, taken: list[str], late: Container[str]) -> list[_Merge]:
        """Merges for one object; the names of segments that were looked at go to `taken`.

        There is none of `late` segments: a run that enters the directory late must find the one that is in its place,
        because it would be inside a merged one.
        """
        merges: list[_Merge] = []
        length = 0
        while length < OBJECT_BYTES_WANTED and len(taken) < SEGMENTS_PER_PASS_MAX:
            name = self._small_runs.take()
            if name is None:
                break
            taken.append(name)
            segment = self._container.metadata.segments.get(name)
            if segment is None or segment.accepted.removed or name in late:
                continue  # an evicted segment is considered again when it gets new runs
            newest = await self._directory.runs_before(name, segment.tiered.length, RUNS_LOOKED_AT)
            if not self._container.stored_is_durable:
                # A recovery needs a run that starts where tier 2 ends by the log, and would enter it again.
                self._small_runs.look_again(name)
                break
            runs = self._small_runs.choose(newest)
            if runs:
                merges.append(_Merge(segment, runs))
                length += merges[-1].length
        return merges

    async def _merge(self, chosen: Sequence[_Merge]) -> None:
        pinned: list[Block] = []
        with self._names.new() as name:
            try:
                merges = [merge for merge in chosen if await self._read_all(merge, pinned)]
                if not merges:
                    return
                entered, length = _laid_out(merges, name)
                blocks = [memoryview(block) for _, _, block in entered if block]
                await put_new(self._chunk_storage, name, [part for merge in merges for part in merge.parts] + blocks)
            finally:
                self._container.pool.unpin(pinned)
            for merge, run, _ in entered:
                merge.parts.clear()
                if not merge.segment.accepted.removed:
                    await self._directory.replace(merge.segment.name, merge.runs, run, length)
                    self._small_runs.look_again(merge.segment.name)
        self._container.metrics.compacted_bytes += length
        _log.info(
            "event=compacted container=%d object=%s bytes=%d runs=%d segments=%d",
            self._container.container,
            name,
            length,
            sum(len(merge.runs) for merge in merges),
            len(merges),
        )

    async def _read_all(self, merge: _Merge, pinned: list[Block]) -> bool:
        """Read the bytes of a merge. Returns False if some are missing in tier 2."""
        try:
            for first in range(0, len(merge.runs), READS_AT_ONCE_MAX):
                runs = merge.runs[first : first + READS_AT_ONCE_MAX]
                for parts in await asyncio.gather(*(self._read(merge.segment, run, pinned) for run in runs)):
                    merge.parts.extend(parts)
        except NotFoundError as error:
            # Readers of these bytes get an error. Stopping the container would make all its other data unavailable.
            _log.critical(
                "event=foreign_change container=%d segment=%r offset=%d error=%r",
                self._container.container,
                merge.segment.name,
                merge.runs[0].offset,
                error.message,
            )
            return False
        return True

    async def _read(self, segment: Segment, run: ChunkRun, pinned: list[Block]) -> list[memoryview]:
        parts, blocks = segment.index.read(run.offset, run.length)
        if sum(map(len, parts)) == run.length:
            self._container.pool.pin(blocks)
            pinned.extend(blocks)
            return parts
        return [memoryview(await self._chunk_storage.read(run.object_name, run.position, run.length))]
