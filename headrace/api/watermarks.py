"""The newest watermark of a stream, and the positions of its writers.

Offsets are in bytes; the application chooses the unit of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from headrace.api.segments import ScaledSegment
from headrace.api.stream_cuts import OFFSET_MAX, SEGMENT_ID_MAX, RequestedOffsets, decimal
from headrace.model.documents import Document, about
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import StreamSegment
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import TIME_MAX, TIME_MIN, positions_of


class WatermarkPosition(ScaledSegment, frozen=True):
    offset: Annotated[int, about("Bytes")]


class WatermarkView(Document, frozen=True):
    lower_time: Annotated[int, about("Every active writer has noted at least this time")]
    upper_time: Annotated[int, about("No writer has noted a later time")]
    cut: tuple[WatermarkPosition, ...]

    @classmethod
    def of(cls, watermark: Watermark) -> WatermarkView:
        cut = (
            WatermarkPosition(
                position.segment.segment_id,
                position.segment.key_range.low,
                position.segment.key_range.high,
                position.offset,
            )
            for position in watermark.cut
        )
        return cls(watermark.lower_time, watermark.upper_time, tuple(cut))


class NewestWatermark(Document, frozen=True):
    """The newest watermark, None before the first one.

    It begins at `offset` of the segment `mark_segment`, which exists only after the first watermark.
    """

    shown: Annotated[WatermarkView | None, about("Null as long as there was none")] = field(name="watermark")
    mark_segment: Annotated[str, about("The segment that holds all watermarks; it comes with the first one")]
    offset: Annotated[int, about("Where the newest one begins in the mark segment, in bytes")]

    @property
    def watermark(self) -> Watermark | None:
        if self.shown is None:
            return None
        positions = {
            StreamSegment(position.segment_id, position.key_range): position.offset for position in self.shown.cut
        }
        return Watermark(self.shown.lower_time, self.shown.upper_time, positions_of(positions))


class PositionRequest(Document, frozen=True):
    time: Annotated[
        int, Meta(ge=TIME_MIN, le=TIME_MAX, description="The writer's time, in whatever unit its events have")
    ]
    position: Annotated[
        RequestedOffsets,
        Meta(min_length=1, max_length=SEGMENTS_PER_STREAM_MAX, description="Offset in bytes by segment id"),
    ]

    def offsets(self) -> Mapping[int, int]:
        """Raises InvalidRequestError for keys that are not segment ids or name a segment twice, and for bad offsets."""
        offsets = {decimal(key, "segment id", SEGMENT_ID_MAX): offset for key, offset in self.position.items()}
        if len(offsets) != len(self.position):
            raise InvalidRequestError("the position names a segment twice", code="invalid_position")
        for identifier, offset in offsets.items():
            if not 0 <= offset <= OFFSET_MAX:
                raise InvalidRequestError(
                    f"{offset} is not an offset in segment {identifier}: expected 0 to {OFFSET_MAX}",
                    code="invalid_position",
                )
        return offsets
