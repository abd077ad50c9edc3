"""Segments of a stream: of an epoch, next to another segment, between two stream cuts, and the endpoint of one.

Segment names are those of the wire protocol. Offsets and lengths are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.stream_cuts import cut_from_json, offsets_json
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_cuts import StreamCut

_UNKNOWN_OFFSET = -1
"""The start offset in the JSON of an answer for which no segment store was called."""


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment of a stream. In answers that do not contain them, `start_offset` is None and `name` is empty."""

    segment_id: int
    name: str
    key_range: KeyRange
    start_offset: int | None = None

    @classmethod
    def of(cls, segment: StreamSegment, name: str = "", start_offset: int | None = None) -> SegmentView:
        return cls(segment.segment_id, name, segment.key_range, start_offset)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SegmentView:
        start = int(document.get("startOffset", _UNKNOWN_OFFSET))
        return cls(
            int(document["segmentId"]),
            str(document.get("name", "")),
            KeyRange(float(document["low"]), float(document["high"])),
            start if start >= 0 else None,
        )

    def to_json(self) -> dict[str, Any]:
        start = _UNKNOWN_OFFSET if self.start_offset is None else self.start_offset
        return {**self.named_json(), "startOffset": start}

    def named_json(self) -> dict[str, Any]:
        """The JSON without the start offset."""
        return {"name": self.name, **self.range_json()}

    def range_json(self) -> dict[str, Any]:
        """The JSON with only the id and the key range."""
        return {"segmentId": self.segment_id, "low": self.key_range.low, "high": self.key_range.high}


@dataclass(frozen=True, slots=True)
class EpochSegments:
    """The segments of one epoch, sorted by key range. `sealed` is true when the stream accepts no more events."""

    epoch: int
    segments: tuple[SegmentView, ...]
    sealed: bool

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EpochSegments:
        segments = sorted(map(SegmentView.from_json, document["segments"]), key=lambda segment: segment.key_range)
        return cls(int(document["epoch"]), tuple(segments), bool(document["sealed"]))

    def to_json(self) -> dict[str, Any]:
        return {"segments": [one.to_json() for one in self.segments], "epoch": self.epoch, "sealed": self.sealed}


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that replaced others, and the ids of all segments that it replaced."""

    segment: SegmentView
    predecessors: tuple[int, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Successor:
        return cls(SegmentView.from_json(document), tuple(map(int, document["predecessors"])))

    def to_json(self) -> dict[str, Any]:
        return {**self.segment.named_json(), "predecessors": list(self.predecessors)}


@dataclass(frozen=True, slots=True)
class Successors:
    """The successors of a segment.

    Without successors, the stream ends with the segment if `sealed` is true; otherwise the segment is still active.
    """

    segments: tuple[Successor, ...]
    sealed: bool

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Successors:
        found = sorted(map(Successor.from_json, document["segments"]), key=lambda one: one.segment.key_range)
        return cls(tuple(found), bool(document["sealed"]))

    def to_json(self) -> dict[str, Any]:
        return {"segments": [one.to_json() for one in self.segments], "sealed": self.sealed}


@dataclass(frozen=True, slots=True)
class Predecessors:
    """The segments that a segment replaced. A segment of the first epoch has none."""

    segments: tuple[SegmentView, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Predecessors:
        return cls(tuple(map(SegmentView.from_json, document["segments"])))

    def to_json(self) -> dict[str, Any]:
        return {"segments": [one.named_json() for one in self.segments]}


@dataclass(frozen=True, slots=True)
class SegmentEndpoint:
    """The address of the store that owns a segment.

    The segment is part of `container`. `epoch` increases each time another store takes over that container.
    """

    host: str
    port: int
    zone: str
    container: int
    epoch: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SegmentEndpoint:
        return cls(
            str(document["host"]),
            int(document["port"]),
            str(document.get("zone", "")),
            int(document["container"]),
            int(document["epoch"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "zone": self.zone,
            "container": self.container,
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True)
class RangeBetween:
    """The bytes `[start_offset, end_offset)` of a segment, which are between two stream cuts."""

    segment: SegmentView
    start_offset: int
    end_offset: int
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RangeBetween:
        return cls(
            SegmentView.from_json(document),
            int(document["startOffset"]),
            int(document["endOffset"]),
            tuple(map(int, document["predecessors"])),
            tuple(map(int, document["successors"])),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **self.segment.named_json(),
            "startOffset": self.start_offset,
            "endOffset": self.end_offset,
            "predecessors": list(self.predecessors),
            "successors": list(self.successors),
        }


@dataclass(frozen=True, slots=True)
class RangesBetween:
    """All ranges between two stream cuts, predecessors first.

    `start` and `end` are the cuts as offsets, also where the request named the head or the tail.
    """

    ranges: tuple[RangeBetween, ...]
    start: StreamCut
    end: StreamCut

    @classmethod
    def from_json(cls, scope: str, stream: str, document: Mapping[str, Any]) -> RangesBetween:
        """Parses the JSON, which does not name the stream."""
        return cls(
            tuple(map(RangeBetween.from_json, document["segments"])),
            cut_from_json(scope, stream, document["from"]),
            cut_from_json(scope, stream, document["to"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segments": [one.to_json() for one in self.ranges],
            "from": offsets_json(self.start),
            "to": offsets_json(self.end),
        }
