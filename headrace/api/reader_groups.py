"""Reader groups: configuration, state and generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.stream_cuts import cut_from_json, optional_offsets_json
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
)
from headrace.model.stream_cuts import StreamCut


def configuration_json(configuration: ReaderGroupConfiguration) -> dict[str, Any]:
    """The JSON of a group's configuration. Each stream is written with its scope."""
    return {
        "streams": [_stream_json(one) for one in configuration.streams],
        "retentionType": configuration.retention.value,
        "groupRefreshTimeMillis": configuration.group_refresh_ms,
        "automaticCheckpointIntervalMillis": configuration.automatic_checkpoint_interval_ms,
        "maxOutstandingCheckpointRequest": configuration.outstanding_checkpoints_max,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
    }


def configuration_from_json(document: Mapping[str, Any]) -> ReaderGroupConfiguration:
    """Parses the configuration of a group. Raises InvalidRequestError if a value is out of range."""
    return ReaderGroupConfiguration(
        streams=tuple(map(_stream_from_json, document["streams"])),
        retention=RetentionMode(document["retentionType"]),
        group_refresh_ms=int(document["groupRefreshTimeMillis"]),
        automatic_checkpoint_interval_ms=int(document["automaticCheckpointIntervalMillis"]),
        outstanding_checkpoints_max=int(document["maxOutstandingCheckpointRequest"]),
        rollover_size_bytes=int(document["rolloverSizeBytes"]),
    )


@dataclass(frozen=True, slots=True)
class ReaderGroupView:
    """A reader group.

    Its readers keep their shared state in the stream `state_stream`. `group_id` distinguishes incarnations of the same
    name. `generation` is the number of the configuration.
    """

    scope: str
    group: str
    group_id: str
    generation: int
    state: ReaderGroupState
    state_stream: str
    configuration: ReaderGroupConfiguration

    @classmethod
    def of(cls, group: ReaderGroup) -> ReaderGroupView:
        return cls(
            scope=group.scope,
            group=group.name,
            group_id=group.group_id,
            generation=group.generation,
            state=group.state,
            state_stream=group.state_stream,
            configuration=group.configuration,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReaderGroupView:
        return cls(
            scope=str(document["scopeName"]),
            group=str(document["readerGroupName"]),
            group_id=str(document["readerGroupId"]),
            generation=int(document["generation"]),
            state=ReaderGroupState(document["state"]),
            state_stream=str(document["stateStreamName"]),
            configuration=configuration_from_json(document),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "scopeName": self.scope,
            "readerGroupName": self.group,
            "readerGroupId": self.group_id,
            "generation": self.generation,
            "state": self.state.value,
            **configuration_json(self.configuration),
            "stateStreamName": self.state_stream,
        }


def _stream_json(stream: GroupStream) -> dict[str, Any]:
    return {
        "scopeName": stream.scope,
        "streamName": stream.stream,
        "from": optional_offsets_json(stream.start),
        "to": optional_offsets_json(stream.end),
    }


def _stream_from_json(document: Mapping[str, Any]) -> GroupStream:
    scope, stream = str(document["scopeName"]), str(document["streamName"])
    return GroupStream(scope, stream, _cut(scope, stream, document["from"]), _cut(scope, stream, document["to"]))


def _cut(scope: str, stream: str, offsets: Mapping[str, Any] | None) -> StreamCut | None:
    return None if offsets is None else cut_from_json(scope, stream, offsets)
