"""Streams, entries of stream lists, updates and scales. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from headrace.api.pages import Page
from headrace.api.segments import ScaledSegment, scaled_segment
from headrace.api.stream_cuts import SEGMENT_ID_MAX
from headrace.model.documents import Document, about
from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.log_classes import LogClass
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import StreamConfiguration, StreamSettings
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream


class _RequestedConfiguration(StreamSettings, frozen=True):
    """The whole configuration: what is left out is as for a new stream."""

    log_class: Annotated[
        LogClass | None,
        about("Who acknowledges an append: its stores (the default) or S3; fixed at the creation"),
    ] = field(default=None, name="acknowledgedBy")

    @property
    def configuration(self) -> StreamConfiguration:
        return StreamConfiguration(**self.part(StreamSettings).fields(), log_class=self.log_class or LogClass.STORES)


class CreateStreamRequest(_RequestedConfiguration, frozen=True, kw_only=True):
    stream: str = field(name="streamName")


class UpdateStreamRequest(_RequestedConfiguration, frozen=True, kw_only=True):
    """If a class is given, it must be the one of the stream."""

    expected_configuration_version: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        about("Update only if the configuration still has this version; without: in any case"),
    ] = None


class StreamView(StreamConfiguration, frozen=True, kw_only=True):
    """A stream.

    `epoch` is the number of the current epoch. `segments` is the number of segments that accept events, 0 once the
    stream is sealed. `configuration_version` counts the updates of the configuration.
    """

    scope: str = field(name="scopeName")
    stream: str = field(name="streamName")
    state: StreamState
    epoch: Annotated[int, about("Number of the current epoch")]
    segments: Annotated[int, about("Segments that take events")]
    creation_time_ms: Annotated[int, about("Milliseconds since 1970")]
    configuration_version: Annotated[int, about("Counts the updates of the configuration")]

    @classmethod
    def of(cls, stream: Stream) -> StreamView:
        return cls(
            **stream.configuration.fields(),
            scope=stream.scope,
            stream=stream.name,
            state=stream.shown_state,
            epoch=stream.epoch.number,
            segments=0 if stream.state.is_sealed else len(stream.epoch.segments),
            creation_time_ms=stream.creation_time_ms,
            configuration_version=stream.configuration_version,
        )

    @property
    def configuration(self) -> StreamConfiguration:
        return self.part(StreamConfiguration)

    @property
    def acknowledged_by(self) -> LogClass:
        return self.log_class


class StreamSummary(Document, frozen=True):
    """An entry in a list of streams."""

    scope: str = field(name="scopeName")
    stream: str = field(name="streamName")
    tags: tuple[str, ...] = field(name="streamTags")


class StreamList(Page, frozen=True, kw_only=True):
    streams: tuple[StreamSummary, ...]


class StateRequest(Document, frozen=True):
    state: Annotated[Literal["SEALED", "FROZEN", "ACTIVE"], about("ACTIVE unfreezes a frozen stream")] = field(
        name="streamState"
    )


class StreamStateAnswer(Document, frozen=True):
    state: StreamState = field(name="streamState")


class StreamDeletion(StreamStateAnswer, frozen=True):
    is_deleting: bool = field(name="deleting")


class StreamUpdate(StreamStateAnswer, frozen=True):
    """An accepted update. Once it has been applied, the configuration has this version or a later one."""

    configuration_version: Annotated[int, about("The version that the configuration has once it is in force")]


class ScaleStatus(StrEnum):
    """The progress of a scale. INVALID means that the epoch does not exist and no running scale creates it."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    INVALID = "INVALID"


class NewRange(Document, frozen=True):
    low: float
    high: float


