"""What the segment service answers. Names are those of the wire protocol, offsets and lengths are bytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.segments import StreamSegment
from headrace.model.stream_cut_ranges import SegmentRange
from headrace.model.stream_cuts import StreamCut

UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True)
class SegmentAt:
    """A segment at some point of its stream; `start_offset` is UNKNOWN_OFFSET where nobody asked a segment store."""

    segment: StreamSegment
    name: str
    start_offset: int = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True)
class SegmentsAt:
    """The segments that cover the key space at some point. `is_sealed` tells that the whole stream is sealed."""

    segments: tuple[SegmentAt, ...]
    epoch: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows the one asked about, and all segments that it follows."""

    segment: StreamSegment
    name: str
    predecessors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Successors:
    """No segments: the one asked about is still active, or with `is_sealed` the stream ends with it."""

    segments: tuple[Successor, ...]
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class SegmentEndpoint:
    """Where a segment is served. `epoch` is the version of the claim: it grows with each takeover of the container."""

    host: str
    port: int
    zone: str
    container: int
    epoch: int


@dataclass(frozen=True, slots=True)
class NamedSegmentRange:
    """A part of a segment between two stream cuts, and the segment's name."""

    name: str
    range: SegmentRange


@dataclass(frozen=True, slots=True)
class SegmentsBetween:
    """Everything between two cuts, predecessors first, and the cuts with open ends filled in."""

    ranges: tuple[NamedSegmentRange, ...]
    from_cut: StreamCut
    to_cut: StreamCut
