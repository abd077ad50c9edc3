"""JSON of the reader group routes and the way from requests to values."""

from __future__ import annotations

from typing import Literal
from uuid import uuid4

from pydantic import Field

from functions.controller.models_segments import Offsets, offsets
from functions.controller.parameters import WireModel
from headrace.model import reader_groups as groups
from headrace.model.limits import READER_GROUP_STREAMS_MAX
from headrace.model.names import check_known_name
from headrace.model.reader_groups import RetentionMode
from headrace.model.stream_cuts import StreamCut

RetentionModeName = Literal["NONE", "MANUAL", "AUTOMATIC"]


class GroupStreamModel(WireModel):
    scopeName: str | None = Field(default=None, description="The scope of the group where nothing is said")
    streamName: str
    from_: Offsets | None = Field(default=None, alias="from", description="Starting stream cut; null: the head")
    to: Offsets | None = Field(default=None, description="Ending stream cut; null: without end")

    def stream(self, group_scope: str) -> groups.GroupStream:
        scope = check_known_name("scope", group_scope if self.scopeName is None else self.scopeName)
        stream = check_known_name("stream", self.streamName)
        return groups.GroupStream(
            scope, stream, _cut("from", scope, stream, self.from_), _cut("to", scope, stream, self.to)
        )


class ReaderGroupSettings(WireModel):
    """What creating and updating a group have in common."""

    streams: list[GroupStreamModel] = Field(min_length=1, max_length=READER_GROUP_STREAMS_MAX)
    retentionType: RetentionModeName = Field(
        default="NONE", description="Whether retention waits for the group, and what tells it how far the group is"
    )
    groupRefreshTimeMillis: int = groups.GROUP_REFRESH_MS_DEFAULT
    automaticCheckpointIntervalMillis: int = groups.AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT
    maxOutstandingCheckpointRequest: int = groups.OUTSTANDING_CHECKPOINTS_DEFAULT
    rolloverSizeBytes: int = groups.STATE_ROLLOVER_BYTES_DEFAULT

    def configuration(self, group_scope: str) -> groups.ReaderGroupConfiguration:
        return groups.ReaderGroupConfiguration(
            streams=tuple(one.stream(group_scope) for one in self.streams),
            retention=RetentionMode(self.retentionType),
            group_refresh_ms=self.groupRefreshTimeMillis,
            automatic_checkpoint_interval_ms=self.automaticCheckpointIntervalMillis,
            outstanding_checkpoints_max=self.maxOutstandingCheckpointRequest,
            rollover_size_bytes=self.rolloverSizeBytes,
        )


class CreateReaderGroupRequest(ReaderGroupSettings):
    readerGroupName: str
    readerGroupId: str | None = Field(
        default=None, description="A UUID that the caller has chosen: with it a repeat is known; null: one is made"
    )

    @property
    def group_id(self) -> str:
        return str(uuid4()) if self.readerGroupId is None else self.readerGroupId


class UpdateReaderGroupRequest(ReaderGroupSettings):
    readerGroupId: str
    generation: int = Field(ge=0, description="The one that the caller knows")


class ResetReaderGroupRequest(WireModel):
    readerGroupId: str
    generation: int = Field(ge=0, description="The one that the caller knows")


class ReaderGroup(WireModel):
    scopeName: str
    readerGroupName: str
    readerGroupId: str
    generation: int
    state: str
    streams: list[GroupStreamModel]
    retentionType: RetentionModeName
    groupRefreshTimeMillis: int
    automaticCheckpointIntervalMillis: int
    maxOutstandingCheckpointRequest: int
    rolloverSizeBytes: int
    stateStreamName: str = Field(description="The stream in which readers keep what they share")


class ReaderGroupList(WireModel):
    readerGroups: list[str]
    continuationToken: str | None


class ReaderGroupState(WireModel):
    state: str


def _cut(field: str, scope: str, stream: str, cut: Offsets | None) -> StreamCut | None:
    found = offsets(field, cut)
    return None if found is None else StreamCut.of(scope, stream, found)
