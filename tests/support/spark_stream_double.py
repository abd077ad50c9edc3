"""A stream in memory with the rules of scaling, as plain as possible: what the connector is checked against."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.model.cut_planning import BatchRules, PlannedBatch, SegmentEnd, plan_batch
from headrace.model.epochs import Epoch
from headrace.model.segments import KeyRange, StreamSegment, segment_epoch, segment_id

SCOPED_NAME = "weather", "stations"


def framed(payload: bytes) -> bytes:
    return struct.pack(">ii", 0, len(payload)) + payload


@dataclass
class SegmentDouble:
    """`boundaries` are the offsets at which an event starts or the last one ends."""

    identifier: int
    low: float
    high: float
    data: bytearray = field(default_factory=bytearray)
    boundaries: list[int] = field(default_factory=lambda: [0])
    times_ms: list[int] = field(default_factory=list)
    """When each event was stored."""
    sealed: bool = False
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)

    def append(self, payload: bytes, time_ms: int = 0) -> None:
        assert not self.sealed
        self.times_ms.append(time_ms)
        self.data += framed(payload)
        self.boundaries.append(len(self.data))

    def boundary_at_time(self, time_ms: int) -> int:
        newer = (offset for offset, time in zip(self.boundaries, self.times_ms, strict=False) if time >= time_ms)
        return next(newer, len(self.data))

    def boundary_at_or_after(self, target: int) -> int:
        return next((offset for offset in self.boundaries if offset >= target), len(self.data))


class StreamDouble:
    """Cuts are dicts of segment id -> offset. The first number of a stream that was created again is not 0."""

    def __init__(self, ranges: Iterable[tuple[float, float]], first_number: int = 0) -> None:
        self.segments: dict[int, SegmentDouble] = {}
        self.epoch = 0
        self._next_number = first_number
        self.active = [self._create(low, high) for low, high in ranges]
        self.first = list(self.active)
        self.epochs = {0: Epoch(0, 0, self._stream_segments(self.active))}
        self.head_positions = dict.fromkeys(self.active, 0)

    def _create(self, low: float, high: float) -> int:
        identifier = segment_id(self.epoch, self._next_number)
        self._next_number += 1
        self.segments[identifier] = SegmentDouble(identifier, low, high)
        return identifier

    def append(self, position: float, payload: bytes, time_ms: int = 0) -> int:
        """To the active segment that owns the key position; its id."""
        owner = next(
            segment for segment in map(self.segments.__getitem__, self.active) if segment.low <= position < segment.high
        )
        owner.append(payload, time_ms)
        return owner.identifier

    def scale(self, seal: Iterable[int], ranges: Iterable[tuple[float, float]]) -> list[int]:
        self.epoch += 1
        sealed = list(seal)
        opened = [self._create(low, high) for low, high in ranges]
        for old in map(self.segments.__getitem__, sealed):
            old.sealed = True
            for new in map(self.segments.__getitem__, opened):
                if old.low < new.high and new.low < old.high:
                    old.successors.append(new.identifier)
                    new.predecessors.append(old.identifier)
        self.active = [active for active in self.active if active not in sealed] + opened
        self.epochs[self.epoch] = Epoch(
            self.epoch, self.epoch, self._stream_segments(self.active), self._stream_segments(sealed)
        )
        return opened

    def _stream_segments(self, identifiers: Iterable[int]) -> tuple[StreamSegment, ...]:
        segments = (self.segments[identifier] for identifier in identifiers)
        found = [StreamSegment(segment.identifier, KeyRange(segment.low, segment.high)) for segment in segments]
        return tuple(sorted(found, key=lambda segment: segment.key_range))

    def next_batch(
        self, start: Mapping[int, int], end: Mapping[int, int] | None, rules: BatchRules, indexed: bool = True
    ) -> PlannedBatch:
        return plan_batch(self._stream_segments(start), start, _Lineage(self, end, indexed), rules)

    def head(self) -> dict[int, int]:
        return dict(sorted(self.head_positions.items()))

    def truncate(self, cut: Mapping[int, int]) -> None:
        self.head_positions = dict(cut)

    def first_byte(self, identifier: int) -> int:
        """Where a segment begins now; its end if it is before the head."""
        if identifier in self.head_positions:
            return self.head_positions[identifier]
        is_before = segment_epoch(identifier) <= max(map(segment_epoch, self.head_positions))
        return len(self.segments[identifier].data) if is_before else 0

    def readable(self, cut: Mapping[int, int]) -> dict[int, int] | None:
        """The cut moved to the head where it is before that; None if it is nowhere."""
        if all(offset >= self.first_byte(identifier) for identifier, offset in cut.items()):
            return None
        if set(cut) == set(self.head_positions):
            return {identifier: max(offset, self.head_positions[identifier]) for identifier, offset in cut.items()}
        return dict(self.head_positions)

    def is_before(self, cut: Mapping[int, int], other: Mapping[int, int]) -> bool:
        """Whether one cut is before another; both name segments of whole epochs."""
        if set(cut) == set(other):
            return any(cut[identifier] < other[identifier] for identifier in cut)
        return max(map(segment_epoch, cut)) < max(map(segment_epoch, other))

    def tail(self) -> dict[int, int]:
        return {identifier: len(self.segments[identifier].data) for identifier in sorted(self.active)}

    def between(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[SegmentRange]:
        """All segments from those of `start` to those of `end`, empty ranges included."""
        found: dict[int, SegmentDouble] = {}
        waiting = list(start)
        while waiting:
            segment = self.segments[waiting.pop()]
            found[segment.identifier] = segment
            if segment.identifier not in end:
                waiting.extend(segment.successors)
        return [
            SegmentRange(
                *SCOPED_NAME,
                identifier,
                segment.low,
                segment.high,
                start.get(identifier, 0),
                end.get(identifier, len(segment.data)),
                tuple(old for old in segment.predecessors if old in found),
                tuple(new for new in segment.successors if new in found),
            )
            for identifier, segment in sorted(found.items())
        ]


class _Lineage:
    """See `cut_planning.Lineage`."""

    def __init__(self, stream: StreamDouble, end: Mapping[int, int] | None, indexed: bool) -> None:
        self._stream = stream
        self._end = end or {}
        self._indexed = indexed

    def ends(self, segments: Sequence[StreamSegment]) -> Mapping[int, SegmentEnd]:
        return {segment.segment_id: self._end_of(self._stream.segments[segment.segment_id]) for segment in segments}

    def epochs(self, numbers: Sequence[int]) -> Mapping[int, Epoch]:
        return {number: self._stream.epochs[number] for number in numbers}

    def boundaries(self, targets: Sequence[tuple[int, int]]) -> Sequence[int]:
        return [
            self._stream.segments[identifier].boundary_at_or_after(target)
            if self._indexed
            else len(self._stream.segments[identifier].data)
            for identifier, target in targets
        ]

    def _end_of(self, segment: SegmentDouble) -> SegmentEnd:
        if segment.identifier in self._end:
            return SegmentEnd(self._end[segment.identifier], None)
        following = segment_epoch(segment.successors[0]) if segment.successors else None
        return SegmentEnd(len(segment.data), following)
