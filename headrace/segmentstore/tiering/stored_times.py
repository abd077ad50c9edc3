"""Finds in tier 2 when the bytes of a segment were appended, and where its appends start, from runs and time blocks.

Time blocks are optional. If one is missing or damaged, the times in the record of its run are used.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.codec.time_blocks import TIME_BLOCK_BYTES_MAX, decode_time_block, encode_time_block
from headrace.model.chunks import ChunkRun, RunTimes
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.time_points import POINTS_MAX, UNKNOWN_ORDERING, TimePoint, TimePoints
from headrace.ports.chunk_storage import ChunkStorage
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

# Gives runs that enter an object their times, and the object the blocks that tell them exactly.

BYTES_PER_TIME_POINT_MIN: Final = 256
"""A run has no more points than one for so many bytes: a time block stays small compared with its data."""


def points_in_memory(segment: Segment, run: ChunkRun) -> list[TimePoint]:
    """What memory knows of the run's bytes."""
    return segment.times.between(run.offset, run.end)


def points_known(segment: Segment, run: ChunkRun) -> list[TimePoint]:
    """What is known of a stored run without asking tier 2: from memory, else from its record."""
    if len(segment.times) and segment.times.begin <= run.offset:
        return points_in_memory(segment, run)
    return [] if run.times is None else [TimePoint(run.offset, run.times.first, run.times.last)]


def points_of_all(segment: Segment, runs: Sequence[ChunkRun]) -> list[TimePoint]:
    """What is known of contiguous runs that become one.

    A point for many frames may cross the border of two runs, and both of them have it then. Such points are joined.
    """
    points: list[TimePoint] = []
    for point in (point for run in runs for point in points_known(segment, run)):
        if points and point.first < points[-1].last:
            points[-1] = points[-1]._replace(last=max(points[-1].last, point.last))
        else:
            points.append(point)
    return points