class ScaleRequest(Document, frozen=True):
    sealed_segments: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=SEGMENT_ID_MAX)], ...],
        Meta(min_length=1, max_length=SEGMENTS_PER_STREAM_MAX),
    ]
    new_ranges: Annotated[tuple[NewRange, ...], Meta(min_length=1, max_length=SEGMENTS_PER_STREAM_MAX)]

    def key_ranges(self) -> list[KeyRange]:
        """Raises InvalidRequestError (code "invalid_key_ranges") for a range that is empty or not within [0, 1)."""
        try:
            return [KeyRange(new_range.low, new_range.high) for new_range in self.new_ranges]
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, details=error.details, code="invalid_key_ranges") from error


class ScaleState(Document, frozen=True):
    """A scale: the number of the epoch that it creates, and its status."""

    epoch: int
    status: ScaleStatus


class ScaleProgress(ScaleState, frozen=True):
    """A scale with the segments that it creates."""

    segments: tuple[ScaledSegment, ...]

    @classmethod
    def of(cls, epoch: Epoch, status: ScaleStatus) -> ScaleProgress:
        return cls(epoch.number, status, tuple(map(scaled_segment, epoch.created)))


class ScalingEvent(Document, frozen=True):
    """A completed scale, with the time at which its epoch began.

    `splits` counts the sealed segments that have several successors. `merges` counts the new segments that have several
    predecessors.
    """

    time_ms: Annotated[int, about("Milliseconds since 1970")]
    epoch: Annotated[int, about("The epoch that began")]
    sealed_segments: tuple[int, ...]
    new_segments: tuple[ScaledSegment, ...]
    splits: Annotated[int, about("Sealed segments with several successors")]
    merges: Annotated[int, about("New segments with several predecessors")]

    @classmethod
    def of(cls, epoch: Epoch) -> ScalingEvent:
        return cls(
            epoch.creation_time_ms,
            epoch.number,
            tuple(segment.segment_id for segment in epoch.replaced),
            tuple(map(scaled_segment, epoch.created)),
            splits=sum(len(epoch.successors_of(segment)) > 1 for segment in epoch.replaced),
            merges=sum(len(epoch.predecessors_of(segment)) > 1 for segment in epoch.created),
        )


class ScalingEvents(Document, frozen=True):
    """A page of scaling events, oldest first. The next page starts at `next_time_ms`, None on the last page."""

    events: tuple[ScalingEvent, ...]
    next_time_ms: Annotated[int | None, about("`from` of the next page; null at the end")] = field(name="next")


class ReplacedSegment(ScaledSegment, frozen=True):
    """A segment that an epoch replaced, and how many bytes were written to it."""

    length: Annotated[int | None, about("Bytes; null where it is not recorded")]


class EpochView(Document, frozen=True):
    """An epoch: when it began, the segments that it replaced, and those that it created."""

    epoch: int
    time_ms: Annotated[int, about("When it began, milliseconds since 1970")]
    replaced: tuple[ReplacedSegment, ...]
    created: tuple[ScaledSegment, ...]

    @classmethod
    def of(cls, epoch: Epoch, lengths: Mapping[int, int]) -> EpochView:
        """`lengths` are those of the replaced segments by their ids, in bytes."""
        replaced = (
            ReplacedSegment(
                segment.segment_id, segment.key_range.low, segment.key_range.high, lengths.get(segment.segment_id)
            )
            for segment in epoch.replaced
        )
        return cls(epoch.number, epoch.creation_time_ms, tuple(replaced), tuple(map(scaled_segment, epoch.created)))


class EpochHistory(Document, frozen=True):
    """A page of epochs, newest first, and the segments of the first one. The next page is before `next_before`."""

    epochs: tuple[EpochView, ...]
    segments: Annotated[tuple[ScaledSegment, ...], about("All segments of the first epoch of this page")]
    next_before: Annotated[int | None, about("`before` of the next page; null at the end")] = field(name="next")

    @classmethod
    def of(cls, epochs: Sequence[Epoch], lengths: Mapping[int, int]) -> EpochHistory:
        oldest = epochs[-1].number
        return cls(
            tuple(EpochView.of(epoch, lengths) for epoch in epochs),
            tuple(map(scaled_segment, epochs[0].segments)),
            oldest if oldest > 0 else None,
        )
