"""What the controller answers, as values; and the checks that it answered what its contract says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.api.segments import SegmentView
from headrace.model.errors import CorruptError
from headrace.model.stream_configuration import RetentionPolicy, RetentionType, ScalingPolicy, ScalingType


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream. `state` is Pravega's (CREATING, ACTIVE, UPDATING, SEALED, ...), `epoch` the number of the current
    epoch, `segments` how many segments that has; times in milliseconds since the Unix epoch."""

    scope: str
    stream: str
    scaling: ScalingPolicy
    retention: RetentionPolicy | None
    tags: tuple[str, ...]
    state: str
    epoch: int
    segments: int
    creation_time_ms: int
    timestamp_aggregation_timeout_ms: int
    rollover_size_bytes: int
    configuration_version: int = 0
    """Counts the updates of the configuration."""


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A scale: when the epoch began, what it sealed and created; `splits` sealed segments have several successors,
    `merges` new ones several predecessors."""

    time_ms: int
    epoch: int
    sealed_segments: tuple[int, ...]
    new_segments: tuple[SegmentView, ...]
    splits: int
    merges: int


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream in a list of streams."""

    scope: str
    stream: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScaleProgress:
    """A scale: `status` is IN_PROGRESS, SUCCESS or INVALID; `segments` are the new ones, where the answer tells."""

    epoch: int
    status: str
    segments: tuple[SegmentView, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes of a segment from `offset` on, to be had with a GET of `url` with exactly `headers`."""

    offset: int
    length: int
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Chunks:
    """Contiguous chunks; tier 2 has the segment up to `stored_until`; `next_offset` continues, None at the end."""

    chunks: tuple[Chunk, ...]
    stored_until: int
    next_offset: int | None


T = TypeVar("T")


def parsed(parse: Callable[[Mapping[str, Any]], T], answer: Mapping[str, Any]) -> T:
    """`parse(answer)`; CorruptError if the answer lacks something or holds something else than expected."""
    try:
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"the controller's answer is not as expected ({error!r}): {str(answer)[:300]}") from error


def stream_view(answer: Mapping[str, Any]) -> StreamView:
    scaling, retention = answer["scalingPolicy"], answer.get("retentionPolicy")
    return StreamView(
        scope=answer["scopeName"],
        stream=answer["streamName"],
        scaling=ScalingPolicy(
            ScalingType(scaling["type"]),
            int(scaling["minSegments"]),
            int(scaling.get("targetRate") or 0),
            int(scaling.get("scaleFactor") or 0),
        ),
        retention=RetentionPolicy(
            RetentionType(retention["type"]), int(retention["value"]), retention.get("maxValue") or None
        )
        if retention
        else None,
        tags=tuple(answer.get("streamTags") or ()),
        state=str(answer["state"]),
        epoch=int(answer["epoch"]),
        segments=int(answer["segments"]),
        creation_time_ms=int(answer["creationTime"]),
        timestamp_aggregation_timeout_ms=int(answer.get("timestampAggregationTimeout") or 0),
        rollover_size_bytes=int(answer.get("rolloverSizeBytes") or 0),
        configuration_version=int(answer.get("configurationVersion") or 0),
    )


def scaling_event(answer: Mapping[str, Any]) -> ScalingEvent:
    return ScalingEvent(
        int(answer["time"]),
        int(answer["epoch"]),
        _ids(answer["sealedSegments"]),
        tuple(SegmentView.from_json(one) for one in answer["newSegments"]),
        int(answer["splits"]),
        int(answer["merges"]),
    )


def stream_summary(answer: Mapping[str, Any]) -> StreamSummary:
    return StreamSummary(answer["scopeName"], answer["streamName"], tuple(answer.get("streamTags") or ()))


def scale_progress(answer: Mapping[str, Any]) -> ScaleProgress:
    segments = tuple(SegmentView.from_json(one) for one in answer.get("segments", ()))
    return ScaleProgress(int(answer["epoch"]), str(answer["status"]), segments)


def chunks(answer: Mapping[str, Any]) -> Chunks:
    found = tuple(
        Chunk(int(one["offset"]), int(one["length"]), str(one["url"]), dict(one["headers"]), int(one["expiresAt"]))
        for one in answer["chunks"]
    )
    following = answer["next"]
    return Chunks(found, int(answer["storedUntil"]), None if following is None else int(following))


def _ids(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
