"""Conditions on the columns of events that planning can use: which streams, segments and offsets a read is about.

Pure. All columns but `event` and `offset` are constant in a segment, so a condition on one of them takes a whole
segment or nothing of it. Conditions on `offset` bound what is read of each segment. The bounds are widened to places
between two events, so Spark has to filter the rows as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.spark.options import COLUMN_TYPES

Comparison = Literal["=", "in", "<", "<=", ">", ">="]

OFFSET_MAX: Final = (1 << 63) - 1

SLACK_BYTES: Final = 8 * 1024 * 1024
"""How far in front of a lower bound a place between two events is looked for: the size of the largest usual append."""

_COMPARISONS: Final[Mapping[Comparison, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "in": lambda value, values: value in values,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY: Final = ("=", "in")
_OF_SEGMENT: Final = ("scope", "stream", "segment_id", "key_range_low", "key_range_high")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a value, or for "in" with a tuple of values."""

    column: str
    comparison: Comparison
    value: Any

    @property
    def is_known(self) -> bool:
        """Whether it means here what it means in Spark, which orders NaN and compares strings by their collation."""
        kind = COLUMN_TYPES[self.column] if self.column in (*_OF_SEGMENT, "offset") else None
        values = self.value if self.comparison == "in" else (self.value,)
        if kind == "string":
            return self.comparison in _EQUALITY and all(isinstance(value, str) for value in values)
        if kind == "double":
            return all(isinstance(value, float) and not math.isnan(value) for value in values)
        return kind == "bigint" and all(type(value) is int for value in values)

    @property
    def is_of_segment(self) -> bool:
        """Whether it has one answer for all rows of a segment."""
        return self.column in _OF_SEGMENT

    def holds(self, value: Any) -> bool:
        return _COMPARISONS[self.comparison](value, self.value)

    def bounds(self) -> tuple[int, int]:
        """The least and the largest integer for which it may hold; the first one is larger if there is none."""
        match self.comparison:
            case "=":
                return self.value, self.value
            case "in":
                return min(self.value, default=OFFSET_MAX), max(self.value, default=0)
            case "<":
                return 0, self.value - 1
            case "<=":
                return 0, self.value
            case ">":
                return self.value + 1, OFFSET_MAX
        return self.value, OFFSET_MAX


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Conditions that hold for all rows that are wanted, each of them `is_known`."""

    conditions: tuple[Condition, ...] = ()

    def takes_stream(self, scope: str, stream: str) -> bool:
        """Whether the stream may have such rows."""
        return self._takes({"scope": scope, "stream": stream})

    def of_ranges(self, ranges: Sequence[SegmentRange]) -> list[SegmentRange]:
        """The ranges that may have such rows, whole."""
        low, high = self.offsets
        if low > high:
            return []
        return [part for part in ranges if low < part.end and part.start <= high and self._takes(_values(part))]

    @property
    def offsets(self) -> tuple[int, int]:
        """The least and the largest offset of such rows; the first one is larger if there are none."""
        bounds = [condition.bounds() for condition in self.conditions if condition.column == "offset"]
        return max((low for low, _ in bounds), default=0), min((high for _, high in bounds), default=OFFSET_MAX)

    def _takes(self, values: Mapping[str, Any]) -> bool:
        return all(
            condition.holds(values[condition.column]) for condition in self.conditions if condition.column in values
        )


EVERYTHING: Final = RangeFilter()


@dataclass(frozen=True, slots=True)
class BoundaryQuestion:
    """Asks for the first place between two events in the second half of `[start, end)`.

    If there is none, or it is not known, the bound that it was for is not used.
    """

    start: int
    end: int


def question_below(part: SegmentRange, low: int) -> BoundaryQuestion | None:
    """Where the range may begin if rows below `low` are not wanted; None: it is not worth asking."""
    start = low - 2 * SLACK_BYTES
    return BoundaryQuestion(start, low) if start > part.start else None


def question_above(part: SegmentRange, high: int) -> BoundaryQuestion | None:
    """Where the range may end if rows above `high` are not wanted; None: it is not worth asking."""
    start = max(part.start, high + 1 - SLACK_BYTES)
    end = 2 * (high + 1) - start
    return BoundaryQuestion(start, end) if end < part.end else None


def _values(part: SegmentRange) -> dict[str, Any]:
    return {
        "scope": part.scope,
        "stream": part.stream,
        "segment_id": part.segment_id,
        "key_range_low": part.low,
        "key_range_high": part.high,
    }
