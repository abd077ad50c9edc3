"""The rpcs on reader groups, and on the subscribers of streams: reader groups that retention waits for."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.service import Rpc
from headrace.bridge.waiting import Waits
from headrace.controller.services.reader_group_service import ReaderGroupService
from headrace.controller.services.retention_service import SubscriberService
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.model.names import check_known_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
)
from headrace.model.stream_cuts import StreamCut

_RETENTION_MODES = (RetentionMode.NONE, RetentionMode.MANUAL, RetentionMode.AUTOMATIC)
"""The modes by their number on the wire."""


class ReaderGroupRpcs:
    """The rpcs that create, update or delete a group return when the operation is complete."""

    def __init__(self, groups: ReaderGroupService, waits: Waits) -> None:
        self._groups = groups
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "createReaderGroup": self.create_reader_group,
            "updateReaderGroup": self.update_reader_group,
            "getReaderGroupConfig": self.reader_group_configuration,
            "deleteReaderGroup": self.delete_reader_group,
        }

    async def create_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.CreateReaderGroupResponse:
        """Return the current configuration. If the group already exists it may differ from the one in the request."""
        scope, group = request.scope, request.readerGroupName
        configuration = _configuration_of(request)
        group_id = request.readerGroupId or str(uuid4())
        what = f"creating reader group {scope}/{group}"
        await self._waits.accepted(
            what,
            lambda: self._groups.create_reader_group(scope, group, group_id, configuration, at_checkpoint=True),
        )
        try:
            created = await self._settled(what, scope, group)
        except NotFoundError as error:
            raise UnavailableError(f"{what}: another client has deleted it meanwhile: repeat") from error
        config = _configuration_message(created)
        if created.configuration == configuration:
            # Java clients compare the cuts as they sent them: a stream without a cut differs from an unbounded one.
            del config.startingStreamCuts[:], config.endingStreamCuts[:]
            config.startingStreamCuts.extend(request.startingStreamCuts)
            config.endingStreamCuts.extend(request.endingStreamCuts)
        return pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.SUCCESS, config=config)

    async def update_reader_group(self, request: pb.ReaderGroupConfiguration) -> pb.UpdateReaderGroupResponse:
        scope, group = _known(request.scope, request.readerGroupName)
        configuration = _configuration_of(request)
        what = f"updating reader group {scope}/{group}"
        updated = await self._waits.accepted(
            what,
            lambda: self._groups.update_reader_group(
                scope, group, request.readerGroupId, request.generation, configuration, at_checkpoint=True
            ),
        )
        await self._settled(what, scope, group)
        return pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.SUCCESS, generation=updated.generation)

    def reader_group_configuration(self, request: pb.ReaderGroupInfo) -> pb.ReaderGroupConfigResponse:
        stored = self._groups.get_reader_group(*_known(request.scope, request.readerGroup))
        return pb.ReaderGroupConfigResponse(
            status=pb.ReaderGroupConfigResponse.SUCCESS, config=_configuration_message(stored)
        )

    async def delete_reader_group(self, request: pb.ReaderGroupInfo) -> pb.DeleteReaderGroupStatus:
        """Return when the group is deleted and its name is free."""
        scope, group = _known(request.scope, request.readerGroup)
        what = f"deleting reader group {scope}/{group}"
        await self._waits.accepted(what, lambda: self._groups.delete_reader_group(scope, group, request.readerGroupId))
        await self._waits.until_gone(what, lambda: self._groups.get_reader_group(scope, group), _is_not_being_deleted)
        return pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.SUCCESS)

    async def _settled(self, what: str, scope: str, group: str) -> ReaderGroup:
        return await self._waits.until(
            what,
            lambda: self._groups.get_reader_group(scope, group),
            lambda present: present.state not in (ReaderGroupState.CREATING, ReaderGroupState.UPDATING),
        )


def _is_not_being_deleted(group: ReaderGroup) -> bool:
    """Whether this is another group, which was created since the deletion."""
    return group.state is not ReaderGroupState.DELETING


def _known(scope: str, group: str) -> tuple[str, str]:
    """Raises NotFoundError for names that no scope or no reader group can have."""
    try:
        return messages.known_scope(scope), check_known_name("reader group", group)
    except InvalidRequestError as error:
        raise NotFoundError(f"there is no reader group {scope}/{group[:300]!r}") from error


def _configuration_of(config: pb.ReaderGroupConfiguration) -> ReaderGroupConfiguration:
    """Raises InvalidRequestError for an invalid configuration."""
    starts, ends = _cuts_of(config.startingStreamCuts), _cuts_of(config.endingStreamCuts)
    if not 0 <= config.retentionType < len(_RETENTION_MODES):
        raise InvalidRequestError(f"retention type {config.retentionType} of a reader group is unknown")
    return ReaderGroupConfiguration(
        streams=tuple(GroupStream(*name, starts.get(name), ends.get(name)) for name in dict.fromkeys((*starts, *ends))),
        retention=_RETENTION_MODES[config.retentionType],
        group_refresh_ms=config.groupRefreshTimeMillis,
        automatic_checkpoint_interval_ms=config.automaticCheckpointIntervalMillis,
        outstanding_checkpoints_max=config.maxOutstandingCheckpointRequest,
        rollover_size_bytes=max(0, config.rolloverSizeBytes),
    )


def _cuts_of(cuts: Iterable[pb.StreamCut]) -> dict[tuple[str, str], StreamCut | None]:
    """The cuts by scope and stream; None for a cut without segments, which means no bound."""
    named: dict[tuple[str, str], StreamCut | None] = {}
    for cut in cuts:
        scope = check_known_name("scope", cut.streamInfo.scope)
        stream = check_known_name("stream", cut.streamInfo.stream)
        named[scope, stream] = StreamCut.of(scope, stream, cut.cut) if cut.cut else None
    return named


def _configuration_message(group: ReaderGroup) -> pb.ReaderGroupConfiguration:
    configuration = group.configuration
    return pb.ReaderGroupConfiguration(
        scope=group.scope,
        readerGroupName=group.name,
        groupRefreshTimeMillis=configuration.group_refresh_ms,
        automaticCheckpointIntervalMillis=configuration.automatic_checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=configuration.outstanding_checkpoints_max,
        retentionType=_RETENTION_MODES.index(configuration.retention),
        generation=group.generation,
        readerGroupId=group.group_id,
        startingStreamCuts=[_cut_message(stream, stream.start) for stream in configuration.streams],
        endingStreamCuts=[_cut_message(stream, stream.end) for stream in configuration.streams],
        rolloverSizeBytes=configuration.rollover_size_bytes,
    )


def _cut_message(stream: GroupStream, cut: StreamCut | None) -> pb.StreamCut:
    """The message of a cut; without segments if there is no bound."""
    info = pb.StreamInfo(scope=stream.scope, stream=stream.stream)
    return pb.StreamCut(streamInfo=info, cut={} if cut is None else cut.offsets)


# The rpcs of Pravega's controller service about subscribers: reader groups that retention waits for.


class SubscriberRpcs:
    """Each method gets the request message and returns the reply; they block and are called in threads."""

    def __init__(self, subscribers: SubscriberService, groups: ReaderGroupService) -> None:
        self._subscribers = subscribers
        self._groups = groups

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {"listSubscribers": self.list_subscribers, "updateSubscriberStreamCut": self.update_stream_cut}

    def list_subscribers(self, request: pb.StreamInfo) -> pb.SubscribersResponse:
        """One list of all subscribers, because the message has no pages."""
        scope, stream = messages.known_stream(request)
        page = self._subscribers.list_subscribers(scope, stream, PAGE_ITEMS_MAX)
        names = [item.name for item in page.items]
        while page.next_after is not None:
            page = self._subscribers.list_subscribers(scope, stream, PAGE_ITEMS_MAX, page.next_after)
            names += [item.name for item in page.items]
        return pb.SubscribersResponse(subscribers=names)

    def update_stream_cut(self, request: pb.SubscriberStreamCut) -> pb.UpdateSubscriberStatus:
        """Publish a position of the group with the id of the request.

        A group that was created again since has another id, and its generations start at 0 again. So it is refused.
        """
        scope, stream = messages.known_stream(request.streamCut.streamInfo)
        self._check_group(request.subscriber, request.readerGroupId)
        self._subscribers.update_stream_cut(
            scope, stream, request.subscriber, request.generation, dict(request.streamCut.cut)
        )
        return pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.SUCCESS)

    def _check_group(self, subscriber: str, group_id: str) -> None:
        scope, _, name = subscriber.rpartition("/")
        if not (scope and group_id):
            return
        try:
            group = self._groups.get_reader_group(scope, name)
        except NotFoundError:
            return  # There is no reader group of this name: the subscriber was registered without one.
        if group.group_id != group_id.lower():
            raise IllegalStateError(
                f"reader group {subscriber} was created again: its id is {group.group_id}, not {group_id[:100]}",
                code="generation_mismatch",
            )
