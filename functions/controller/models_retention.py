"""JSON of the retention and subscriber routes and the way from requests to values."""

from __future__ import annotations

from pydantic import Field

from functions.controller.models_segments import Offsets, StreamCutModel
from functions.controller.models_streams import RetentionPolicyModel
from functions.controller.parameters import OFFSET_MAX, SEGMENT_ID_MAX, WireModel, decimal
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.stream_cuts import END_OF_SEGMENT
from headrace.model.subscribers import cut_not_valid

GENERATION_MAX = (1 << 63) - 1


class NextTruncation(WireModel):
    """What would go if it were decided now."""

    case: str = Field(description="Which of the documented cases of retention applies")
    why: str = Field(description="The same in words")
    bytes: int = Field(description="What would go; 0 if nothing would")
    streamCut: StreamCutModel | None = Field(description="Where the stream would begin then; null if nothing would go")


class Retention(WireModel):
    scopeName: str
    streamName: str
    retentionPolicy: RetentionPolicyModel | None
    time: int = Field(description="When this was so, ms since 1970, as all times here")
    oldestEventAfter: int = Field(
        description="Every event that is still there was written after this time, or while the tail was measured for "
        "the cut of that time"
    )
    keptBytes: int = Field(description="Between head and tail")
    retentionSet: int = Field(description="Stream cuts that are kept as places to truncate at")
    oldestCutTime: int | None
    newestCutTime: int | None
    subscribers: int
    nextCutTime: int | None = Field(description="When the next cut is taken and decided upon; null without a policy")
    nextTruncation: NextTruncation


class RegisterSubscriberRequest(WireModel):
    generation: int = Field(default=0, ge=0, le=GENERATION_MAX, description="Of the reader group's configuration")
    streamCut: Offsets | None = Field(default=None, description="Where the group begins; null: at the head")


class SubscriberPositionRequest(WireModel):
    generation: int = Field(default=0, ge=0, le=GENERATION_MAX)
    streamCut: Offsets = Field(
        description="Nothing before it is needed any more; -1 for the end of a sealed segment or one not reached"
    )


class SubscriberModel(WireModel):
    subscriber: str
    generation: int
    streamCut: Offsets
    updated: int = Field(description="When it registered or published, ms since 1970")


class SubscriberList(WireModel):
    subscribers: list[SubscriberModel]
    continuationToken: str | None


def published_offsets(cut: Offsets) -> dict[int, int]:
    """The offsets of a published cut.

    Raises:
        InvalidRequestError: code "stream_cut_not_valid", or without it for a key that is not a segment id.
    """
    if len(cut) > 2 * SEGMENTS_PER_STREAM_MAX:  # Segments that are read, and segments that are not reached yet.
        raise cut_not_valid(f"it names more than {2 * SEGMENTS_PER_STREAM_MAX} segments", {})
    offsets = {decimal(key, "segment id", SEGMENT_ID_MAX): offset for key, offset in cut.items()}
    if len(offsets) != len(cut) or not all(END_OF_SEGMENT <= offset <= OFFSET_MAX for offset in offsets.values()):
        raise cut_not_valid(f"it names a segment twice or has an offset outside -1..{OFFSET_MAX}", {})
    return offsets
