"""Reader groups: configuration, state and generation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.api.pages import Page
from headrace.api.stream_cuts import RequestedOffsets, optional_offsets_json, requested_offsets
from headrace.model import reader_groups as groups
from headrace.model.documents import Document, about
from headrace.model.limits import READER_GROUP_STREAMS_MAX
from headrace.model.names import check_known_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
)
from headrace.model.stream_cuts import StreamCut


class GroupStreamView(Document, frozen=True, kw_only=True):
    """A stream that a group reads."""

    scope: Annotated[str | None, about("The scope of the group where nothing is said")] = field(
        default=None, name="scopeName"
    )
    stream: str = field(name="streamName")
    start: Annotated[RequestedOffsets | None, about("Starting stream cut; null: the head")] = field(
        default=None, name="from"
    )
    end: Annotated[RequestedOffsets | None, about("Ending stream cut; null: without end")] = field(
        default=None, name="to"
    )

    def value(self, group_scope: str) -> GroupStream:
        """Raises InvalidRequestError for a name or a cut that is not valid."""
        scope = check_known_name("scope", group_scope if self.scope is None else self.scope)
        stream = check_known_name("stream", self.stream)
        return GroupStream(scope, stream, _cut("from", scope, stream, self.start), _cut("to", scope, stream, self.end))


class ReaderGroupSettings(Document, frozen=True, kw_only=True):
    """What creating and updating a group have in common."""

    streams: Annotated[tuple[GroupStreamView, ...], Meta(min_length=1, max_length=READER_GROUP_STREAMS_MAX)]
    retention: Annotated[
        RetentionMode, about("Whether retention waits for the group, and what tells it how far the group is")
    ] = field(default=RetentionMode.NONE, name="retentionType")
    group_refresh_ms: int = field(default=groups.GROUP_REFRESH_MS_DEFAULT, name="groupRefreshTimeMillis")
    automatic_checkpoint_interval_ms: int = field(
        default=groups.AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT, name="automaticCheckpointIntervalMillis"
    )
    outstanding_checkpoints_max: int = field(
        default=groups.OUTSTANDING_CHECKPOINTS_DEFAULT, name="maxOutstandingCheckpointRequest"
    )
    rollover_size_bytes: int = groups.STATE_ROLLOVER_BYTES_DEFAULT

    @classmethod
    def of(cls, configuration: ReaderGroupConfiguration) -> ReaderGroupSettings:
        """The settings, with each stream's scope."""
        streams = (
            GroupStreamView(
                scope=stream.scope,
                stream=stream.stream,
                start=optional_offsets_json(stream.start),
                end=optional_offsets_json(stream.end),
            )
            for stream in configuration.streams
        )
        others = {name: getattr(configuration, name) for name in ReaderGroupSettings.__struct_fields__[1:]}
        return ReaderGroupSettings(streams=tuple(streams), **others)

    def configured(self, group_scope: str) -> ReaderGroupConfiguration:
        """Raises InvalidRequestError if a value is out of range."""
        streams = tuple(stream.value(group_scope) for stream in self.streams)
        others = {name: getattr(self, name) for name in ReaderGroupSettings.__struct_fields__[1:]}
        return ReaderGroupConfiguration(streams, **others)


class CreateReaderGroupRequest(ReaderGroupSettings, frozen=True, kw_only=True):
    group: str = field(name="readerGroupName")
    group_id: Annotated[
        str | None, about("A UUID that the caller has chosen: with it a repeat is known; null: one is made")
    ] = field(default=None, name="readerGroupId")


class ResetReaderGroupRequest(Document, frozen=True):
    group_id: str = field(name="readerGroupId")
    generation: Annotated[int, Meta(ge=0, description="The one that the caller knows")]


class UpdateReaderGroupRequest(ReaderGroupSettings, frozen=True, kw_only=True):
    group_id: str = field(name="readerGroupId")
    generation: Annotated[int, Meta(ge=0, description="The one that the caller knows")]


class ReaderGroupView(ReaderGroupSettings, frozen=True, kw_only=True):
    """A reader group.

    Its readers keep their shared state in the stream `state_stream`. `group_id` distinguishes incarnations of the same
    name. `generation` is the number of the configuration.
    """

    scope: str = field(name="scopeName")
    group: str = field(name="readerGroupName")
    group_id: str = field(name="readerGroupId")
    generation: int
    state: ReaderGroupState
    state_stream: Annotated[str, about("The stream in which readers keep what they share")] = field(
        name="stateStreamName"
    )

    @classmethod
    def shown(cls, group: ReaderGroup) -> ReaderGroupView:
        return cls(
            **ReaderGroupSettings.of(group.configuration).fields(),
            scope=group.scope,
            group=group.name,
            group_id=group.group_id,
            generation=group.generation,
            state=group.state,
            state_stream=group.state_stream,
        )

    @property
    def configuration(self) -> ReaderGroupConfiguration:
        return self.configured(self.scope)


class ReaderGroupList(Page, frozen=True, kw_only=True):
    groups: tuple[str, ...] = field(name="readerGroups")


class ReaderGroupStateAnswer(Document, frozen=True):
    state: ReaderGroupState


def _cut(name: str, scope: str, stream: str, cut: RequestedOffsets | None) -> StreamCut | None:
    offsets = requested_offsets(name, cut)
    return None if offsets is None else StreamCut.of(scope, stream, offsets)
