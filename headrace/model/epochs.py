"""Epochs of a stream: the set of active segments between two changes, with their predecessors and successors.

An epoch contains its segments and the segments of the previous epoch that it replaced. So one epoch is enough to find
predecessors and successors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.log_classes import class_of_number, first_number_of_class
from headrace.model.segments import KeyRange, StreamSegment, check_same_space, equal_ranges, segment_id


@dataclass(frozen=True)
class Epoch:
    """One epoch. `segments` are sorted by key range.

    `replaced` are the segments of the previous epoch that are sealed for this one. The creation time is in milliseconds
    since the Unix epoch and grows strictly from epoch to epoch. `duplicate_of` is the number of the epoch whose
    segments this one repeats, with the same numbers and new ids: see `rolling_transactions`. A scale that was rolled
    back leaves an epoch that repeats the previous one with the same ids: see `rolled_back_epoch`.
    """

    number: int
    creation_time_ms: int
    segments: tuple[StreamSegment, ...]
    replaced: tuple[StreamSegment, ...] = ()
    duplicate_of: int | None = None

    @classmethod
    def first(cls, segment_count: int, first_segment_number: int, creation_time_ms: int) -> Self:
        """The first epoch of a stream: equal ranges, numbers from `first_segment_number` on."""
        ranges = equal_ranges(segment_count)
        return cls(0, creation_time_ms, _new_segments(0, first_segment_number, ranges))

    @cached_property
    def by_id(self) -> dict[int, StreamSegment]:
        return {segment.segment_id: segment for segment in self.segments}

    @cached_property
    def created(self) -> tuple[StreamSegment, ...]:
        """The segments that began with this epoch."""
        return tuple(segment for segment in self.segments if segment.epoch == self.number)

    @property
    def reference_epoch(self) -> int:
        """The number that this epoch and all its duplicates share: that of the epoch they repeat, or its own number."""
        return self.number if self.duplicate_of is None else self.duplicate_of

    @property
    def changes_nothing(self) -> bool:
        """Whether it has the segments of the previous epoch, which a scale leaves that was rolled back."""
        return not self.created

    @property
    def next_segment_number(self) -> int:
        return max(segment.number for segment in self.segments) + 1

    def first_new_number(self, count: int) -> int:
        """The first of `count` segment numbers for the next epoch, all of the class of this epoch's last number."""
        following = self.next_segment_number
        return first_number_of_class(class_of_number(following - 1), following, count)

    def successors_of(self, replaced: StreamSegment) -> tuple[StreamSegment, ...]:
        """The segments of this epoch that follow one of the `replaced`."""
        return overlapping(self.created, replaced.key_range)

    def predecessors_of(self, created: StreamSegment) -> tuple[StreamSegment, ...]:
        """The replaced segments that one of the `created` follows; none in the first epoch."""
        return overlapping(self.replaced, created.key_range)

    def replaced_segment(self, identifier: int) -> StreamSegment:
        """Raises NotFoundError unless this epoch replaced the segment."""
        for segment in self.replaced:
            if segment.segment_id == identifier:
                return segment
        raise NotFoundError(f"epoch {self.number} did not replace segment {identifier}")


def overlapping(segments: Sequence[StreamSegment], key_range: KeyRange) -> tuple[StreamSegment, ...]:
    """The segments that share key space with `key_range`. `segments` are sorted by key range and do not overlap."""
    first = bisect_right(segments, key_range.low, key=lambda segment: segment.key_range.high)
    last = bisect_left(segments, key_range.high, key=lambda segment: segment.key_range.low)
    return tuple(segments[first:last])


def front_of_scale(coming: Epoch, is_sealed: Callable[[StreamSegment], bool]) -> tuple[StreamSegment, ...]:
    """The newest segments that may contain events while a stream changes to the epoch `coming`.

    They cover the key space once. `is_sealed` is called for the replaced segments. Where all replaced segments of a
    part of the key space are sealed, writers use the new segments; elsewhere some still write to the old ones. If the
    mixture has more segments than a stream cut can name, the result has all replaced segments: it is correct but older.
    """
    bounds = sorted(
        {segment.key_range.high for segment in coming.replaced} & {segment.key_range.high for segment in coming.created}
    )

    def part(segment: StreamSegment) -> int:
        return bisect_left(bounds, segment.key_range.high)

    unsealed = {part(segment) for segment in coming.replaced if not is_sealed(segment)}
    kept = [segment for segment in coming.segments if segment.epoch != coming.number]
    new = [each for each in coming.created if part(each) not in unsealed]
    old = [each for each in coming.replaced if part(each) in unsealed]
    front = [*kept, *new, *old]
    if len(front) > SEGMENTS_PER_STREAM_MAX:
        front = [*kept, *coming.replaced]
    return tuple(sorted(front, key=lambda segment: segment.key_range))


