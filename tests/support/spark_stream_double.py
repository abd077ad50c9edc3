"""A stream in memory with the rules of scaling, as plain as possible: what the connector is checked against."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.client.segment_ranges import SegmentRange
from headrace.model.segments import segment_id

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
    sealed: bool = False
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)

    def append(self, payload: bytes) -> None:
        assert not self.sealed
        self.data += framed(payload)
        self.boundaries.append(len(self.data))

    def boundary_at_or_after(self, target: int) -> int:
        return next((offset for offset in self.boundaries if offset >= target), len(self.data))


class StreamDouble:
    """Cuts are dicts of segment id -> offset."""

    def __init__(self, ranges: Iterable[tuple[float, float]]) -> None:
        self.segments: dict[int, SegmentDouble] = {}
        self.epoch = 0
        self._next_number = 0
        self.active = [self._create(low, high) for low, high in ranges]
        self.first = list(self.active)

    def _create(self, low: float, high: float) -> int:
        identifier = segment_id(self.epoch, self._next_number)
        self._next_number += 1
        self.segments[identifier] = SegmentDouble(identifier, low, high)
        return identifier

    def append(self, position: float, payload: bytes) -> int:
        """To the active segment that owns the key position; its id."""
        owner = next(
            segment for segment in map(self.segments.__getitem__, self.active) if segment.low <= position < segment.high
        )
        owner.append(payload)
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
        return opened

    def head(self) -> dict[int, int]:
        return dict.fromkeys(sorted(self.first), 0)

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
