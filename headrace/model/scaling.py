"""What becomes of a segment that is too hot or too cold for its stream's scaling policy, and of a raised minimum.

A plan names active segments to seal and the ranges that replace them, as a scale by hand does. Times are milliseconds
since the Unix epoch. The rules are Pravega's.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from headrace.model.epochs import Epoch
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.rates import ScalingReport
from headrace.model.segments import KeyRange, StreamSegment

REPORT_LIFE_MS: Final = 10 * 60 * 1000
"""A report that is older says nothing of the present any more."""

COLD_LIFE_MS: Final = 10 * 60 * 1000
"""For so long after its report a cold segment counts as cold; a silent one does for ever."""

SPLITS_MIN: Final = 2
MERGED_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Active segments to seal, and the ranges of the segments that replace them; both cover the same space."""

    sealed: tuple[int, ...]
    new_ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class ColdMark:
    """That a segment was reported cold at `reported_ms`, and until when that counts; None: for ever."""

    reported_ms: int
    until_ms: int | None

    def counts(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


def is_too_old(report: ScalingReport, now_ms: int) -> bool:
    return now_ms - report.at_ms > REPORT_LIFE_MS


def cold_mark(report: ScalingReport) -> ColdMark:
    return ColdMark(report.at_ms, None if report.silent else report.at_ms + COLD_LIFE_MS)


def split_plan(epoch: Epoch, identifier: int, splits_wanted: int, scale_factor: int) -> ScalePlan | None:
    """Split an active segment into equal ranges: as many as wanted, but no more than the policy's factor.

    None if the stream may not have one segment more, or the range is too narrow to be split.
    """
    room = SEGMENTS_PER_STREAM_MAX - len(epoch.segments) + 1
    parts = min(max(SPLITS_MIN, splits_wanted), max(SPLITS_MIN, scale_factor), room)
    if parts < SPLITS_MIN:
        return None
    ranges = split_range(epoch.by_id[identifier].key_range, parts)
    return ScalePlan((identifier,), ranges) if ranges else None


def neighbours(epoch: Epoch, identifier: int) -> tuple[StreamSegment, ...]:
    """The active segments right before and right after an active one; one at the edge of the key space has but one."""
    index = epoch.segments.index(epoch.by_id[identifier])
    return epoch.segments[max(0, index - 1) : index] + epoch.segments[index + 1 : index + 2]


def merge_plan(epoch: Epoch, identifier: int, cold: Collection[int], min_segments: int) -> ScalePlan | None:
    """Merge a cold active segment with those of its direct neighbours that are `cold` too.

    None if none of them is, or the stream would have fewer than `min_segments`.
    """
    candidates = sorted(
        [epoch.by_id[identifier], *(one for one in neighbours(epoch, identifier) if one.segment_id in cold)],
        key=lambda segment: segment.key_range,
    )
    merged = candidates[: max(0, len(epoch.segments) - min_segments) + 1]
    if len(merged) < MERGED_MIN:
        return None
    whole = KeyRange(merged[0].key_range.low, merged[-1].key_range.high)
    return ScalePlan(tuple(segment.segment_id for segment in merged), (whole,))


def growth_plan(epoch: Epoch, min_segments: int) -> ScalePlan | None:
    """Split the largest segments until there are `min_segments`, each into equal ranges; None if there are enough.

    `min_segments` is at most SEGMENTS_PER_STREAM_MAX, so that no range can be too narrow.
    """
    parts = [1] * len(epoch.segments)
    largest = [(_width_of_part(segment, 1), index) for index, segment in enumerate(epoch.segments)]
    heapq.heapify(largest)
    for _ in range(min_segments - len(epoch.segments)):
        _, index = heapq.heappop(largest)
        parts[index] += 1
        heapq.heappush(largest, (_width_of_part(epoch.segments[index], parts[index]), index))
    split = [(segment, count) for segment, count in zip(epoch.segments, parts, strict=True) if count > 1]
    if not split:
        return None
    ranges = [part for segment, count in split for part in split_range(segment.key_range, count)]
    return ScalePlan(tuple(segment.segment_id for segment, _ in split), tuple(ranges))


def split_range(key_range: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """Equal ranges, the last one ending exactly where the whole ends; none if they would not all hold a number."""
    low, width = key_range.low, key_range.high - key_range.low
    bounds = [low, *(low + width * index / parts for index in range(1, parts)), key_range.high]
    if not all(left < right for left, right in pairwise(bounds)):
        return ()
    return tuple(KeyRange(left, right) for left, right in pairwise(bounds))


def _width_of_part(segment: StreamSegment, parts: int) -> float:
    """Negative, since heaps give the smallest first."""
    return (segment.key_range.low - segment.key_range.high) / parts
