"""Segments of a stream: of an epoch, next to another segment, between two stream cuts, and the endpoint of one.

Segment names are those of the wire protocol. Offsets and lengths are in bytes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.api.stream_cuts import CutOffsets
from headrace.model.documents import Document, about
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cuts import StreamCut

_UNKNOWN_OFFSET = -1
"""The start offset in the JSON of an answer for which no segment store was called."""


class ScaledSegment(Document, frozen=True):
    """A segment, and the part `[low, high)` of the key space that it owns."""

    segment_id: int
    low: float
    high: float

    @property
    def key_range(self) -> KeyRange:
        return KeyRange(self.low, self.high)


def scaled_segment(segment: StreamSegment) -> ScaledSegment:
    return ScaledSegment(segment.segment_id, segment.key_range.low, segment.key_range.high)


class SegmentView(ScaledSegment, frozen=True):
    """A segment of a stream, with its name."""

    name: str

    @classmethod
    def of(cls, segment: StreamSegment, name: str) -> SegmentView:
        return SegmentView(segment.segment_id, segment.key_range.low, segment.key_range.high, name)


class StartedSegment(SegmentView, frozen=True):
    """A segment, with its first offset if a segment store was asked for it."""

    known_start: Annotated[int, about("Bytes; -1 where it is not known")] = field(name="startOffset")

    @property
    def start_offset(self) -> int | None:
        return None if self.known_start == _UNKNOWN_OFFSET else self.known_start

    @classmethod
    def at(cls, segment: StreamSegment, name: str, start_offset: int | None = None) -> StartedSegment:
        start = _UNKNOWN_OFFSET if start_offset is None else start_offset
        return cls(segment.segment_id, segment.key_range.low, segment.key_range.high, name, start)


class EpochSegments(Document, frozen=True):
    """The segments of one epoch, sorted by key range. `sealed` is true when the stream accepts no more events."""

    epoch: int
    segments: tuple[StartedSegment, ...]
    sealed: bool


class Successor(SegmentView, frozen=True):
    """A segment that replaced others, and the ids of all segments that it replaced."""

    predecessors: tuple[int, ...]

    @classmethod
    def after(cls, segment: StreamSegment, name: str, predecessors: tuple[int, ...]) -> Successor:
        return cls(segment.segment_id, segment.key_range.low, segment.key_range.high, name, predecessors)


class Successors(Document, frozen=True):
    """The successors of a segment, sorted by key range.

    Without successors, the stream ends with the segment if `sealed` is true; otherwise the segment is still active.
    """

    segments: tuple[Successor, ...]
    sealed: Annotated[bool, about("The stream is sealed and ends with this segment")]
    truncated_length: Annotated[
        int | None, about("Bytes that the segment had, if a truncation has deleted it: a reader there loses nothing")
    ] = None


class Predecessors(Document, frozen=True):
    """The segments that a segment replaced. A segment of the first epoch has none."""

    segments: tuple[SegmentView, ...]


class SegmentEndpoint(Document, frozen=True):
    """The address of the store that owns a segment.

    The segment is part of `container`. `epoch` increases each time another store takes over that container.
    """

    host: str
    port: int
    zone: str
    container: int
    epoch: Annotated[int, about("Grows with each takeover of the container")]
    tls_name: Annotated[str, about("Name in the store's certificate, to be verified; empty: connect without TLS")] = (
        field(name="tlsName", default="")
    )


class RangeBetween(SegmentView, frozen=True):
    """The bytes `[start_offset, end_offset)` of a segment, which are between two stream cuts."""

    start_offset: int
    end_offset: int
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]


class RangesBetween(Document, frozen=True, kw_only=True):
    """All ranges between two stream cuts, predecessors first.

    `start` and `end` are the cuts as offsets, also where the request named the head or the tail.
    """

    scope: str = field(name="scopeName")
    stream: str = field(name="streamName")
    ranges: tuple[RangeBetween, ...] = field(name="segments")
    start_offsets: Annotated[CutOffsets, about("As requested, at the head where that was truncated")] = field(
        name="from"
    )
    end_offsets: CutOffsets = field(name="to")

    @classmethod
    def between(cls, start: StreamCut, end: StreamCut, ranges: tuple[RangeBetween, ...]) -> RangesBetween:
        return RangesBetween(
            scope=start.scope,
            stream=start.stream,
            ranges=ranges,
            start_offsets=dict(start.offsets),
            end_offsets=dict(end.offsets),
        )

    @property
    def start(self) -> StreamCut:
        return StreamCut.of(self.scope, self.stream, self.start_offsets)

    @property
    def end(self) -> StreamCut:
        return StreamCut.of(self.scope, self.stream, self.end_offsets)
