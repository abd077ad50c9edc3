"""`ReaderGroupsAdmin` for programs without an event loop; thread-safe.

Generated from `administration.reader_groups_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.plans import Chunks
from headrace.api.reader_groups import ReaderGroupView
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.reader_groups_admin import AsyncReaderGroupsAdmin
from headrace.client.loop_thread import LoopCaller
from headrace.model.limits import PAGE_ITEMS_DEFAULT
from headrace.model.reader_groups import ReaderGroupConfiguration


class ReaderGroupsAdmin:
    """Creates, changes and deletes reader groups. The methods wait for background work unless `wait=False`."""

    def __init__(self, thread: LoopCaller, core: AsyncReaderGroupsAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(
        self,
        scope: str,
        group: str | None = None,
        configuration: ReaderGroupConfiguration | None = None,
        *,
        streams: Sequence[str] | None = None,
        group_id: str | None = None,
        wait: bool = True,
    ) -> ReaderGroupView:
        """Creates a group of some streams, or with another configuration.

            admin.reader_groups.create("shop/billing", streams=["orders"])

        `streams` are names in the group's scope, or `scope/stream`. The group has the id `group_id`, by default a
        random one. An existing group is returned unchanged. The caller can detect this by its `group_id`.

        Raises:
            InvalidRequestError: there are neither streams nor a configuration, or both.
            NotFoundError: there is no such scope; or code "stream_not_found".
        """
        return self._thread.run(
            self._core.create(scope, group, configuration, streams=streams, group_id=group_id, wait=wait)
        )

    def get(self, scope: str, group: str) -> ReaderGroupView:
        """Returns a group. Raises NotFoundError if there is no such group."""
        return self._thread.run(self._core.get(scope, group))

    def list(self, scope: str) -> list[str]:
        """Returns the names of the scope's groups, sorted. Raises NotFoundError if there is no such scope."""
        return self._thread.run(self._core.list(scope))

    def update(
        self, known: ReaderGroupView, configuration: ReaderGroupConfiguration, *, wait: bool = True
    ) -> ReaderGroupView:
        """Gives the group `known` another configuration. Its generation increases by one.

        Raises:
            IllegalStateError: code "reader_group_mismatch": the group has changed since; read it again.
            NotFoundError: the group was deleted; or code "stream_not_found".
        """
        return self._thread.run(self._core.update(known, configuration, wait=wait))

    def reset(self, known: ReaderGroupView, *, wait: bool = True) -> ReaderGroupView:
        """Moves the readers of the group `known` back to its start cuts. Raises the same errors as `update`."""
        return self._thread.run(self._core.reset(known, wait=wait))

    def delete(self, known: ReaderGroupView, *, wait: bool = True) -> None:
        """Deletes the group `known`.

        Raises IllegalStateError, code "reader_group_mismatch", if another group has the name now.
        """
        self._thread.run(self._core.delete(known, wait=wait))

    def state_segment(self, scope: str, group: str) -> int:
        """Returns the id of the segment in which the group's readers keep their state.

        It is 0 only for the first group of a name: a group that is created again has another segment.

        Raises:
            NotFoundError: there is no such group, or it is being deleted.
        """
        return self._thread.run(self._core.state_segment(scope, group))

    def state_segment_endpoint(self, scope: str, group: str, segment_id: int | None = None) -> SegmentEndpoint:
        """Returns the address of the store of a segment of the group's state, by default of the present one."""
        return self._thread.run(self._core.state_segment_endpoint(scope, group, segment_id))

    def state_chunks(
        self,
        scope: str,
        group: str,
        segment_id: int,
        *,
        from_offset: int,
        to_offset: int,
        limit: int = PAGE_ITEMS_DEFAULT,
    ) -> Chunks:
        """Returns links to bytes of a segment of the group's state in S3, as `Admin.chunks` of those of a stream."""
        return self._thread.run(
            self._core.state_chunks(scope, group, segment_id, from_offset=from_offset, to_offset=to_offset, limit=limit)
        )
