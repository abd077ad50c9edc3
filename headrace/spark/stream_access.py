"""What planning asks of a stream, as one Protocol; `client_access.py` answers it with the Python client.

Each method is one request to the controller, or one per thousands of segments. Errors are those of
`headrace.model.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headrace.api.delegation_tokens import IssuedToken
from headrace.api.plans import LostBytes
from headrace.api.segments import SegmentEndpoint
from headrace.api.streams import StreamSummary, StreamView
from headrace.client.ranges.range_bytes import Listing
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.certificates import TrustBundle
from headrace.model.stream_cuts import StreamCut

At = Literal["earliest", "latest"]

Positions = Mapping[int, int]
"""A stream cut without its stream's name: segment id -> offset."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The ranges between two stream cuts. `left_bytes` is the length of what follows, None if that is not known.

    `lost` are truncated ranges that were skipped, as far as they are known, and `lost_bytes` is their total length.
    """

    ranges: Sequence[SegmentRange]
    start: Positions
    end: Positions
    reached_end: bool = True
    left_bytes: int | None = 0
    lost: Sequence[LostBytes] = ()
    lost_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """All segments between a stream cut, or the head if that is later, and the tail.

    `lost` are the truncated ranges in front of the head, as far as they are known.
    """

    ranges: Sequence[SegmentRange]
    lost: Sequence[LostBytes]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range with what it takes to read it without another request. Hints may be outdated or missing.

    `token` is for reading the stream from its store. Spark shows partitions, so it is not shown. `trust` has the
    authorities of a store that uses TLS.
    """

    part: SegmentRange
    listing: Listing | None = None
    endpoint: SegmentEndpoint | None = None
    token: IssuedToken | None = field(default=None, repr=False)
    trust: TrustBundle | None = field(default=None, repr=False)

    @property
    def length_bytes(self) -> int:
        return self.part.length_bytes


class StreamAccess(Protocol):
    """One stream."""

    def cut(self, at: At) -> Positions:
        """The stream cut where the stream begins or ends now."""
        ...

    def cut_at(self, time_ms: int) -> Positions:
        """The stream cut at a time; the head for a time before it, the tail for a time after it."""
        ...

    def next_batch(
        self,
        start: Positions | None,
        end: Positions | None,
        *,
        bytes_max: int | None = None,
        strict_key_order: bool = False,
    ) -> Batch:
        """About `bytes_max` bytes after `start`, at most up to `end`. None: the head, the tail, and everything."""
        ...

    def is_before(self, cut: Positions, other: Positions) -> bool:
        """Whether a cut is before another one, or at it; also if what is between them was truncated."""
        ...

    def distance_bytes(self, start: Positions, end: Positions | None) -> int:
        """The bytes between two cuts, by default up to the tail. Takes a walk through all segments between."""
        ...

    def between(self, start: Positions, end: Positions) -> Sequence[SegmentRange]:
        """All segments between two cuts; always the same answer for the same cuts."""
        ...

    def unread(self, start: Positions) -> Unread:
        """What is after a stream cut. Truncated data is not an error."""
        ...

    def planned(self, ranges: Sequence[SegmentRange], piece_bytes: int) -> Sequence[PlannedRange]:
        """The ranges in contiguous pieces of about that size, in their order, split between two events.

        With links to their bytes in S3, and a delegation token for the rest, if the streams were opened with `links`.
        """
        ...

    def bounded(self, ranges: Sequence[SegmentRange], low: int, high: int) -> Sequence[SegmentRange]:
        """The ranges without most of the events whose offsets are outside `[low, high]`, as far as that is known."""
        ...

    def cut_of_text(self, text: str) -> Positions:
        """The cut that a text encodes; InvalidRequestError if the text is not a cut of this stream."""
        ...


class Streams(Protocol):
    """The streams behind one controller."""

    def summaries(self, scope: str, pattern: str) -> Sequence[StreamSummary]:
        """The streams whose names match the regular expression as a whole, sorted; never internal ones."""
        ...

    def view(self, scope: str, name: str) -> StreamView:
        """The state and the configuration of a stream."""
        ...

    def group_cuts(self, scope: str, group: str) -> Sequence[StreamCut]:
        """Where the readers of a reader group would begin again, for each stream that has unread events."""
        ...

    def stream(self, scope: str, name: str) -> StreamAccess: ...

    def close(self) -> None: ...
