"""JSON of the stream routes, in the shapes of Pravega's REST API where it has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.api.streams import configuration_from_json
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import StreamConfiguration

ScalingTypeName = Literal["FIXED_NUM_SEGMENTS", "BY_RATE_IN_EVENTS_PER_SEC", "BY_RATE_IN_KBYTES_PER_SEC"]
RetentionTypeName = Literal["LIMITED_DAYS", "LIMITED_TIME_MS", "LIMITED_SIZE_MB", "LIMITED_SIZE_BYTES"]
LogClassName = Literal["STORES", "S3"]


class ScalingPolicyModel(WireModel):
    type: ScalingTypeName
    minSegments: int
    targetRate: int | None = Field(default=None, description="Events/s or KB/s of one segment")
    scaleFactor: int | None = Field(default=None, description="Into how many segments a hot one is split")


class RetentionPolicyModel(WireModel):
    type: RetentionTypeName
    value: int = Field(description="Kept at least: days, ms, MB or bytes, as the type says")
    maxValue: int | None = Field(default=None, description="Kept at most, in the same unit")


class StreamConfigurationModel(WireModel):
    """The whole configuration: what is left out is as for a new stream."""

    scalingPolicy: ScalingPolicyModel
    retentionPolicy: RetentionPolicyModel | None = None
    streamTags: list[str] = []
    timestampAggregationTimeout: int = Field(default=0, description="Milliseconds")
    rolloverSizeBytes: int = 0
    acknowledgedBy: LogClassName | None = Field(
        default=None, description="Who acknowledges an append: its stores (the default) or S3; fixed at the creation"
    )

    def configuration(self) -> StreamConfiguration:
        """Raises InvalidRequestError: a value is out of its range."""
        return configuration_from_json(self.model_dump())


class CreateStreamRequest(StreamConfigurationModel):
    streamName: str


class UpdateStreamRequest(StreamConfigurationModel):
    """The whole configuration: what is left out is as for a new stream."""

    expectedConfigurationVersion: int | None = Field(
        default=None, ge=0, description="Update only if the configuration still has this version; without: in any case"
    )


class Stream(WireModel):
    scopeName: str
    streamName: str
    scalingPolicy: ScalingPolicyModel
    retentionPolicy: RetentionPolicyModel | None
    streamTags: list[str]
    timestampAggregationTimeout: int
    rolloverSizeBytes: int
    acknowledgedBy: LogClassName
    state: str
    epoch: int = Field(description="Number of the current epoch")
    segments: int = Field(description="Segments that take events")
    creationTime: int = Field(description="Milliseconds since 1970")
    configurationVersion: int = Field(description="Counts the updates of the configuration")


class StreamEntry(WireModel):
    scopeName: str
    streamName: str
    streamTags: list[str]


class StreamList(WireModel):
    streams: list[StreamEntry]
    continuationToken: str | None


class StateRequest(WireModel):
    streamState: Literal["SEALED", "FROZEN", "ACTIVE"] = Field(description="ACTIVE unfreezes a frozen stream")


class StreamStateAnswer(WireModel):
    streamState: str


class StreamUpdate(WireModel):
    streamState: str
    configurationVersion: int = Field(description="The version that the configuration has once it is in force")


class StreamDeletion(WireModel):
    streamState: str
    deleting: bool


class KeyRangeModel(WireModel):
    low: float
    high: float


SegmentIdNumber = Annotated[int, Field(ge=0, lt=1 << 63)]


class ScaleRequest(WireModel):
    sealedSegments: list[SegmentIdNumber] = Field(min_length=1, max_length=SEGMENTS_PER_STREAM_MAX)
    newRanges: list[KeyRangeModel] = Field(min_length=1, max_length=SEGMENTS_PER_STREAM_MAX)

    def key_ranges(self) -> list[KeyRange]:
        """Raises InvalidRequestError (code "invalid_key_ranges") for a range that is empty or not within [0, 1)."""
        try:
            return [KeyRange(one.low, one.high) for one in self.newRanges]
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, details=error.details, code="invalid_key_ranges") from error


class ScaledSegment(WireModel):
    segmentId: int
    low: float
    high: float


class Scale(WireModel):
    epoch: int
    status: Literal["IN_PROGRESS", "SUCCESS", "INVALID"]
    segments: list[ScaledSegment]


class ScaleState(WireModel):
    epoch: int
    status: Literal["IN_PROGRESS", "SUCCESS", "INVALID"]