def with_times(run: ChunkRun, points: list[TimePoint], block_position: int) -> tuple[ChunkRun, bytes]:
    """The run with these points, and its time block, which belongs at `block_position` of its object; empty if the
    record of the run says it all."""
    if not points:
        return run, b""
    if len(points) > 1:
        kept = TimePoints(points)
        kept.thin_out(min(POINTS_MAX, max(1, run.length // BYTES_PER_TIME_POINT_MIN)))
        if len(kept) > 1:
            block = encode_time_block(kept, run.offset)
            return replace(run, times=RunTimes(kept.oldest, kept.newest, block_position, len(block))), block
    return replace(run, times=RunTimes(points[0].first, points[-1].last)), b""


_log = logging.getLogger(__name__)

REMEMBERED_BLOCKS_MAX: Final = 32
"""Of one container; the largest takes 24 KiB."""


class StoredTimes:
    """The times of one container's segments."""

    def __init__(self, directory: ChunkDirectory, chunk_storage: ChunkStorage) -> None:
        self._directory = directory
        self._chunk_storage = chunk_storage
        self._blocks: OrderedDict[tuple[str, int], TimePoints] = OrderedDict()

    async def offset_from(self, segment: Segment, ordering: int) -> int:
        """The first append that came at `ordering` or later; an earlier one as far as points are joined, never a later.

        Returns the segment's length if all are older. Bytes of unknown time are not skipped. Reads one run from the
        directory at each step of a bisection over the offsets whose times are not in memory, then a time block.

        Raises:
            NotFoundError: the segment was removed meanwhile.
            CorruptError: the directory lacks a run that was written to it.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        times = segment.times
        in_memory = times.find(ordering)
        if in_memory is None and len(times):
            return segment.accepted.length
        if in_memory is not None and (in_memory.first < ordering or in_memory.offset > times.begin):
            return max(in_memory.offset, segment.accepted.start_offset)
        end = segment.accepted.length if in_memory is None else in_memory.offset
        run, unknown = await self._first_run(segment, ordering, min(end, segment.tiered.length))
        later = run.times if run is not None else in_memory
        unknown |= run is None and end > max(segment.tiered.length, segment.accepted.start_offset)
        if unknown and (later is None or ordering < later.first):
            return segment.accepted.start_offset
        return max(end if run is None else await self._offset_in(run, ordering), segment.accepted.start_offset)

    async def boundary_from(self, segment: Segment, offset: int) -> int | None:
        """The nearest start of an append at or behind `offset` that tier 2 knows; None if it knows none.

        A run begins with an append if its first number is newer than the last one of the run before it. Otherwise it
        may begin inside a merge, for example with a piece of a large event. Raises as `offset_from`.
        """
        before: ChunkRun | None = None
        position = offset
        while position < segment.tiered.length:
            run = await self._run_at(segment, position)
            if run is None:
                return segment.accepted.start_offset
            if run.offset == position and await self._begins_append(segment, run, before):
                return position
            points = await self._points(run)
            # A block has a point at the start of its run, whether an append begins there or not.
            boundary = None if points is None else points.boundary_from(max(position, run.offset + 1))
            if boundary is not None:
                return boundary
            before, position = run, run.end
        return None

    async def _begins_append(self, segment: Segment, run: ChunkRun, before: ChunkRun | None) -> bool:
        if before is None and run.offset > segment.accepted.start_offset:
            before = await self._run_at(segment, run.offset - 1)
        return before is None or before.times is None or run.times is None or run.times.first > before.times.last

    async def ordering_at(self, segment: Segment, offset: int) -> int:
        """The number of the byte at `offset`, or a lower one of its joined point; UNKNOWN_ORDERING if it has none.

        Memory answers if it can. Else this reads one run from the directory, and a time block. Raises as `offset_from`.
        """
        in_memory = segment.times.ordering_at(offset)
        if in_memory != UNKNOWN_ORDERING or offset >= segment.tiered.length:
            return in_memory
        run = await self._run_at(segment, offset)
        if run is None or run.times is None:
            return UNKNOWN_ORDERING
        points = await self._points(run)
        return run.times.first if points is None else max(run.times.first, points.ordering_at(offset))

    async def _first_run(self, segment: Segment, ordering: int, end: int) -> tuple[ChunkRun | None, bool]:
        """The first run before `end` that may have bytes of `ordering`, and whether runs before it have no times."""
        start, first, unknown = segment.accepted.start_offset, None, False
        while start < end:
            run = await self._run_at(segment, (start + end) // 2)
            if run is None:
                start = segment.accepted.start_offset
            elif run.times is not None and run.times.last >= ordering:
                first, end = run, run.offset
            else:
                unknown, start = run.times is None, run.end
        return first, unknown

    async def _run_at(self, segment: Segment, offset: int) -> ChunkRun | None:
        """The run that has the byte at `offset`; None if that was truncated away meanwhile."""
        run = await self._directory.run_before(segment.name, offset)
        if segment.accepted.removed:
            raise NotFoundError(f"segment {segment.name} was removed meanwhile")
        if offset < segment.accepted.start_offset:
            return None
        if run is None or run.end <= offset:
            raise CorruptError(
                f"the chunk directory has no run of {segment.name} at {offset}, though it is stored up to "
                f"{segment.tiered.length}",
                details={"segment": segment.name, "offset": offset},
            )
        return run

    async def _offset_in(self, run: ChunkRun, ordering: int) -> int:
        if run.times is None or ordering <= run.times.first or (points := await self._points(run)) is None:
            return run.offset
        point = points.find(ordering)
        return run.offset if point is None else point.offset

    async def _points(self, run: ChunkRun) -> TimePoints | None:
        """The points in the block of a run; None if it has none that can be read."""
        times = run.times
        if times is None or not 0 < times.block_length <= TIME_BLOCK_BYTES_MAX:
            return None
        key = (run.object_name, times.block_position)
        points = self._blocks.get(key)
        if points is None:
            try:
                block = await self._chunk_storage.read(run.object_name, times.block_position, times.block_length)
                points = decode_time_block(block, run.offset, run.length, times.first)
            except (CorruptError, NotFoundError) as error:
                _log.warning("event=time_block_unreadable object=%s error=%r", run.object_name, error.message)
                return None
            self._blocks[key] = points
        self._blocks.move_to_end(key)
        while len(self._blocks) > REMEMBERED_BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return points