def front_of_epochs(coming: Sequence[Epoch], is_sealed: Callable[[StreamSegment], bool]) -> tuple[StreamSegment, ...]:
    """As `front_of_scale`, for a change to one epoch or, in a rolling commit, through one epoch to another.

    A rolling commit fills and seals the segments of the first epoch before clients see them. So where the replaced
    segments are sealed, writers use the segments of the last epoch.
    """
    front = front_of_scale(coming[0], is_sealed)
    if len(coming) == 1:
        return front
    passed = coming[0].by_id
    newest = [each for segment in front if segment.segment_id in passed for each in _newest(coming, segment)]
    old = [segment for segment in front if segment.segment_id not in passed]
    return tuple(sorted({*newest, *old}, key=lambda segment: segment.key_range))


def _newest(coming: Sequence[Epoch], segment: StreamSegment) -> tuple[StreamSegment, ...]:
    return overlapping(coming[-1].segments, segment.key_range)


def scaled_epoch(
    current: Epoch, sealed_segment_ids: Iterable[int], new_ranges: Sequence[KeyRange], now_ms: int
) -> Epoch:
    """The epoch that follows when the given segments of `current` are sealed and replaced by segments of `new_ranges`.

    New numbers continue after the highest of the current epoch, in the order of the ranges.

    Raises:
        IllegalStateError: code "segment_not_active": a segment does not belong to this epoch.
        InvalidRequestError: code "invalid_key_ranges" or "too_many_segments".
    """
    sealed = set(sealed_segment_ids)
    unknown = sorted(sealed - current.by_id.keys())
    if unknown:
        raise IllegalStateError(
            f"segment {unknown[0]} is not active in epoch {current.number}: ask for the current segments",
            details={"segmentIds": unknown[:10], "epoch": current.number},
            code="segment_not_active",
        )
    if not sealed:
        raise InvalidRequestError("name at least one segment to seal", code="invalid_key_ranges")
    replaced = tuple(segment for segment in current.segments if segment.segment_id in sealed)
    check_same_space([segment.key_range for segment in replaced], new_ranges)
    kept = [segment for segment in current.segments if segment.segment_id not in sealed]
    if len(kept) + len(new_ranges) > SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"the stream would have {len(kept) + len(new_ranges)} segments: the maximum is {SEGMENTS_PER_STREAM_MAX}",
            details={"segments": len(kept) + len(new_ranges), "segments_max": SEGMENTS_PER_STREAM_MAX},
            code="too_many_segments",
        )
    number = current.number + 1
    created = _new_segments(number, current.first_new_number(len(new_ranges)), sorted(new_ranges))
    segments = sorted([*kept, *created], key=lambda segment: segment.key_range)
    return Epoch(number, max(now_ms, current.creation_time_ms + 1), tuple(segments), replaced)


def rolled_back_epoch(current: Epoch, planned: Epoch) -> Epoch:
    """The epoch that replaces `planned` when its scale is rolled back: it has the segments of `current`.

    It uses the number of `planned`, so that a later scale has another number and cannot be confused with this one.
    """
    return Epoch(planned.number, planned.creation_time_ms, current.segments, (), current.reference_epoch)


def is_same_scale(planned: Epoch, sealed_segment_ids: Iterable[int], new_ranges: Sequence[KeyRange]) -> bool:
    """Whether a request describes exactly the scale that is planned."""
    return {segment.segment_id for segment in planned.replaced} == set(sealed_segment_ids) and [
        segment.key_range for segment in planned.created
    ] == sorted(new_ranges)


def _new_segments(epoch: int, first_number: int, ranges: Sequence[KeyRange]) -> tuple[StreamSegment, ...]:
    return tuple(
        StreamSegment(segment_id(epoch, first_number + index), key_range) for index, key_range in enumerate(ranges)
    )
