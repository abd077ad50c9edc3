"""Streams with a history, readers that are somewhere in it, and the cuts of both, by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from headrace.model.epochs import Epoch, overlapping, scaled_epoch
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cuts import PlacedCut, StreamCut

T = TypeVar("T")
SAMPLES = tuple(index / 64 for index in range(64))


class Draw(Protocol):
    """Draws from strategies, in a composite strategy or in a test."""

    def __call__(self, strategy: st.SearchStrategy[T]) -> T: ...


@dataclass
class History:
    """A stream as its model knows it: epochs, and the length in bytes of each segment."""

    epochs: list[Epoch]
    lengths: dict[int, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, segments: int) -> History:
        return cls([Epoch.first(segments, 0, 0)])

    @property
    def active(self) -> tuple[StreamSegment, ...]:
        return self.epochs[-1].segments

    def append(self, index: int, length: int) -> None:
        identifier = self.active[index % len(self.active)].segment_id
        self.lengths[identifier] = self.lengths.get(identifier, 0) + length

    def split(self, index: int) -> None:
        segment = self.active[index % len(self.active)]
        low, high = segment.key_range.low, segment.key_range.high
        middle = (low + high) / 2
        self._scale([segment], [KeyRange(low, middle), KeyRange(middle, high)])

    def merge(self, index: int) -> None:
        if len(self.active) < 2:
            return
        first = index % (len(self.active) - 1)
        pair = self.active[first : first + 2]
        self._scale(list(pair), [KeyRange(pair[0].key_range.low, pair[1].key_range.high)])

    def tail(self) -> PlacedCut:
        return self.cut({segment: self.lengths.get(segment.segment_id, 0) for segment in self.active})

    def cut(self, offsets: dict[StreamSegment, int]) -> PlacedCut:
        positions = {segment.segment_id: offset for segment, offset in offsets.items()}
        return PlacedCut(StreamCut.of("s", "t", positions), tuple(offsets))

    def size(self, cut: PlacedCut) -> int:
        """Bytes before a cut, counted segment by segment over the whole history."""
        total = 0
        for segment in {segment for epoch in self.epochs for segment in epoch.segments}:
            length = self.lengths.get(segment.segment_id, 0)
            sharing = overlapping(cut.segments, segment.key_range)
            if segment in sharing:
                total += cut.cut.offsets[segment.segment_id]
            elif segment.epoch < sharing[0].epoch:
                total += length
        return total

    def _scale(self, sealed: list[StreamSegment], ranges: list[KeyRange]) -> None:
        last = self.epochs[-1]
        self.epochs.append(
            scaled_epoch(last, [segment.segment_id for segment in sealed], ranges, last.creation_time_ms + 1)
        )


@dataclass
class Reader:
    """Reads segments in any order that their successions allow."""

    history: History
    offsets: dict[StreamSegment, int]
    done: set[StreamSegment] = field(default_factory=set)

    @classmethod
    def at_head(cls, history: History) -> Reader:
        return cls(history, dict.fromkeys(history.epochs[0].segments, 0))

    def read(self, index: int, length: int) -> None:
        """Up to `length` bytes; beyond the end of a sealed segment it goes on to what can be read after it."""
        segment = sorted(self.offsets, key=lambda segment: segment.segment_id)[index % len(self.offsets)]
        end = self.history.lengths.get(segment.segment_id, 0)
        self.offsets[segment] = min(end, self.offsets[segment] + length)
        if self.offsets[segment] == end:
            self._go_on(segment)

    def cut(self) -> PlacedCut:
        return self.history.cut(self.offsets)

    def _go_on(self, segment: StreamSegment) -> None:
        for epoch in self.history.epochs:
            if segment not in epoch.replaced:
                continue
            for successor in epoch.successors_of(segment):
                before = epoch.predecessors_of(successor)
                ends = {predecessor: self.history.lengths.get(predecessor.segment_id, 0) for predecessor in before}
                if all(
                    predecessor in self.done or self.offsets.get(predecessor) == ends[predecessor]
                    for predecessor in before
                ):
                    self._enter(epoch, before)

    def _enter(self, epoch: Epoch, before: tuple[StreamSegment, ...]) -> None:
        """All of `before` are read: their successors take their place if these follow nothing else."""
        after = {follower for predecessor in before for follower in epoch.successors_of(predecessor)}
        whole = {predecessor for follower in after for predecessor in epoch.predecessors_of(follower)}
        if whole == set(before):
            for predecessor in before:
                self.offsets.pop(predecessor, None)
                self.done.add(predecessor)
            self.offsets |= dict.fromkeys(after, 0)


@st.composite
def histories(draw: st.DrawFn, steps_max: int = 14) -> History:
    """A stream that has grown, split and merged."""
    history = History.begin(draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, steps_max))):
        grow(draw, history)
    return history


def grow(draw: Draw, history: History) -> None:
    """One thing happens to the stream."""
    index = draw(st.integers(0, 7))
    match draw(st.sampled_from(["append", "append", "append", "split", "merge"])):
        case "append":
            history.append(index, draw(st.integers(1, 50)))
        case "split":
            history.split(index)
        case _:
            history.merge(index)


def read_on(draw: Draw, reader: Reader, steps_max: int = 12) -> None:
    for _ in range(draw(st.integers(0, steps_max))):
        reader.read(draw(st.integers(0, 7)), draw(st.integers(0, 60)))


def place_at(cut: PlacedCut, point: float) -> tuple[int, int]:
    """Epoch and offset of the segment that has the point: orders cuts there."""
    (segment,) = overlapping(cut.segments, KeyRange(point, point + 1 / 1024))
    return segment.epoch, cut.cut.offsets[segment.segment_id]
