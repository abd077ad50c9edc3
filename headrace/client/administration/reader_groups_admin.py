"""Reader groups over the controller's HTTP API: `admin.reader_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from headrace.api.plans import Chunks
from headrace.api.reader_groups import (
    CreateReaderGroupRequest,
    ReaderGroupSettings,
    ReaderGroupView,
    ResetReaderGroupRequest,
    UpdateReaderGroupRequest,
)
from headrace.api.segments import EpochSegments, SegmentEndpoint
from headrace.client.administration.polling import chunks_of_segment, items_of_pages, until
from headrace.client.administration.scoped_names import scope_and_name
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.limits import PAGE_ITEMS_DEFAULT
from headrace.model.names import check_reader_group_name, check_scope_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroupConfiguration,
    check_group_id,
    state_stream_name,
)

_PASSING = ("CREATING", "UPDATING")


def _configuration_of(scope: str, streams: Sequence[str]) -> ReaderGroupConfiguration:
    names = [scope_and_name(name, None) if "/" in name else (scope, name) for name in streams]
    return ReaderGroupConfiguration(tuple(GroupStream(*name) for name in names))


@checked_calls()
class AsyncReaderGroupsAdmin:
    """Creates, changes and deletes reader groups. The methods wait for background work unless `wait=False`."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def create(
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
        scope, group = scope_and_name(scope, group)
        if (configuration is None) == (streams is None):
            raise InvalidRequestError("create: expected either streams or a configuration")
        configuration = configuration or _configuration_of(scope, streams or ())
        body = CreateReaderGroupRequest(
            **ReaderGroupSettings.of(configuration).fields(),
            group=check_reader_group_name(group),
            group_id=check_group_id(group_id) if group_id is not None else str(uuid4()),
        ).to_json()
        answer = await self._api.request("POST", _groups(scope), body=body)
        return await self._settled(parsed(ReaderGroupView.from_json, answer), wait=wait)

    async def get(self, scope: str, group: str) -> ReaderGroupView:
        """Returns a group. Raises NotFoundError if there is no such group."""
        return parsed(ReaderGroupView.from_json, await self._api.request("GET", _path(scope, group)))

    async def list(self, scope: str) -> list[str]:
        """Returns the names of the scope's groups, sorted. Raises NotFoundError if there is no such scope."""
        return [name async for name in items_of_pages(self._api, _groups(scope), "readerGroups", str)]

    async def update(
        self, known: ReaderGroupView, configuration: ReaderGroupConfiguration, *, wait: bool = True
    ) -> ReaderGroupView:
        """Gives the group `known` another configuration. Its generation increases by one.

        Raises:
            IllegalStateError: code "reader_group_mismatch": the group has changed since; read it again.
            NotFoundError: the group was deleted; or code "stream_not_found".
        """
        body = UpdateReaderGroupRequest(
            **ReaderGroupSettings.of(configuration).fields(), group_id=known.group_id, generation=known.generation
        ).to_json()
        answer = await self._api.request("PUT", _path(known.scope, known.group), body=body)
        return await self._settled(parsed(ReaderGroupView.from_json, answer), wait=wait)

    async def reset(self, known: ReaderGroupView, *, wait: bool = True) -> ReaderGroupView:
        """Moves the readers of the group `known` back to its start cuts. Raises the same errors as `update`."""
        body = ResetReaderGroupRequest(known.group_id, known.generation).to_json()
        answer = await self._api.request(
            "POST", f"{_path(known.scope, known.group)}/reset", body=body, repeatable=False
        )
        return await self._settled(parsed(ReaderGroupView.from_json, answer), wait=wait)

    async def delete(self, known: ReaderGroupView, *, wait: bool = True) -> None:
        """Deletes the group `known`.

        Raises IllegalStateError, code "reader_group_mismatch", if another group has the name now.
        """
        path = _path(known.scope, known.group)
        await self._api.request("DELETE", path, query={"readerGroupId": known.group_id})
        if wait:
            await until(f"deleting reader group {known.scope}/{known.group}", lambda: self._is_gone(known), bool)

    async def state_segment(self, scope: str, group: str) -> int:
        """Returns the id of the segment in which the group's readers keep their state.

        It is 0 only for the first group of a name: a group that is created again has another segment.

        Raises:
            NotFoundError: there is no such group, or it is being deleted.
        """
        answer = await self._api.request("GET", f"{_state_stream(scope, group)}/segments")
        segments = parsed(EpochSegments.from_json, answer).segments
        if len(segments) != 1:
            raise NotFoundError(f"reader group {scope}/{group} has no state any more: it is being deleted")
        return segments[0].segment_id

    async def state_segment_endpoint(self, scope: str, group: str, segment_id: int | None = None) -> SegmentEndpoint:
        """Returns the address of the store of a segment of the group's state, by default of the present one."""
        wanted = await self.state_segment(scope, group) if segment_id is None else segment_id
        path = f"{_state_stream(scope, group)}/segments/{wanted}/endpoint"
        return parsed(SegmentEndpoint.from_json, await self._api.request("GET", path, query=self._api.network_query))

    async def state_chunks(
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
        return await chunks_of_segment(
            self._api,
            _state_stream(scope, group),
            segment_id,
            from_offset=from_offset,
            to_offset=to_offset,
            limit=limit,
        )

    async def _settled(self, view: ReaderGroupView, *, wait: bool) -> ReaderGroupView:
        if not wait or view.state not in _PASSING:
            return view
        what = f"{view.scope}/{view.group} in state {view.state}"
        return await until(
            what, lambda: self.get(view.scope, view.group), lambda present: present.state not in _PASSING
        )

    async def _is_gone(self, known: ReaderGroupView) -> bool:
        try:
            return (await self.get(known.scope, known.group)).group_id != known.group_id
        except NotFoundError:
            return True


def _groups(scope: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/reader-groups"


def _state_stream(scope: str, group: str) -> str:
    stream = state_stream_name(check_reader_group_name(group))
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{stream}"


def _path(scope: str, group: str) -> str:
    return f"{_groups(scope)}/{check_reader_group_name(group)}"
