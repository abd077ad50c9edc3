"""Stream segments: their ids and key ranges, and the lookup of the segment that owns a key position.

A segment id is `epoch << 32 | number`, both non-negative 31-bit integers, as in Pravega.
"""

from __future__ import annotations

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
