"""The shared state of one reader group: where it is stored, and how it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from headrace.api.plans import Chunks
from headrace.api.reader_groups import ReaderGroupView
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.defaults import RETRY_TIMEOUT_S
from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream, StoredRevisions
from headrace.client.single_segment.state_synchronizer import AsyncStateSynchronizer, StateForm
from headrace.codec.group_state import parse_state, parse_update, state_bytes, update_bytes
from headrace.model.errors import NotFoundError, TruncatedError
from headrace.model.group_state import GroupState, SharedConfiguration, initial_state
from headrace.model.group_updates import GroupUpdate, NoteUpdating, ReplaceState
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import ReaderGroupState
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut

END_UNBOUNDED = (1 << 63) - 1
"""The end of a segment that is read wholly: Pravega's clients store the largest number."""

_FORM: StateForm[GroupState, GroupUpdate] = StateForm(
    apply=lambda state, update: update.applied_to(state),
    state_bytes=state_bytes,
    parse_state=parse_state,
    update_bytes=update_bytes,
    parse_update=parse_update,
)


class GroupSynchronizer:
    """A copy of the state of one group, its own connection included."""

    def __init__(
        self,
        admin: AsyncAdmin,
        scope: str,
        group: str,
        on_applied: Callable[[GroupUpdate, GroupState], None] | None = None,
        give_up_after_s: float = RETRY_TIMEOUT_S,
        *,
        from_s3: bool = False,
    ) -> None:
        self._admin = admin
        self._from_s3 = from_s3
        self.scope, self.group = scope, group
        self._on_applied = on_applied
        self._give_up_after_s = give_up_after_s
        self._entries: AsyncStateSynchronizer[GroupState, GroupUpdate] | None = None
        self._stream: AsyncRevisionedStream | None = None

    async def open(self, *, initialize: bool = True) -> None:
        """Brings the copy up to date. A group without a state gets its first one, from the controller's configuration.

        Raises:
            NotFoundError: there is no such group; or code "group_state_not_found": without `initialize`, it has no
                state.
            UnavailableError: the store of the state could not be reached for too long.
            CorruptError: the stream holds something else than the state of a reader group.
        """
        view = await self._admin.reader_groups.get(self.scope, self.group)
        segment = await self._admin.reader_groups.state_segment(self.scope, self.group)
        source = _StateSource(self._admin, self.group)
        if self._from_s3:
            stream: AsyncRevisionedStream = StoredRevisions(source, self.scope, view.state_stream, segment)
        else:
            owner = f"reader group {self.scope}/{self.group}"
            stream = AsyncRevisionedStream(
                source, self.scope, view.state_stream, segment, self._give_up_after_s, owner=owner
            )
        self._stream = stream
        self._entries = AsyncStateSynchronizer(stream, _FORM, self._on_applied)
        try:
            if await self._entries.fetch() is None:
                if not initialize:
                    raise NotFoundError(
                        f"reader group {self.scope}/{self.group} has no state: no reader has joined it yet",
                        code="group_state_not_found",
                    )
                await self._entries.initialize(await self.state_of(view))
        except BaseException:
            await self._entries.close()
            raise

    @property
    def entries(self) -> AsyncStateSynchronizer[GroupState, GroupUpdate]:
        assert self._entries is not None, "`open` comes first"
        return self._entries

    @property
    def state(self) -> GroupState:
        state = self.entries.state
        assert state is not None, "`open` has made a state"
        return state

    async def fetch(self) -> GroupState:
        await self.entries.fetch()
        return self.state

    async def time_of(self, revision: int) -> datetime | None:
        """When the update before a revision was stored; None if it is not known, or no longer."""
        assert self._stream is not None, "`open` comes first"
        try:
            return await self._stream.time_of(revision)
        except TruncatedError:
            return None

    async def take_configuration(self, *, may_settle: bool) -> None:
        """Begins again with the controller's configuration, if it is newer than that of the state.

        With `may_settle`, the state no longer waits for a configuration if the controller has none on the way.
        """
        view = await self._admin.reader_groups.get(self.scope, self.group)
        if view.generation > self.state.configuration.generation:
            await self.begin_again(view)
        elif may_settle and view.state is ReaderGroupState.ACTIVE:
            await self.entries.update(
                lambda state: (
                    [NoteUpdating(False)]
                    if state.is_updating and state.configuration.generation == view.generation
                    else []
                )
            )

    async def begin_again(self, view: ReaderGroupView) -> None:
        """Replaces the state by the first one of this configuration, unless it has a configuration as new as this."""
        fresh = await self.state_of(view)
        await self.entries.update(
            lambda state: [ReplaceState(fresh)] if state.configuration.generation < view.generation else []
        )

    async def publish(self, cuts: Iterable[StreamCut]) -> None:
        """Tells retention that the group needs no event before these cuts; raises as `AsyncReaderGroup.publish`."""
        subscriber, generation = f"{self.scope}/{self.group}", self.state.configuration.generation
        for cut in cuts:
            await self._admin.subscribers.publish(cut.scope, cut.stream, subscriber, cut, generation=generation)

    async def state_of(self, view: ReaderGroupView) -> GroupState:
        """The state of a group without readers, at the starting positions of its configuration."""
        starts: dict[StreamSegmentName, int] = {}
        ends: dict[StreamSegmentName, int] = {}
        for stream in view.configuration.streams:
            start = stream.start or await self._admin.stream_cut(stream.scope, stream.stream, at="earliest")
            starts.update(_named(start))
            if stream.end is not None:
                end_positions = _named(stream.end).items()
                ends.update({name: END_UNBOUNDED if at == END_OF_SEGMENT else at for name, at in end_positions})
        return initial_state(_shared(view), starts, ends)

    async def close(self) -> None:
        if self._entries is not None:
            await self._entries.close()


class _StateSource:
    """Finds the state's segment for `SegmentConnections`, and what S3 has of it."""

    def __init__(self, admin: AsyncAdmin, group: str) -> None:
        self.delegation_tokens = admin.delegation_tokens
        self.trust = admin.trust
        self.zone = admin.zone
        self._admin = admin
        self._group = group

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        return await self._admin.reader_groups.state_segment_endpoint(scope, self._group, segment_id)

    async def chunks(
        self, scope: str, stream: str, segment_id: int, *, from_offset: int, to_offset: int, limit: int
    ) -> Chunks:
        return await self._admin.reader_groups.state_chunks(
            scope, self._group, segment_id, from_offset=from_offset, to_offset=to_offset, limit=limit
        )


def _shared(view: ReaderGroupView) -> SharedConfiguration:
    configuration = view.configuration
    return SharedConfiguration(
        starts={stream.scoped_name: _offsets(stream.start) for stream in configuration.streams},
        ends={stream.scoped_name: _offsets(stream.end) for stream in configuration.streams},
        group_id=view.group_id,
        generation=view.generation,
        retention=configuration.retention,
        group_refresh_ms=configuration.group_refresh_ms,
        automatic_checkpoint_interval_ms=configuration.automatic_checkpoint_interval_ms,
        outstanding_checkpoints_max=configuration.outstanding_checkpoints_max,
    )


def _offsets(cut: StreamCut | None) -> Mapping[int, int] | None:
    return None if cut is None else cut.offsets


def _named(cut: StreamCut) -> dict[StreamSegmentName, int]:
    return {StreamSegmentName(cut.scope, cut.stream, identifier): offset for identifier, offset in cut.positions}
