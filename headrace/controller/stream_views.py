"""What the stream service answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.model.segments import StreamSegment
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream as its owner sees it. `segment_count` counts the segments that take events: none once it is sealed."""

    scope: str
    stream: str
    configuration: StreamConfiguration
    state: StreamState
    epoch: int
    segment_count: int
    creation_time_ms: int
    is_deleting: bool
    configuration_version: int


@dataclass(frozen=True, slots=True)
class UpdateView:
    """An update that was accepted; once it is in force the configuration has this version or a later one."""

    state: StreamState
    configuration_version: int


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """An entry of a list of streams."""

    scope: str
    stream: str
    tags: tuple[str, ...]


class ScaleStatus(StrEnum):
    """How far a scale is; INVALID for an epoch that does not exist and is not on its way."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class ScaleView:
    """A scale that was accepted: the number of the epoch it leads to, and the segments that begin with it."""

    epoch: int
    status: ScaleStatus
    segments: tuple[StreamSegment, ...]


def stream_view(stream: Stream) -> StreamView:
    return StreamView(
        scope=stream.scope,
        stream=stream.name,
        configuration=stream.configuration,
        state=stream.shown_state,
        epoch=stream.epoch.number,
        segment_count=0 if stream.state is StreamState.SEALED else len(stream.epoch.segments),
        creation_time_ms=stream.creation_time_ms,
        is_deleting=stream.is_deleting,
        configuration_version=stream.configuration_version,
    )
