"""Plans for scaling a stream: after a report of a hot or cold segment, or after its minimum of segments was raised.

A plan names active segments to seal and the ranges that replace them, as a manual scale does. Times are milliseconds
since the Unix epoch. The rules are Pravega's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from headrace.model.epochs import Epoch
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.rates import ScalingReport
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import ScalingPolicy

REPORT_VALID_MS: Final = 10 * 60 * 1000
"""The controller ignores a report that is older: the rate may have changed since."""

COLD_VALID_MS: Final = 10 * 60 * 1000
"""How long a segment counts as cold after its report. A silent segment counts as cold without a limit."""

SPLITS_MIN: Final = 2
MERGED_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Active segments to seal, and the ranges of the segments that replace them; both cover the same space."""

    sealed: tuple[int, ...]
    new_ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class ColdMark:
    """A segment was reported cold at `reported_ms`. The mark is valid until `until_ms`; None: without a limit."""

    reported_ms: int
    until_ms: int | None

    def counts(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


def is_too_old(report: ScalingReport, now_ms: int) -> bool:
    return now_ms - report.at_ms > REPORT_VALID_MS


def cold_mark(report: ScalingReport) -> ColdMark:
    return ColdMark(report.at_ms, None if report.silent else report.at_ms + COLD_VALID_MS)


def split_plan(epoch: Epoch, identifier: int, splits_wanted: int, scale_factor: int) -> ScalePlan | None:
    """Split an active segment into equal ranges: as many as wanted, but at most the policy's factor.

    Returns None if the stream has the maximum of segments, or if the range is too narrow to be split.
    """
    room = SEGMENTS_PER_STREAM_MAX - len(epoch.segments) + 1
    parts = min(max(SPLITS_MIN, splits_wanted), max(SPLITS_MIN, scale_factor), room)
    if parts < SPLITS_MIN:
        return None
    ranges = split_range(epoch.by_id[identifier].key_range, parts)
    return ScalePlan((identifier,), ranges) if ranges else None


def neighbours(epoch: Epoch, identifier: int) -> tuple[StreamSegment, ...]:
    """The active segments directly before and after an active one. At an edge of the key space there is only one."""
    index = epoch.segments.index(epoch.by_id[identifier])
    return epoch.segments[max(0, index - 1) : index] + epoch.segments[index + 1 : index + 2]


def merge_plan(epoch: Epoch, identifier: int, cold: Collection[int], min_segments: int) -> ScalePlan | None:
    """Merge a cold active segment with those of its direct neighbours that are also in `cold`.

    Returns None if none of them is, or if the stream would have fewer than `min_segments`.
    """
    candidates = sorted(
        [
            epoch.by_id[identifier],
            *(neighbour for neighbour in neighbours(epoch, identifier) if neighbour.segment_id in cold),
        ],
        key=lambda segment: segment.key_range,
    )
    merged = candidates[: max(0, len(epoch.segments) - min_segments) + 1]
    if len(merged) < MERGED_MIN:
        return None
    whole = KeyRange(merged[0].key_range.low, merged[-1].key_range.high)
    return ScalePlan(tuple(segment.segment_id for segment in merged), (whole,))


def replacement_plan(epoch: Epoch, identifier: int) -> ScalePlan:
    """Replace an active segment by one of the same range."""
    return ScalePlan((identifier,), (epoch.by_id[identifier].key_range,))


def growth_plan(epoch: Epoch, min_segments: int) -> ScalePlan | None:
    """Split the largest segments, each into equal ranges, until there are `min_segments`; None if there are enough.

    `min_segments` is at most SEGMENTS_PER_STREAM_MAX, so that no range becomes too narrow.
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


def check_segments_left(epoch: Epoch, policy: ScalingPolicy) -> None:
    """Check that a scale to `epoch` leaves as many segments as the policy requires, as Pravega does.

    Raises:
        IllegalStateError: code "too_few_segments".
    """
    if len(epoch.segments) < policy.min_segments:
        raise IllegalStateError(
            f"the stream would have {len(epoch.segments)} segments, but its scaling policy requires "
            f"{policy.min_segments}: lower the minimum of the policy first",
            details={"segments": len(epoch.segments), "min": policy.min_segments},
            code="too_few_segments",
        )


def split_range(key_range: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """Equal ranges that end exactly where the whole ends; empty if doubles cannot represent so many."""
    low, width = key_range.low, key_range.high - key_range.low
    bounds = [low, *(low + width * index / parts for index in range(1, parts)), key_range.high]
    if not all(left < right for left, right in pairwise(bounds)):
        return ()
    return tuple(KeyRange(left, right) for left, right in pairwise(bounds))


def split_at(key_range: KeyRange, keys: Sequence[float]) -> tuple[KeyRange, ...]:
    """The ranges that begin at the low end of the whole and at each of the `keys`.

    Raises:
        InvalidRequestError: code "invalid_key_ranges": a key is not inside the range, or is named twice.
    """
    for key in keys:
        if not key_range.low < key < key_range.high:
            raise InvalidRequestError(
                f"the key {key} is not inside the segment, whose keys are from {key_range.low} to {key_range.high}",
                details={"low": key_range.low, "high": key_range.high},
                code="invalid_key_ranges",
            )
    if len(set(keys)) != len(keys):
        raise InvalidRequestError("a key is named twice", code="invalid_key_ranges")
    return tuple(KeyRange(low, high) for low, high in pairwise([key_range.low, *sorted(keys), key_range.high]))


def joined_range(segments: Mapping[int, KeyRange]) -> KeyRange:
    """The range of one segment that replaces all `segments`, by id.

    Raises:
        InvalidRequestError: code "not_adjacent": there are keys between two of them; `details` has both ids.
    """
    in_order = sorted(segments.items(), key=lambda segment: segment[1])
    for (left, before), (right, after) in pairwise(in_order):
        if before.high != after.low:
            raise InvalidRequestError(
                f"there are keys from {before.high} to {after.low} between two of the segments, which other segments "
                "have: only neighbours can be merged",
                details={"segments": [left, right]},
                code="not_adjacent",
            )
    return KeyRange(in_order[0][1].low, in_order[-1][1].high)


def _width_of_part(segment: StreamSegment, parts: int) -> float:
    """The negative width of one part: `heapq` returns the smallest item first."""
    return (segment.key_range.low - segment.key_range.high) / parts


# The scale that gives a stream a number of equal segments.
#
# One request may split and merge the same keys: Pravega and `epochs.scaled_epoch` only compare the space that the
# sealed and the new segments cover. One step is therefore always enough, also from 3 to 2 segments.

BOUND_TOLERANCE: Final = 1e-9
"""A bound of a segment that is nearer to an equal part's bound counts as that bound. Bounds from
splits of splits have other last bits than a division of the whole key space; no segment is replaced because of that."""


def even_plan(segments: Mapping[int, KeyRange], count: int) -> ScalePlan | None:
    """The scale from the active `segments`, by id, to `count` segments of equal width.

    Segments that are equal parts already are kept; all others are replaced. None if nothing is to be replaced.

    Raises:
        InvalidRequestError: `count` is not from 1 to SEGMENTS_PER_STREAM_MAX.
    """
    if not 1 <= count <= SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {count}",
            details={"segments": count, "segments_max": SEGMENTS_PER_STREAM_MAX},
            code="too_many_segments",
        )
    known = sorted({bound for segment in segments.values() for bound in (segment.low, segment.high)})
    bounds = [_near(known, index / count) for index in range(count + 1)]
    wanted = [KeyRange(low, high) for low, high in pairwise(bounds)]
    present = set(segments.values())
    kept = present.intersection(wanted)
    sealed = tuple(sorted(identifier for identifier, key_range in segments.items() if key_range not in kept))
    if not sealed:
        return None
    return ScalePlan(sealed, tuple(each for each in wanted if each not in kept))


def _near(known: Sequence[float], bound: float) -> float:
    """The bound in `known` that counts as `bound`, or `bound` itself."""
    index = bisect_left(known, bound)
    nearest = min(known[max(0, index - 1) : index + 1], key=lambda candidate: abs(candidate - bound))
    return nearest if abs(nearest - bound) <= BOUND_TOLERANCE else bound
