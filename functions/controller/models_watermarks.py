"""JSON of the watermark routes and the way from requests to values."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import OFFSET_MAX, SEGMENT_ID_MAX, WireModel, decimal
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.writer_marks import TIME_MAX, TIME_MIN


class PositionRequest(WireModel):
    time: int = Field(ge=TIME_MIN, le=TIME_MAX, description="The writer's time, in whatever unit its events have")
    position: dict[str, int] = Field(
        min_length=1, max_length=SEGMENTS_PER_STREAM_MAX, description="Offset in bytes by segment id"
    )

    def offsets(self) -> dict[int, int]:
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


class WatermarkPosition(WireModel):
    segmentId: int
    low: float
    high: float
    offset: int = Field(description="Bytes")


class Watermark(WireModel):
    lowerTime: int = Field(description="Every active writer has noted at least this time")
    upperTime: int = Field(description="No writer has noted a later time")
    cut: list[WatermarkPosition]


class NewestWatermarkAnswer(WireModel):
    watermark: Watermark | None = Field(description="Null as long as there was none")
    markSegment: str = Field(description="The segment that holds all watermarks; it comes with the first one")
    offset: int = Field(description="Where the newest one begins in the mark segment, in bytes")
