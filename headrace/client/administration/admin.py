"""Scopes, streams, segments and stream cuts over the controller's HTTP API.

Create, update, truncate, scale, seal and delete run in the background; the methods wait for them unless `wait=False`.
Every method raises the errors of `headrace.model.errors` that the controller reports, and UnavailableError if the
controller cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.client.administration.ends import END_IN_QUERY, AnyEnd, current_end
from headrace.client.administration.polling import chunks_of_segment, items_of_pages, until
from headrace.client.http_api import HttpApi, parsed
from headrace.client.lazy_imports import lazy_names, lazy_part
from headrace.model.arguments import checked_calls
from headrace.model.errors import (
    AlreadyExistsError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    TruncatedError,
)
from headrace.model.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from headrace.model.log_classes import LogClass
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.segments import KeyRange, segment_epoch
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.api.plans import (
        Chunks,
        NextCutView,
        OnTruncation,
        RangePlan,
        RangeToPlan,
    )
    from headrace.api.segments import (
        EpochSegments,
        RangesBetween,
        SegmentEndpoint,
        SegmentView,
        StartedSegment,
        Successors,
    )
    from headrace.api.streams import (
        EpochHistory,
        ScaleProgress,
        ScaleState,
        ScalingEvent,
        StreamSummary,
        StreamView,
    )
    from headrace.client.administration.operators_admin import AsyncClusterAdmin, AsyncDeadLettersAdmin
    from headrace.client.administration.reader_groups_admin import AsyncReaderGroupsAdmin
    from headrace.client.administration.retention_admin import AsyncRetentionAdmin, AsyncSubscribersAdmin
    from headrace.client.administration.tables_admin import AsyncTablesAdmin
    from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin
    from headrace.client.administration.watermarks_admin import AsyncWatermarksAdmin
    from headrace.client.client_zone import ClientZone
    from headrace.client.delegation_tokens import AsyncDelegationTokens
    from headrace.client.trust import AsyncTrust, TlsOptions
    from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy

if not TYPE_CHECKING:  # the check of arguments asks for the types of parameters
    __getattr__ = lazy_names(
        __name__,
        {
            "OnTruncation": "headrace.api.plans",
            "RangeToPlan": "headrace.api.plans",
            "RetentionPolicy": "headrace.model.stream_configuration",
            "ScalingPolicy": "headrace.model.stream_configuration",
        },
    )

CutLike = StreamCut | Mapping[int, int] | None


@checked_calls()
class AsyncAdmin:
    """Administration of one Headrace deployment."""

    def __init__(self, api: HttpApi, tls: TlsOptions | None = None) -> None:
        self._api = api
        self._tls = tls

    @property
    def zone(self) -> ClientZone:
        """Where this client runs."""
        return self._api.zone

    @lazy_part
    def cluster(self) -> AsyncClusterAdmin:
        from headrace.client.administration.operators_admin import AsyncClusterAdmin

        return AsyncClusterAdmin(self._api)

    @lazy_part
    def dead_letters(self) -> AsyncDeadLettersAdmin:
        from headrace.client.administration.operators_admin import AsyncDeadLettersAdmin

        return AsyncDeadLettersAdmin(self._api)

    @lazy_part
    def delegation_tokens(self) -> AsyncDelegationTokens:
        from headrace.client.delegation_tokens import AsyncDelegationTokens

        return AsyncDelegationTokens(self._api)

    @lazy_part
    def trust(self) -> AsyncTrust:
        from headrace.client.trust import AsyncTrust

        return AsyncTrust(self._api, self._tls)

    @lazy_part
    def watermarks(self) -> AsyncWatermarksAdmin:
        from headrace.client.administration.watermarks_admin import AsyncWatermarksAdmin

        return AsyncWatermarksAdmin(self._api)

    @lazy_part
    def retention(self) -> AsyncRetentionAdmin:
        from headrace.client.administration.retention_admin import AsyncRetentionAdmin

        return AsyncRetentionAdmin(self._api)

    @lazy_part
    def subscribers(self) -> AsyncSubscribersAdmin:
        from headrace.client.administration.retention_admin import AsyncSubscribersAdmin

        return AsyncSubscribersAdmin(self._api)

    @lazy_part
    def reader_groups(self) -> AsyncReaderGroupsAdmin:
        from headrace.client.administration.reader_groups_admin import AsyncReaderGroupsAdmin

        return AsyncReaderGroupsAdmin(self._api)

    @lazy_part
    def tables(self) -> AsyncTablesAdmin:
        from headrace.client.administration.tables_admin import AsyncTablesAdmin

        return AsyncTablesAdmin(self._api, self.delegation_tokens, self.trust)

    @lazy_part
    def transactions(self) -> AsyncTransactionsAdmin:
        from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin

        return AsyncTransactionsAdmin(self._api)

    async def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        """Creates a scope. Raises AlreadyExistsError if it exists, unless `exist_ok`."""
        body = {"scopeName": check_scope_name(scope)}
        try:
            await self._api.request("POST", "/v1/scopes", body=body, repeatable=exist_ok)
        except AlreadyExistsError:
            if not exist_ok:
                raise

    async def list_scopes(self) -> list[str]:
        """Returns the names of all scopes, sorted."""
        return [item async for item in items_of_pages(self._api, "/v1/scopes", "scopes", _scope_name)]

    async def scope_exists(self, scope: str) -> bool:
        try:
            await self._api.request("GET", f"/v1/scopes/{check_scope_name(scope)}")
        except NotFoundError:
            return False
        return True

    async def delete_scope(self, scope: str, *, recursive: bool = False, wait: bool = True) -> None:
        """Deletes an empty scope, or with `recursive` a scope with its reader groups, streams and tables.

        Raises:
            IllegalStateError: code "scope_not_empty": the scope is not empty, and `recursive` is false.
        """
        path = f"/v1/scopes/{check_scope_name(scope)}"
        if not recursive:
            await self._api.request("DELETE", path)
            return
        await self._api.request("DELETE", path, query={"recursive": "true"})
        if wait:
            await until(f"deleting scope {scope}", lambda: self.scope_exists(scope), lambda exists: not exists)

    async def create_stream(
        self,
        scope: str,
        stream: str,
        *,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
        timestamp_aggregation_timeout_ms: int = 0,
        rollover_size_bytes: int = 0,
        acknowledged_by: LogClass = LogClass.STORES,
        exist_ok: bool = False,
        wait: bool = True,
    ) -> StreamView:
        """Creates a stream with the scaling policy `scaling`, by default a fixed number of two segments.

        With `acknowledged_by` S3 an append is acknowledged when S3 has it: later, and cheaper at high rates. This can
        never be changed.

        With `exist_ok` an existing stream is returned unchanged, even if its configuration differs.

        Raises:
            AlreadyExistsError: the stream exists, and `exist_ok` is false.
            NotFoundError: there is no such scope.
            IllegalStateError: code "no_s3_containers": the deployment has no containers for the class S3.
        """
        from headrace.api.streams import CreateStreamRequest, StreamView
        from headrace.model.stream_configuration import ScalingPolicy

        body = CreateStreamRequest(
            stream=check_stream_name(stream),
            scaling=scaling or ScalingPolicy.fixed(2),
            retention=retention,
            tags=tuple(tags),
            timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
            rollover_size_bytes=rollover_size_bytes,
            log_class=acknowledged_by,
        ).to_json()
        path = f"/v1/scopes/{check_scope_name(scope)}/streams"
        try:
            answer = await self._api.request("POST", path, body=body, repeatable=exist_ok)
            view = parsed(StreamView.from_json, answer)
        except AlreadyExistsError:
            if not exist_ok:
                raise
            view = await self.get_stream(scope, stream)
        if wait and view.state == "CREATING":
            view = await self._state_after(scope, stream, "CREATING")
        return view

    async def get_stream(self, scope: str, stream: str) -> StreamView:
        from headrace.api.streams import StreamView

        return parsed(StreamView.from_json, await self._api.request("GET", _path(scope, stream)))

    async def list_streams(self, scope: str, *, tag: str | None = None, prefix: str = "") -> list[StreamSummary]:
        """Lists the streams of a scope by name; with `tag` or `prefix` only those that have it."""
        from headrace.api.streams import StreamSummary

        path = f"/v1/scopes/{check_scope_name(scope)}/streams"
        query: dict[str, str | int] = {"limit": PAGE_ITEMS_MAX}
        query |= {name: text for name, text in (("tag", tag), ("prefix", prefix or None)) if text is not None}
        return [item async for item in items_of_pages(self._api, path, "streams", StreamSummary.from_json, query)]

    async def update_stream(
        self,
        scope: str,
        stream: str,
        *,
        scaling: ScalingPolicy,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
        timestamp_aggregation_timeout_ms: int = 0,
        rollover_size_bytes: int = 0,
        expected_version: int | None = None,
        wait: bool = True,
    ) -> StreamView:
        """Replaces the whole configuration. Parameters that are left out get the default of a new stream.

        Pass as `expected_version` the `configuration_version` of the view from which the new configuration was made.
        The update then fails if another update came first.

        Raises:
            SealedError: the stream is sealed.
            IllegalStateError: code "configuration_changed": another update came first; or the update was accepted, and
                rolled back later.
        """
        from headrace.api.streams import StreamUpdate, UpdateStreamRequest

        body = UpdateStreamRequest(
            scaling=scaling,
            retention=retention,
            tags=tuple(tags),
            timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
            rollover_size_bytes=rollover_size_bytes,
            expected_configuration_version=expected_version,
        ).to_json()
        answer = await self._api.request("PUT", _path(scope, stream), body=body)
        version = parsed(StreamUpdate.from_json, answer).configuration_version
        view = await (self._state_after(scope, stream, "UPDATING") if wait else self.get_stream(scope, stream))
        if wait and view.configuration_version < version:
            raise IllegalStateError(f"the update of {scope}/{stream} was rolled back: repeat it")
        return view

    async def truncate_stream(
        self, scope: str, stream: str, cut: StreamCut | Mapping[int, int], *, wait: bool = True
    ) -> None:
        """Deletes everything before a cut, which becomes the head. A cut that is the head changes nothing.

        Raises:
            TruncatedError: a part of the cut is before the head.
            InvalidRequestError: code "invalid_stream_cut".
            SealedError: the stream is sealed.
        """
        from headrace.api.stream_cuts import CutRequest, offsets_json

        path, body = f"{_path(scope, stream)}/truncate", CutRequest(offsets_json(cut)).to_json()
        accepted = False

        async def truncate() -> bool:
            nonlocal accepted
            try:
                answer = await self._api.request("POST", path, body=body)
            except TruncatedError:
                if accepted:
                    return True  # Another client has truncated further in the meantime.
                raise
            accepted = True
            return not wait or answer.get("streamState") != "TRUNCATING"

        await until(f"truncating {scope}/{stream}", truncate, bool)

    async def scaling_events(
        self, scope: str, stream: str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> list[ScalingEvent]:
        """Lists the scales between two times, oldest first. Both are included, in milliseconds since the Unix epoch."""
        from headrace.api.streams import ScalingEvents

        path = f"{_path(scope, stream)}/scaling-events"
        events: list[ScalingEvent] = []
        following: int | None = from_ms
        while following is not None:
            query = {"from": following} | ({} if to_ms is None else {"to": to_ms})
            answer = await self._api.request("GET", path, query=query)
            page = parsed(ScalingEvents.from_json, answer)
            events += page.events
            following = page.next_time_ms
        return events

    async def epoch_history(
        self, scope: str, stream: str, *, before: int | None = None, limit: int = PAGE_ITEMS_DEFAULT
    ) -> EpochHistory:
        """Returns a page of the stream's epochs, newest first: at most `limit`, with numbers below `before`.

        The next page is before `next_before`, None on the last one. In contrast to `scaling_events` it has all epochs,
        also those of transactions that were committed after a scale, and the lengths of the replaced segments.
        """
        from headrace.api.streams import EpochHistory

        query: dict[str, str | int] = {"limit": limit}
        if before is not None:
            query["before"] = before
        answer = await self._api.request("GET", f"{_path(scope, stream)}/epochs", query=query)
        return parsed(EpochHistory.from_json, answer)

    async def is_stream_cut_valid(self, scope: str, stream: str, cut: StreamCut | Mapping[int, int]) -> bool:
        """Whether a reader can start or stop at the cut: it belongs to the stream, between head and tail."""
        return await self._cut_problem(scope, stream, cut) is None

    async def check_stream_cut(
        self, scope: str, stream: str, cut: StreamCut | Mapping[int, int], *, retry_s: float | None = None
    ) -> None:
        """Raises the reason why a reader can neither start nor stop at the cut.

        A failed request is retried for `retry_s`, if not as the client's.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it is not a position of the stream, or is beyond its tail.
                Code "stream_recreated": it belongs to a deleted stream of this name.
            TruncatedError: a part of the cut is before the head.
            UnavailableError: the stream is being created.
        """
        problem = await self._cut_problem(scope, stream, cut, retry_s)
        if problem is not None:
            raise problem

    async def stream_cut_distance(
        self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None
    ) -> int:
        """Returns the number of bytes between two cuts. None means the head for `from_cut`, the tail for `to_cut`."""
        from headrace.api.stream_cuts import BetweenRequest, optional_offsets_json

        body = BetweenRequest(optional_offsets_json(from_cut), optional_offsets_json(to_cut)).to_json()
        answer = await self._api.request("POST", f"{_path(scope, stream)}/stream-cuts/distance", body=body)
        return parsed(lambda fields: int(fields["bytes"]), answer)

    async def seal_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Seals a stream, which then accepts no more events. Raises SealedError if it is sealed already."""
        from headrace.api.streams import StateRequest

        await self._api.request("PUT", f"{_path(scope, stream)}/state", body=StateRequest("SEALED").to_json())
        if wait:
            await self._state_after(scope, stream, "SEALING")

    async def freeze_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Freezes a stream: it refuses events and transactions until it is unfrozen, and its readers wait at its end.

        Does nothing if it is frozen. Open transactions are aborted. Raises SealedError if it is sealed.
        """
        from headrace.api.streams import StateRequest

        await self._api.request("PUT", f"{_path(scope, stream)}/state", body=StateRequest("FROZEN").to_json())
        if wait:
            await self._state_after(scope, stream, "FREEZING")

    async def unfreeze_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Lets a frozen stream accept events again. Does nothing if it is not frozen.

        Each of its segments gets a successor. Raises SealedError if it is sealed.
        """
        from headrace.api.streams import StateRequest

        await self._api.request("PUT", f"{_path(scope, stream)}/state", body=StateRequest("ACTIVE").to_json())
        if wait:
            await self._state_after(scope, stream, "UNFREEZING")

    async def delete_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Deletes a sealed stream. Raises IllegalStateError with code "stream_not_sealed" for any other."""
        await self._api.request("DELETE", _path(scope, stream))
        if wait:
            await until(f"deleting {scope}/{stream}", lambda: self._is_gone(scope, stream), bool)

    async def scale_stream(
        self,
        scope: str,
        stream: str,
        *,
        seal: Sequence[int],
        ranges: Sequence[tuple[float, float] | KeyRange],
        wait: bool = True,
    ) -> ScaleProgress:
        """Replaces the segments with the ids `seal` by segments with the key ranges `ranges`.

        Raises:
            InvalidRequestError: code "invalid_key_ranges": the ranges do not cover exactly those of the segments.
            HeadraceError: code "segment_not_active": an id is not that of an active segment.
        """
        from headrace.api.streams import NewRange, ScaleProgress, ScaleRequest, ScaleStatus

        if len(set(seal)) < len(seal):
            raise InvalidRequestError(f"scale_stream: seal is {list(seal)}, but must have each segment once")
        pairs = [(span.low, span.high) if isinstance(span, KeyRange) else span for span in ranges]
        body = ScaleRequest(tuple(seal), tuple(NewRange(*pair) for pair in pairs)).to_json()
        answer = await self._api.request("POST", f"{_path(scope, stream)}/scale", body=body)
        progress = parsed(ScaleProgress.from_json, answer)

        async def is_complete() -> bool:
            status = (await self.scale_status(scope, stream, progress.epoch)).status
            if status not in ("IN_PROGRESS", "SUCCESS"):
                raise IllegalStateError(f"the scale of {scope}/{stream} to epoch {progress.epoch} was rolled back")
            return status == "SUCCESS"

        if wait:
            await until(f"scaling {scope}/{stream}", is_complete, bool)
        return ScaleProgress(progress.epoch, ScaleStatus.SUCCESS if wait else progress.status, progress.segments)

    async def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleState:
        from headrace.api.streams import ScaleState

        answer = await self._api.request("GET", f"{_path(scope, stream)}/scale/{epoch}")
        return parsed(ScaleState.from_json, answer)

    async def segments(
        self, scope: str, stream: str, *, at: AnyEnd | int = "latest", epoch: int | None = None
    ) -> tuple[StartedSegment, ...]:
        """Lists the segments of an epoch, or at an end of the stream or a time (milliseconds since the Unix epoch)."""
        return (await self.epoch_segments(scope, stream, at=at, epoch=epoch)).segments

    async def epoch_segments(
        self, scope: str, stream: str, *, at: AnyEnd | int = "latest", epoch: int | None = None
    ) -> EpochSegments:
        """Like `segments`, with the number of the epoch and whether the stream is sealed."""
        from headrace.api.segments import EpochSegments

        point = at if isinstance(at, int) else END_IN_QUERY[current_end(at)]
        query: dict[str, str | int] = {"at": point} if epoch is None else {"epoch": epoch}
        answer = await self._api.request("GET", f"{_path(scope, stream)}/segments", query=query)
        return parsed(EpochSegments.from_json, answer)

    async def successors(self, scope: str, stream: str, segment_id: int, *, as_recorded: bool = False) -> Successors:
        """Lists the successors of a segment.

        With `as_recorded` also those of a truncated segment, where a client that was still using it continues.
        """
        from headrace.api.segments import Successors

        path = f"{_path(scope, stream)}/segments/{segment_id}/successors"
        answer = await self._api.request("GET", path, query={"asRecorded": "true"} if as_recorded else None)
        return parsed(Successors.from_json, answer)

    async def sealed_length(self, scope: str, stream: str, segment_id: int) -> int | None:
        """Returns the bytes of a sealed segment as the controller has recorded them; None if it may still grow.

        Raises:
            TruncatedError: a truncation has deleted the segment.
            NotFoundError: the stream does not have the segment.
        """
        found = await self.successors(scope, stream, segment_id)
        if found.segments:
            epoch = segment_epoch(found.segments[0].segment_id)
            page = await self.epoch_history(scope, stream, before=epoch + 1, limit=1)
            # A scale that runs has successors before the segment is sealed.
            return next((each.length for each in page.epochs[0].replaced if each.segment_id == segment_id), None)
        if found.sealed:
            return (await self.stream_cut(scope, stream, at="latest")).offsets.get(segment_id)
        return None

    async def predecessors(self, scope: str, stream: str, segment_id: int) -> tuple[SegmentView, ...]:
        from headrace.api.segments import Predecessors

        answer = await self._api.request("GET", f"{_path(scope, stream)}/segments/{segment_id}/predecessors")
        return parsed(Predecessors.from_json, answer).segments

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        """Returns the address of the segment's store. Retries for a while if no store owns the container now."""
        from headrace.api.segments import SegmentEndpoint

        path = f"{_path(scope, stream)}/segments/{segment_id}/endpoint"
        answer = await self._api.request("GET", path, query=self._api.network_query)
        return parsed(SegmentEndpoint.from_json, answer)

    async def stream_cut(self, scope: str, stream: str, *, at: AnyEnd = "latest") -> StreamCut:
        """Returns the cut at "earliest" (the first retained byte) or "latest" (after the last acknowledged event)."""
        from headrace.api.stream_cuts import StreamCutView

        answer = await self._api.request(
            "GET", f"{_path(scope, stream)}/stream-cut", query={"at": END_IN_QUERY[current_end(at)]}
        )
        return parsed(StreamCutView.from_json, answer).cut

    async def segments_between(
        self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None
    ) -> RangesBetween:
        """Lists the ranges of bytes between two cuts. None means the head for `from_cut`, the tail for `to_cut`."""
        from headrace.api.segments import RangesBetween
        from headrace.api.stream_cuts import BetweenRequest, optional_offsets_json

        body = BetweenRequest(optional_offsets_json(from_cut), optional_offsets_json(to_cut)).to_json()
        answer = await self._api.request("POST", f"{_path(scope, stream)}/segments/between", body=body)
        return parsed(RangesBetween.from_json, _named(scope, stream) | answer)

    async def chunks(
        self,
        scope: str,
        stream: str,
        segment_id: int,
        *,
        from_offset: int,
        to_offset: int,
        limit: int = PAGE_ITEMS_DEFAULT,
    ) -> Chunks:
        """Returns links to read the bytes `[from_offset, to_offset)` of a segment directly from S3."""
        return await chunks_of_segment(
            self._api,
            _path(scope, stream),
            segment_id,
            from_offset=from_offset,
            to_offset=to_offset,
            limit=limit,
        )

    async def next_cut(
        self,
        scope: str,
        stream: str,
        start: CutLike = None,
        *,
        end: CutLike = None,
        bytes_max: int | None = None,
        strict_key_order: bool = False,
        on_truncation: OnTruncation = "fail",
    ) -> NextCutView:
        """Plans the next batch after `start`, of about `bytes_max` bytes: where it ends, and its ranges.

        None means the head for `start`, the tail for `end`, and everything for `bytes_max`. A batch may also end early
        because it has many segments; then `reached_end` is false. With `strict_key_order` no segment is in one batch
        with those that it replaced.

        Raises:
            TruncatedError: bytes after `start` were truncated (details: "lost", "lostBytes", "head", "headText"),
                unless `on_truncation` is "skip": the batch then starts at the head there.
            InvalidRequestError: code "stream_recreated": the stream was deleted and created again since `start`.
        """
        from headrace.api.plans import NextCutRequest, NextCutView
        from headrace.api.stream_cuts import optional_offsets_json

        body = NextCutRequest(
            optional_offsets_json(start), optional_offsets_json(end), bytes_max, strict_key_order, on_truncation
        ).to_json()
        answer = await self._api.request("POST", f"{_path(scope, stream)}/next-cut", body=body)
        return parsed(NextCutView.from_json, _named(scope, stream) | answer)

    async def range_plans(
        self, scope: str, stream: str, ranges: Sequence[RangeToPlan], *, links: bool = True
    ) -> tuple[RangePlan, ...]:
        """Splits ranges into pieces, with links to their bytes in S3 and the addresses of their stores."""
        from headrace.api.plans import RangePlans, RangePlansRequest

        body = RangePlansRequest(tuple(ranges), links).to_json()
        path, query = f"{_path(scope, stream)}/range-plans", self._api.network_query
        answer = await self._api.request("POST", path, body=body, query=query)
        return parsed(RangePlans.from_json, answer).plans

    async def _cut_problem(
        self, scope: str, stream: str, cut: StreamCut | Mapping[int, int], retry_s: float | None = None
    ) -> HeadraceError | None:
        from headrace.api.stream_cuts import CutRequest, ExplainedCutCheck, offsets_json

        path = f"{_path(scope, stream)}/stream-cuts/check"
        body, query = CutRequest(offsets_json(cut)).to_json(), {"explain": "true"}
        answer = await self._api.request("POST", path, query=query, body=body, retry_s=retry_s)
        return parsed(ExplainedCutCheck.from_json, answer).error()

    async def _state_after(self, scope: str, stream: str, passing: str) -> StreamView:
        """Waits until the stream is not in the state `passing`; returns the stream."""
        what = f"{scope}/{stream} in state {passing}"
        return await until(what, lambda: self.get_stream(scope, stream), lambda view: view.state != passing)

    async def _is_gone(self, scope: str, stream: str) -> bool:
        try:
            await self.get_stream(scope, stream)
        except NotFoundError:
            return True
        return False


def _path(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _named(scope: str, stream: str) -> dict[str, Any]:
    """What controllers up to release 0.2 leave out of the ranges between two cuts."""
    return {"scopeName": scope, "streamName": stream}


def _scope_name(document: Mapping[str, Any]) -> str:
    return str(document["scopeName"])
