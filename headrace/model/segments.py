"""Stream segments: their ids and key ranges, sets of ranges, and the lookup of the segment that owns a key position.

A segment id is `epoch << 32 | number`, both non-negative 31-bit integers, as in Pravega.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.model.errors import InvalidRequestError

_HALF_BITS = 32
SEGMENT_NUMBER_MAX = (1 << 31) - 1
"""The largest number of a segment, and the largest epoch."""


def segment_id(epoch: int, number: int) -> int:
    """The 64-bit id of segment `number` created in `epoch`."""
    if not 0 <= epoch <= SEGMENT_NUMBER_MAX or not 0 <= number <= SEGMENT_NUMBER_MAX:
        raise InvalidRequestError(f"segment epoch {epoch} or number {number} is outside 0..{SEGMENT_NUMBER_MAX}")
    return epoch << _HALF_BITS | number


def segment_epoch(identifier: int) -> int:
    """The epoch in which the segment was created."""
    return identifier >> _HALF_BITS


def segment_number(identifier: int) -> int:
    """The number of the segment within its stream."""
    return identifier & 0xFFFFFFFF


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """A part of the key space [0, 1). `low` and `high` are exact doubles, as in Pravega's key ranges."""

    low: float
    high: float

    def __post_init__(self) -> None:
        try:
            is_valid = 0.0 <= self.low < self.high <= 1.0
        except TypeError:
            is_valid = False
        if not is_valid:
            raise InvalidRequestError(
                f"key range [{self.low}, {self.high}) is not inside [0, 1) with low < high",
                details={"low": self.low, "high": self.high},
            )

    def overlaps(self, other: KeyRange) -> bool:
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """One segment of a stream with the key range it owns while its epoch is active."""

    segment_id: int
    key_range: KeyRange

    @property
    def number(self) -> int:
        return segment_number(self.segment_id)

    @property
    def epoch(self) -> int:
        return segment_epoch(self.segment_id)


# Sets of key ranges: equal parts of the key space, and checks that ranges cover a space exactly once.
#
# Bounds are compared as exact doubles: two ranges are adjacent only if they share exactly the same bound.

KEY_SPACE = KeyRange(0.0, 1.0)


def equal_ranges(count: int) -> tuple[KeyRange, ...]:
    """`count` ranges of equal width that cover the key space; the bounds are i / count, the last exactly 1.0."""
    bounds = [index / count for index in range(count + 1)]
    return tuple(KeyRange(low, high) for low, high in itertools.pairwise(bounds))


def merged(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The same space as maximal ranges, in order.

    Raises:
        InvalidRequestError: two ranges overlap.
    """
    merging: list[KeyRange] = []
    for current in sorted(ranges):
        last = merging[-1] if merging else None
        if last is not None and current.low < last.high:
            raise InvalidRequestError(
                f"the key ranges overlap between {current.low} and {min(current.high, last.high)}",
                details={"low": current.low, "high": min(current.high, last.high)},
                code="invalid_key_ranges",
            )
        if last is not None and current.low == last.high:
            merging[-1] = KeyRange(last.low, current.high)
        else:
            merging.append(current)
    return tuple(merging)


def covers_key_space_once(ranges: Sequence[KeyRange]) -> bool:
    """Whether the ranges cover [0, 1) without gaps and overlaps."""
    try:
        return merged(ranges) == (KEY_SPACE,)
    except InvalidRequestError:
        return False


def check_same_space(old: Iterable[KeyRange], new: Iterable[KeyRange]) -> None:
    """Check that the new ranges cover exactly the key space of the old ones, without overlaps.

    Raises:
        InvalidRequestError: code "invalid_key_ranges".
    """
    wanted, offered = merged(old), merged(new)
    if wanted != offered:
        raise InvalidRequestError(
            f"the new key ranges cover {_text(offered)}, but the segments to seal cover {_text(wanted)}: "
            "choose ranges that fill exactly the same space",
            details={"sealed": [[r.low, r.high] for r in wanted], "new": [[r.low, r.high] for r in offered]},
            code="invalid_key_ranges",
        )


def _text(ranges: Sequence[KeyRange]) -> str:
    return ", ".join(f"[{span.low}, {span.high})" for span in ranges[:10]) or "nothing"
