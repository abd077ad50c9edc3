"""Gives runs that enter an object their times, and the object the blocks that tell them exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.codec.time_blocks import encode_time_block
from headrace.model.chunks import ChunkRun, RunTimes
from headrace.model.time_points import POINTS_MAX, TimePoint, TimePoints
from headrace.segmentstore.containers.segment import Segment

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
