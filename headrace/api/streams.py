"""Streams, entries of stream lists, updates and scales. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.api.segments import SegmentView
from headrace.model.epochs import Epoch
from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream

# The configuration of a stream in JSON. Fields that Pravega's REST API also has are written as it writes them.


def configuration_json(configuration: StreamConfiguration) -> dict[str, Any]:
    """The JSON of a stream's configuration."""
    return {
        "scalingPolicy": _scaling_json(configuration.scaling),
        "retentionPolicy": retention_json(configuration.retention),
        "streamTags": list(configuration.tags),
        "timestampAggregationTimeout": configuration.timestamp_aggregation_timeout_ms,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
        "acknowledgedBy": configuration.log_class.value,
    }


def configuration_from_json(document: Mapping[str, Any]) -> StreamConfiguration:
    """Parses a stream's configuration. Missing fields get the default of a new stream.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    return StreamConfiguration(
        scaling=_scaling_from_json(document["scalingPolicy"]),
        retention=retention_from_json(document.get("retentionPolicy")),
        tags=tuple(document.get("streamTags") or ()),
        timestamp_aggregation_timeout_ms=int(document.get("timestampAggregationTimeout") or 0),
        rollover_size_bytes=int(document.get("rolloverSizeBytes") or 0),
        log_class=LogClass(document.get("acknowledgedBy") or LogClass.STORES),
    )


def retention_json(policy: RetentionPolicy | None) -> dict[str, Any] | None:
    """The JSON of a retention policy; None if the stream has no policy."""
    if policy is None:
        return None
    return {"type": policy.type.value, "value": policy.value, "maxValue": policy.max_value}


def retention_from_json(document: Mapping[str, Any] | None) -> RetentionPolicy | None:
    """Parses a retention policy; None if the stream has no policy."""
    if document is None:
        return None
    return RetentionPolicy(RetentionType(document["type"]), int(document["value"]), document.get("maxValue"))


def _scaling_json(policy: ScalingPolicy) -> dict[str, Any]:
    return {
        "type": policy.type.value,
        "minSegments": policy.min_segments,
        "targetRate": policy.target_rate,
        "scaleFactor": policy.scale_factor,
    }


def _scaling_from_json(document: Mapping[str, Any]) -> ScalingPolicy:
    return ScalingPolicy(
        ScalingType(document["type"]),
        int(document["minSegments"]),
        int(document.get("targetRate") or 0),
        int(document.get("scaleFactor") or 0),
    )


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream.

    `epoch` is the number of the current epoch. `segments` is the number of segments that accept events, 0 once the
    stream is sealed. `configuration_version` counts the updates of the configuration.

    `is_deleting` is only set inside the controller; it is not part of the JSON.
    """

    scope: str
    stream: str
    configuration: StreamConfiguration
    state: StreamState
    epoch: int
    segments: int
    creation_time_ms: int
    configuration_version: int = 0
    is_deleting: bool = False

    @property
    def scaling(self) -> ScalingPolicy:
        return self.configuration.scaling

    @property
    def retention(self) -> RetentionPolicy | None:
        return self.configuration.retention

    @property
    def tags(self) -> tuple[str, ...]:
        return self.configuration.tags

    @property
    def timestamp_aggregation_timeout_ms(self) -> int:
        return self.configuration.timestamp_aggregation_timeout_ms

    @property
    def rollover_size_bytes(self) -> int:
        return self.configuration.rollover_size_bytes

    @property
    def acknowledged_by(self) -> LogClass:
        return self.configuration.log_class

    @classmethod
    def of(cls, stream: Stream) -> StreamView:
        return cls(
            scope=stream.scope,
            stream=stream.name,
            configuration=stream.configuration,
            state=stream.shown_state,
            epoch=stream.epoch.number,
            segments=0 if stream.state.is_sealed else len(stream.epoch.segments),
            creation_time_ms=stream.creation_time_ms,
            configuration_version=stream.configuration_version,
            is_deleting=stream.is_deleting,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamView:
        return cls(
            scope=str(document["scopeName"]),
            stream=str(document["streamName"]),
            configuration=configuration_from_json(document),
            state=StreamState(document["state"]),
            epoch=int(document["epoch"]),
            segments=int(document["segments"]),
            creation_time_ms=int(document["creationTime"]),
            configuration_version=int(document.get("configurationVersion") or 0),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "scopeName": self.scope,
            "streamName": self.stream,
            **configuration_json(self.configuration),
            "state": self.state.value,
            "epoch": self.epoch,
            "segments": self.segments,
            "creationTime": self.creation_time_ms,
            "configurationVersion": self.configuration_version,
        }


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """An entry in a list of streams."""

    scope: str
    stream: str
    tags: tuple[str, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamSummary:
        tags = tuple(map(str, document.get("streamTags") or ()))
        return cls(str(document["scopeName"]), str(document["streamName"]), tags)

    def to_json(self) -> dict[str, Any]:
        return {"scopeName": self.scope, "streamName": self.stream, "streamTags": list(self.tags)}


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """An accepted update. Once it has been applied, the configuration has this version or a later one."""

    state: StreamState
    configuration_version: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamUpdate:
        return cls(StreamState(document["streamState"]), int(document["configurationVersion"]))

    def to_json(self) -> dict[str, Any]:
        return {"streamState": self.state.value, "configurationVersion": self.configuration_version}


class ScaleStatus(StrEnum):
    """The progress of a scale. INVALID means that the epoch does not exist and no running scale creates it."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class ScaleProgress:
    """A scale: the number of the epoch that it creates, its status, and the new segments if the answer has them."""

    epoch: int
    status: ScaleStatus
    segments: tuple[SegmentView, ...] = ()

    @classmethod
    def of(cls, epoch: Epoch, status: ScaleStatus) -> ScaleProgress:
        return cls(epoch.number, status, tuple(map(SegmentView.of, epoch.created)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ScaleProgress:
        segments = tuple(map(SegmentView.from_json, document.get("segments", ())))
        return cls(int(document["epoch"]), ScaleStatus(document["status"]), segments)

    def to_json(self) -> dict[str, Any]:
        return {**self.state_json(), "segments": [one.range_json() for one in self.segments]}

    def state_json(self) -> dict[str, Any]:
        """The JSON without the segments."""
        return {"epoch": self.epoch, "status": self.status.value}


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A completed scale, with the time at which its epoch began.

    `splits` counts the sealed segments that have several successors. `merges` counts the new segments that have several
    predecessors.
    """

    time_ms: int
    epoch: int
    sealed_segments: tuple[int, ...]
    new_segments: tuple[SegmentView, ...]
    splits: int
    merges: int

    @classmethod
    def of(cls, epoch: Epoch) -> ScalingEvent:
        return cls(
            epoch.creation_time_ms,
            epoch.number,
            tuple(segment.segment_id for segment in epoch.replaced),
            tuple(map(SegmentView.of, epoch.created)),
            splits=sum(len(epoch.successors_of(segment)) > 1 for segment in epoch.replaced),
            merges=sum(len(epoch.predecessors_of(segment)) > 1 for segment in epoch.created),
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ScalingEvent:
        return cls(
            int(document["time"]),
            int(document["epoch"]),
            tuple(map(int, document["sealedSegments"])),
            tuple(map(SegmentView.from_json, document["newSegments"])),
            int(document["splits"]),
            int(document["merges"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.time_ms,
            "epoch": self.epoch,
            "sealedSegments": list(self.sealed_segments),
            "newSegments": [one.range_json() for one in self.new_segments],
            "splits": self.splits,
            "merges": self.merges,
        }


@dataclass(frozen=True, slots=True)
class ScalingEvents:
    """A page of scaling events, oldest first. The next page starts at `next_time_ms`, None on the last page."""

    events: tuple[ScalingEvent, ...]
    next_time_ms: int | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ScalingEvents:
        following = document.get("next")
        events = tuple(map(ScalingEvent.from_json, document["events"]))
        return cls(events, None if following is None else int(following))

    def to_json(self) -> dict[str, Any]:
        return {"events": [one.to_json() for one in self.events], "next": self.next_time_ms}
