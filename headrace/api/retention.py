"""Retention of a stream, and the subscribers that it waits for.

Sizes are in bytes, times in milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from headrace.api.pages import Page
from headrace.api.stream_cuts import (
    OFFSET_MAX,
    SEGMENT_ID_MAX,
    CutOffsets,
    RequestedOffsets,
    StreamCutView,
    decimal,
)
from headrace.model.documents import Document, about
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut
from headrace.model.subscribers import Subscriber, cut_not_valid

GENERATION_MAX = (1 << 63) - 1


class NextTruncation(Document, frozen=True):
    """What would go if it were decided now."""

    case: Annotated[str, about("Which of the documented cases of retention applies")]
    why: Annotated[str, about("The same in words")]
    bytes: Annotated[int, about("What would go; 0 if nothing would")]
    cut: Annotated[StreamCutView | None, about("Where the stream would begin then; null if nothing would go")] = field(
        name="streamCut"
    )


class RetentionDescription(Document, frozen=True):
    """The retained data of a stream, and the next truncation.

    Every retained event was written after `oldest_event_ms`, or while the tail was measured for the cut of that time.
    `kept_bytes` is the distance from head to tail. The retention set holds `retention_set` cuts; the next one is taken
    at `next_cut_time_ms`, None without a policy.

    If retention ran now, it would delete `next_bytes` and move the head to `next_cut`, None if it would delete nothing.
    `case` is the rule that decides this, and `why` explains it in a sentence.
    """

    scope: str = field(name="scopeName")
    stream: str = field(name="streamName")
    policy: RetentionPolicy | None = field(name="retentionPolicy")
    time_ms: Annotated[int, about("When this was so, ms since 1970, as all times here")]
    oldest_event_ms: Annotated[
        int,
        about(
            "Every event that is still there was written after this time, or while the tail was measured for the cut "
            "of that time"
        ),
    ] = field(name="oldestEventAfter")
    kept_bytes: Annotated[int, about("Between head and tail")]
    retention_set: Annotated[int, about("Stream cuts that are kept as places to truncate at")]
    oldest_cut_ms: int | None = field(name="oldestCutTime")
    newest_cut_ms: int | None = field(name="newestCutTime")
    subscribers: int
    next_cut_time_ms: Annotated[int | None, about("When the next cut is taken and decided upon; null without a policy")]
    next: NextTruncation = field(name="nextTruncation")

    @property
    def next_bytes(self) -> int:
        return self.next.bytes

    @property
    def next_cut(self) -> StreamCut | None:
        return None if self.next.cut is None else self.next.cut.cut

    @property
    def case(self) -> str:
        return self.next.case

    @property
    def why(self) -> str:
        return self.next.why


class SubscriberView(Document, frozen=True):
    """A reader group that retention waits for. It no longer needs the bytes before `offsets`, by segment id."""

    subscriber: str
    generation: int
    offsets: CutOffsets = field(name="streamCut")
    updated_ms: Annotated[int, about("When it registered or published, ms since 1970")]

    @classmethod
    def of(cls, subscriber: Subscriber) -> SubscriberView:
        offsets = dict(subscriber.position.cut.offsets)
        return cls(subscriber.name, subscriber.generation, offsets, subscriber.updated_ms)


class SubscriberList(Page, frozen=True, kw_only=True):
    subscribers: tuple[SubscriberView, ...]


_Generation = Annotated[int, Meta(ge=0, le=GENERATION_MAX)]


class RegisterSubscriberRequest(Document, frozen=True):
    generation: Annotated[_Generation, about("Of the reader group's configuration")] = 0
    start: Annotated[RequestedOffsets | None, about("Where the group begins; null: at the head")] = field(
        default=None, name="streamCut"
    )


class SubscriberPositionRequest(Document, frozen=True, kw_only=True):
    generation: _Generation = 0
    position: Annotated[
        RequestedOffsets,
        about("Nothing before it is needed any more; -1 for the end of a sealed segment or one not reached"),
    ] = field(name="streamCut")


def published_offsets(cut: RequestedOffsets) -> Mapping[int, int]:
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
