"""Plans of readers: the next stream cut of a batch, and the pieces of segment ranges with what it takes to read them.

Offsets and lengths are in bytes of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.api.chunks import Chunk
from headrace.api.segments import RangeBetween, RangesBetween, SegmentEndpoint
from headrace.api.stream_cuts import optional_offsets_json
from headrace.model.stream_cuts import StreamCut

OnTruncation = Literal["fail", "skip"]
"""What a plan does if bytes after its first cut were truncated: it fails, or starts at the head there."""


@dataclass(frozen=True, slots=True)
class LostBytes:
    """`length` bytes of a segment from `offset` on, which were truncated before they were read."""

    segment_id: int
    offset: int
    length: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LostBytes:
        return cls(int(document["segmentId"]), int(document["fromOffset"]), int(document["bytes"]))

    def to_json(self) -> dict[str, Any]:
        return {"segmentId": self.segment_id, "fromOffset": self.offset, "bytes": self.length}


@dataclass(frozen=True, slots=True)
class NextCutView:
    """The next batch of a reader: the ranges between two stream cuts.

    `batch` is what `segments_between` answers for the same two cuts. `reached_end` is true if nothing is left after
    the second one. `left_bytes` is the length of what is left, None if that is not known without a longer walk.

    If a part of the requested start was truncated, `batch.start` is at the head there. `lost` then has the truncated
    ranges, as far as they are known, and `lost_bytes` their total length, None if there are more than `lost` has.
    """

    batch: RangesBetween
    reached_end: bool
    left_bytes: int | None = None
    lost: tuple[LostBytes, ...] = ()
    lost_bytes: int | None = 0

    @property
    def start(self) -> StreamCut:
        return self.batch.start

    @property
    def end(self) -> StreamCut:
        return self.batch.end

    @property
    def ranges(self) -> tuple[RangeBetween, ...]:
        return self.batch.ranges

    @property
    def length_bytes(self) -> int:
        """The bytes of all ranges together."""
        return sum(one.end_offset - one.start_offset for one in self.batch.ranges)

    @classmethod
    def from_json(cls, scope: str, stream: str, document: Mapping[str, Any]) -> NextCutView:
        """Parses the JSON, which does not name the stream."""
        return cls(
            RangesBetween.from_json(scope, stream, document),
            bool(document["reachedEnd"]),
            _optional(document["leftBytes"]),
            tuple(map(LostBytes.from_json, document["lost"])),
            _optional(document["lostBytes"]),
        )

    def to_json(self) -> dict[str, Any]:
        return self.batch.to_json() | {
            "reachedEnd": self.reached_end,
            "leftBytes": self.left_bytes,
            "lost": [one.to_json() for one in self.lost],
            "lostBytes": self.lost_bytes,
        }


@dataclass(frozen=True, slots=True)
class RangeToPlan:
    """The bytes `[start, end)` of a segment, to be read in pieces of about `piece_bytes`; None means one piece."""

    segment_id: int
    start: int
    end: int
    piece_bytes: int | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RangeToPlan:
        return cls(
            int(document["segmentId"]),
            int(document["start"]),
            int(document["end"]),
            _optional(document.get("pieceBytes")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segmentId": self.segment_id,
            "start": self.start,
            "end": self.end,
            "pieceBytes": self.piece_bytes,
        }


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """The bytes `[start, end)` of a segment. Both are offsets between two events.

    `chunks` are links to `[start, stored_until)`, sorted by offset and without gaps. The rest of the piece is not in
    S3 yet. If `stored_until` is None, the plan has no links of this piece: `chunks` of the API lists them.
    """

    start: int
    end: int
    chunks: tuple[Chunk, ...] = ()
    stored_until: int | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlannedPiece:
        return cls(
            int(document["start"]),
            int(document["end"]),
            tuple(map(Chunk.from_json, document["chunks"])),
            _optional(document["storedUntil"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "chunks": [one.to_json() for one in self.chunks],
            "storedUntil": self.stored_until,
        }


@dataclass(frozen=True, slots=True)
class RangePlan:
    """How to read one range: contiguous pieces in the order of their offsets, and the segment's store.

    `endpoint` is None if no store has claimed the segment's container.
    """

    segment_id: int
    pieces: tuple[PlannedPiece, ...]
    endpoint: SegmentEndpoint | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RangePlan:
        endpoint = document["endpoint"]
        return cls(
            int(document["segmentId"]),
            tuple(map(PlannedPiece.from_json, document["pieces"])),
            None if endpoint is None else SegmentEndpoint.from_json(endpoint),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segmentId": self.segment_id,
            "pieces": [one.to_json() for one in self.pieces],
            "endpoint": None if self.endpoint is None else self.endpoint.to_json(),
        }


@dataclass(frozen=True, slots=True)
class RangePlans:
    """The plans of several ranges, in the order in which they were requested."""

    plans: tuple[RangePlan, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RangePlans:
        return cls(tuple(map(RangePlan.from_json, document["ranges"])))

    def to_json(self) -> dict[str, Any]:
        return {"ranges": [one.to_json() for one in self.plans]}


def next_cut_request(
    start: StreamCut | Mapping[int, int] | None,
    end: StreamCut | Mapping[int, int] | None,
    bytes_max: int | None,
    *,
    strict_key_order: bool,
    on_truncation: OnTruncation,
) -> dict[str, Any]:
    """The body of a request for the next cut."""
    return {
        "from": optional_offsets_json(start),
        "to": optional_offsets_json(end),
        "bytes": bytes_max,
        "strictKeyOrder": strict_key_order,
        "onTruncation": on_truncation,
    }


def _optional(number: Any) -> int | None:
    return None if number is None else int(number)
