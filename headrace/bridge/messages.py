"""Conversions between messages of Pravega's controller service and values of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from headrace.api.listings import Listing
from headrace.api.segments import ScaledSegment, SegmentView
from headrace.bridge import controller_pb2 as pb
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.log_classes import LogClass
from headrace.model.names import check_known_name
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, ScalingType, StreamConfiguration
from headrace.model.stream_cuts import END_OF_SEGMENT

ACKNOWLEDGED_BY_TAG: Final = "headrace.acknowledged-by="
"""Pravega's protocol has no field for who acknowledges a stream's appends. A tag that begins so names the class."""

_INT64_MAX: Final = (1 << 63) - 1
_SCALE_FACTOR_MIN: Final = 2
"""Pravega splits a hot segment into at least two, also if the factor is smaller."""

_SCALING_TYPES = {
    pb.ScalingPolicy.FIXED_NUM_SEGMENTS: ScalingType.FIXED_NUM_SEGMENTS,
    pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC: ScalingType.BY_RATE_IN_KBYTES_PER_SEC,
    pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC: ScalingType.BY_RATE_IN_EVENTS_PER_SEC,
}
_SCALING_TYPE_NUMBERS = {kind: number for number, kind in _SCALING_TYPES.items()}


def known_scope(scope: str) -> str:
    """Raises NotFoundError for a name that no scope can have."""
    return _known("scope", scope)


def known_stream(info: pb.StreamInfo) -> tuple[str, str]:
    """Scope and stream; raises NotFoundError for a name that no scope or stream can have."""
    return _known("scope", info.scope), _known("stream", info.stream)


def _known(kind: str, name: str) -> str:
    try:
        return check_known_name(kind, name)
    except InvalidRequestError as error:
        raise NotFoundError(error.message, details=error.details) from error


def configuration_of(config: pb.StreamConfig) -> StreamConfiguration:
    """Raises InvalidRequestError: a value is out of its range."""
    return StreamConfiguration(
        scaling=_scaling_of(config.scalingPolicy),
        retention=_retention_of(config.retentionPolicy),
        tags=tuple(config.tags.tag),
        timestamp_aggregation_timeout_ms=config.timestampAggregationTimeout,
        rollover_size_bytes=max(0, config.rolloverSizeBytes),
        log_class=log_class_of(config) or LogClass.STORES,
    )


def log_class_of(config: pb.StreamConfig) -> LogClass | None:
    """The class that a tag names, such as `headrace.acknowledged-by=s3`; None without such a tag.

    The tag stays a tag of the stream: clients that compare configurations get back what they have sent.

    Raises:
        InvalidRequestError: code "unknown_log_class": tags name no known class, or two different ones.
    """
    named = {tag.removeprefix(ACKNOWLEDGED_BY_TAG) for tag in config.tags.tag if tag.startswith(ACKNOWLEDGED_BY_TAG)}
    if not named:
        return None
    classes = {each.value.lower(): each for each in LogClass}
    if len(named) > 1 or not named <= classes.keys():
        raise InvalidRequestError(
            f"the tags of the stream name {', '.join(sorted(named))} as what acknowledges it: use one tag "
            f"{ACKNOWLEDGED_BY_TAG} with one of {', '.join(sorted(classes))}",
            code="unknown_log_class",
        )
    return classes[named.pop()]


def configuration_message(scope: str, stream: str, configuration: StreamConfiguration) -> pb.StreamConfig:
    """Every inner message is set, even if it is empty, because the Rust client requires all of them."""
    return pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=_scaling_message(configuration.scaling),
        retentionPolicy=_retention_message(configuration.retention),
        tags=pb.Tags(tag=configuration.tags),
        timestampAggregationTimeout=configuration.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=configuration.rollover_size_bytes,
    )


def _scaling_of(policy: pb.ScalingPolicy) -> ScalingPolicy:
    kind = _SCALING_TYPES.get(policy.scaleType, ScalingType.FIXED_NUM_SEGMENTS)
    if kind is ScalingType.FIXED_NUM_SEGMENTS:
        # Clients set arbitrary values in the fields that a fixed number of segments does not use.
        return ScalingPolicy.fixed(policy.minNumSegments)
    factor = max(_SCALE_FACTOR_MIN, policy.scaleFactor)
    return ScalingPolicy(kind, policy.minNumSegments, policy.targetRate, factor)


def _scaling_message(policy: ScalingPolicy) -> pb.ScalingPolicy:
    return pb.ScalingPolicy(
        scaleType=_SCALING_TYPE_NUMBERS[policy.type],
        targetRate=policy.target_rate,
        scaleFactor=policy.scale_factor,
        minNumSegments=policy.min_segments,
    )


def _retention_of(policy: pb.RetentionPolicy) -> RetentionPolicy | None:
    """A maximum of 0 (old clients) or of the largest number (new clients) means that there is no maximum."""
    most = policy.retentionMax if 0 < policy.retentionMax < _INT64_MAX else None
    if policy.retentionType == pb.RetentionPolicy.TIME:
        return RetentionPolicy.by_time(policy.retentionParam, most)
    if policy.retentionType == pb.RetentionPolicy.SIZE:
        return RetentionPolicy.by_size(policy.retentionParam, most)
    return None


def _retention_message(policy: RetentionPolicy | None) -> pb.RetentionPolicy:
    if policy is None:
        return pb.RetentionPolicy(retentionMax=_INT64_MAX)
    return pb.RetentionPolicy(
        retentionType=pb.RetentionPolicy.TIME if policy.is_by_time else pb.RetentionPolicy.SIZE,
        retentionParam=policy.minimum,
        retentionMax=_INT64_MAX if policy.maximum is None else policy.maximum,
    )


def segment_id_message(scope: str, stream: str, segment_id: int) -> pb.SegmentId:
    return pb.SegmentId(streamInfo=pb.StreamInfo(scope=scope, stream=stream), segmentId=segment_id)


def segment_range_message(scope: str, stream: str, segment: StreamSegment | ScaledSegment) -> pb.SegmentRange:
    return pb.SegmentRange(
        segmentId=segment_id_message(scope, stream, segment.segment_id),
        minKey=segment.key_range.low,
        maxKey=segment.key_range.high,
    )


def segment_ranges_message(scope: str, stream: str, segments: Iterable[SegmentView]) -> pb.SegmentRanges:
    return pb.SegmentRanges(
        segmentRanges=[segment_range_message(scope, stream, segment) for segment in segments],
    )


def offsets_of(cut: Mapping[int, int]) -> dict[int, int] | None:
    """Offset in bytes by segment id. None for an empty map, which means the head or the tail of the stream.

    Java clients send the largest number for the end of a segment in the ending cut of a reader group.
    """
    return {segment: END_OF_SEGMENT if offset == _INT64_MAX else offset for segment, offset in cut.items()} or None


def key_ranges_of(entries: Iterable[pb.ScaleRequest.KeyRangeEntry]) -> list[KeyRange]:
    """Raises InvalidRequestError for a range that is empty or not within [0, 1)."""
    return [KeyRange(entry.start, entry.end) for entry in entries]


# Pages of lists for Pravega's clients: each page has a token for the next one, and an empty page ends the list.

T = TypeVar("T")


def continuation(page: Listing[T], asked_after: str, name: Callable[[T], str]) -> pb.ContinuationToken:
    """The token of a page. The last page has one too: it leads to the empty page that ends a client's listing."""
    last = name(page.items[-1]) if page.items else asked_after
    return pb.ContinuationToken(token=page.next_after or last)
