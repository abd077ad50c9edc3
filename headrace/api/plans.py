"""Plans of readers: the next stream cut of a batch, and the pieces of segment ranges with what it takes to read them.

Offsets and lengths are in bytes of a segment.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from headrace.api.segments import RangesBetween, SegmentEndpoint
from headrace.api.stream_cuts import OFFSET_MAX, SEGMENT_ID_MAX, BetweenRequest
from headrace.model.documents import Document, about
from headrace.model.limits import RANGES_PER_PLAN_MAX

# Chunks of a segment in tier 2, with links to read them. Offsets and lengths are in bytes of the segment.


class Chunk(Document, frozen=True):
    """`length` bytes of a segment, starting at `offset`. A GET of `url` with exactly `headers` returns them.

    The link expires at `expires_at_ms`, in milliseconds since the Unix epoch.
    """

    offset: int
    length: int
    url: Annotated[str, about("GET it with exactly these headers; the signed Range among them")]
    headers: dict[str, str]
    expires_at_ms: Annotated[int, about("Milliseconds since 1970")]


class Chunks(Document, frozen=True):
    """A page of chunks, sorted by offset and without gaps, from the requested offset to `stored_until`.

    When `next_offset` is not None, the next page starts there. When that is None, tier 2 has no bytes yet between
    `stored_until` and the end of the requested range.
    """

    chunks: tuple[Chunk, ...]
    stored_until: Annotated[int, about("Offset up to which S3 has the segment without a gap")]
    next_offset: Annotated[int | None, about("Where to go on; null at the end")] = field(name="next")


OnTruncation = Literal["fail", "skip"]
"""What a plan does if bytes after its first cut were truncated: it fails, or starts at the head there."""


class LostBytes(Document, frozen=True):
    """`length` bytes of a segment from `offset` on, which were truncated before they were read."""

    segment_id: int
    offset: int = field(name="fromOffset")
    length: int = field(name="bytes")


class NextCutView(RangesBetween, frozen=True, kw_only=True):
    """The next batch of a reader: the ranges between two stream cuts.

    `reached_end` is true if nothing is left after the second one. `left_bytes` is the length of what is left, None if
    that is not known without a longer walk.

    If a part of the requested start was truncated, `start` is at the head there. `lost` then has the truncated ranges,
    as far as they are known, and `lost_bytes` their total length, None if there are more than `lost` has.
    """

    reached_end: Annotated[bool, about("Nothing is left after it")]
    left_bytes: Annotated[int | None, about("After it up to the end; null if only a longer walk would tell")]
    lost: Annotated[tuple[LostBytes, ...], about("Truncated ranges after the requested cut")]
    lost_bytes: Annotated[int | None, about("In all of them; null if there are more than are listed")]

    @property
    def length_bytes(self) -> int:
        """The bytes of all ranges together."""
        return sum(span.end_offset - span.start_offset for span in self.ranges)


class NextCutRequest(BetweenRequest, frozen=True):
    bytes: Annotated[Annotated[int, Meta(ge=1, le=OFFSET_MAX)] | None, about("About so many; null: everything")] = None
    strict_key_order: Annotated[bool, about("Never a segment together with those that it replaced")] = False
    on_truncation: Annotated[
        OnTruncation, about("If bytes after `from` were truncated: an error, or start at the head there")
    ] = "fail"


class RangeToPlan(Document, frozen=True):
    """The bytes `[start, end)` of a segment, to be read in pieces of about `piece_bytes`; None means one piece."""

    segment_id: Annotated[int, Meta(ge=0, le=SEGMENT_ID_MAX)]
    start: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="First byte, where an event begins")]
    end: Annotated[int, Meta(ge=1, le=OFFSET_MAX, description="End of the range, where an event ends")]
    piece_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=OFFSET_MAX)] | None, about("About the length of a piece; null: one piece")
    ] = None


class RangePlansRequest(Document, frozen=True):
    ranges: Annotated[tuple[RangeToPlan, ...], Meta(min_length=1, max_length=RANGES_PER_PLAN_MAX)]
    links: Annotated[bool, about("Whether pieces get links to their bytes in S3")] = True


class PlannedPiece(Document, frozen=True):
    """The bytes `[start, end)` of a segment. Both are offsets between two events.

    `chunks` are links to `[start, stored_until)`, sorted by offset and without gaps. The rest of the piece is not in
    S3 yet. If `stored_until` is None, the plan has no links of this piece: `chunks` of the API lists them.
    """

    start: int
    end: int
    chunks: Annotated[tuple[Chunk, ...], about("From `start` on, without gaps")] = ()
    stored_until: Annotated[
        int | None, about("Offset up to which S3 has the piece; null if the answer has no room for its links")
    ] = None


class RangePlan(Document, frozen=True):
    """How to read one range: contiguous pieces in the order of their offsets, and the segment's store.

    `endpoint` is None if no store has claimed the segment's container.
    """

    segment_id: int
    pieces: tuple[PlannedPiece, ...]
    endpoint: Annotated[SegmentEndpoint | None, about("The segment's store; null if none has claimed its container")]


class RangePlans(Document, frozen=True):
    """The plans of several ranges, in the order in which they were requested."""

    plans: Annotated[tuple[RangePlan, ...], about("In the order of the request")] = field(name="ranges")
