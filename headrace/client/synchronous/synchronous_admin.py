"""`Admin` for programs without an event loop; thread-safe.

Generated from `administration.admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.client.administration.admin import AsyncAdmin, CutLike
from headrace.client.administration.ends import AnyEnd
from headrace.client.lazy_imports import lazy_part
from headrace.client.loop_thread import LoopCaller
from headrace.model.limits import PAGE_ITEMS_DEFAULT
from headrace.model.log_classes import LogClass
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.api.plans import Chunks, NextCutView, OnTruncation, RangePlan, RangeToPlan
    from headrace.api.segments import (
        EpochSegments,
        RangesBetween,
        SegmentEndpoint,
        SegmentView,
        StartedSegment,
        Successors,
    )
    from headrace.api.streams import EpochHistory, ScaleProgress, ScaleState, ScalingEvent, StreamSummary, StreamView
    from headrace.client.client_zone import ClientZone
    from headrace.client.synchronous.synchronous_delegation_tokens import DelegationTokens
    from headrace.client.synchronous.synchronous_operators_admin import ClusterAdmin, DeadLettersAdmin
    from headrace.client.synchronous.synchronous_reader_groups_admin import ReaderGroupsAdmin
    from headrace.client.synchronous.synchronous_retention_admin import RetentionAdmin, SubscribersAdmin
    from headrace.client.synchronous.synchronous_tables_admin import TablesAdmin
    from headrace.client.synchronous.synchronous_transactions_admin import TransactionsAdmin
    from headrace.client.synchronous.synchronous_trust import Trust
    from headrace.client.synchronous.synchronous_watermarks_admin import WatermarksAdmin
    from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy


class Admin:
    """Administration of one Headrace deployment."""

    def __init__(self, thread: LoopCaller, core: AsyncAdmin) -> None:
        self._thread = thread
        self._core = core

    @lazy_part
    def cluster(self) -> ClusterAdmin:
        from headrace.client.synchronous.synchronous_operators_admin import ClusterAdmin

        return ClusterAdmin(self._thread, self._core.cluster)

    @lazy_part
    def dead_letters(self) -> DeadLettersAdmin:
        from headrace.client.synchronous.synchronous_operators_admin import DeadLettersAdmin

        return DeadLettersAdmin(self._thread, self._core.dead_letters)

    @lazy_part
    def delegation_tokens(self) -> DelegationTokens:
        from headrace.client.synchronous.synchronous_delegation_tokens import DelegationTokens

        return DelegationTokens(self._thread, self._core.delegation_tokens)

    @lazy_part
    def trust(self) -> Trust:
        from headrace.client.synchronous.synchronous_trust import Trust

        return Trust(self._thread, self._core.trust)

    @lazy_part
    def watermarks(self) -> WatermarksAdmin:
        from headrace.client.synchronous.synchronous_watermarks_admin import WatermarksAdmin

        return WatermarksAdmin(self._thread, self._core.watermarks)

    @lazy_part
    def retention(self) -> RetentionAdmin:
        from headrace.client.synchronous.synchronous_retention_admin import RetentionAdmin

        return RetentionAdmin(self._thread, self._core.retention)

    @lazy_part
    def subscribers(self) -> SubscribersAdmin:
        from headrace.client.synchronous.synchronous_retention_admin import SubscribersAdmin

        return SubscribersAdmin(self._thread, self._core.subscribers)

    @lazy_part
    def reader_groups(self) -> ReaderGroupsAdmin:
        from headrace.client.synchronous.synchronous_reader_groups_admin import ReaderGroupsAdmin

        return ReaderGroupsAdmin(self._thread, self._core.reader_groups)

    @lazy_part
    def tables(self) -> TablesAdmin:
        from headrace.client.synchronous.synchronous_tables_admin import TablesAdmin

        return TablesAdmin(self._thread, self._core.tables)

    @lazy_part
    def transactions(self) -> TransactionsAdmin:
        from headrace.client.synchronous.synchronous_transactions_admin import TransactionsAdmin

        return TransactionsAdmin(self._thread, self._core.transactions)

    @property
    def zone(self) -> ClientZone:
        """Where this client runs."""
        return self._core.zone

    def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        """Creates a scope. Raises AlreadyExistsError if it exists, unless `exist_ok`."""
        self._thread.run(self._core.create_scope(scope, exist_ok=exist_ok))

    def list_scopes(self) -> list[str]:
        """Returns the names of all scopes, sorted."""
        return self._thread.run(self._core.list_scopes())

    def scope_exists(self, scope: str) -> bool:
        return self._thread.run(self._core.scope_exists(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False, wait: bool = True) -> None:
        """Deletes an empty scope, or with `recursive` a scope with its reader groups, streams and tables.

        Raises:
            IllegalStateError: code "scope_not_empty": the scope is not empty, and `recursive` is false.
        """
        self._thread.run(self._core.delete_scope(scope, recursive=recursive, wait=wait))

    def create_stream(
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
        return self._thread.run(
            self._core.create_stream(
                scope,
                stream,
                scaling=scaling,
                retention=retention,
                tags=tags,
                timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
                rollover_size_bytes=rollover_size_bytes,
                acknowledged_by=acknowledged_by,
                exist_ok=exist_ok,
                wait=wait,
            )
        )

    def get_stream(self, scope: str, stream: str) -> StreamView:
        return self._thread.run(self._core.get_stream(scope, stream))

    def list_streams(self, scope: str, *, tag: str | None = None, prefix: str = "") -> list[StreamSummary]:
        """Lists the streams of a scope by name; with `tag` or `prefix` only those that have it."""
        return self._thread.run(self._core.list_streams(scope, tag=tag, prefix=prefix))

    def update_stream(
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
        return self._thread.run(
            self._core.update_stream(
                scope,
                stream,
                scaling=scaling,
                retention=retention,
                tags=tags,
                timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
                rollover_size_bytes=rollover_size_bytes,
                expected_version=expected_version,
                wait=wait,
            )
        )

    def truncate_stream(
        self, scope: str, stream: str, cut: StreamCut | Mapping[int, int], *, wait: bool = True
    ) -> None:
        """Deletes everything before a cut, which becomes the head. A cut that is the head changes nothing.

        Raises:
            TruncatedError: a part of the cut is before the head.
            InvalidRequestError: code "invalid_stream_cut".
            SealedError: the stream is sealed.
        """
        self._thread.run(self._core.truncate_stream(scope, stream, cut, wait=wait))

    def scaling_events(
        self, scope: str, stream: str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> list[ScalingEvent]:
        """Lists the scales between two times, oldest first. Both are included, in milliseconds since the Unix epoch."""
        return self._thread.run(self._core.scaling_events(scope, stream, from_ms=from_ms, to_ms=to_ms))

    def epoch_history(
        self, scope: str, stream: str, *, before: int | None = None, limit: int = PAGE_ITEMS_DEFAULT
    ) -> EpochHistory:
        """Returns a page of the stream's epochs, newest first: at most `limit`, with numbers below `before`.

        The next page is before `next_before`, None on the last one. In contrast to `scaling_events` it has all epochs,
        also those of transactions that were committed after a scale, and the lengths of the replaced segments.
        """
        return self._thread.run(self._core.epoch_history(scope, stream, before=before, limit=limit))

    def is_stream_cut_valid(self, scope: str, stream: str, cut: StreamCut | Mapping[int, int]) -> bool:
        """Whether a reader can start or stop at the cut: it belongs to the stream, between head and tail."""
        return self._thread.run(self._core.is_stream_cut_valid(scope, stream, cut))

    def check_stream_cut(
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
        self._thread.run(self._core.check_stream_cut(scope, stream, cut, retry_s=retry_s))

    def stream_cut_distance(self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None) -> int:
        """Returns the number of bytes between two cuts. None means the head for `from_cut`, the tail for `to_cut`."""
        return self._thread.run(self._core.stream_cut_distance(scope, stream, from_cut, to_cut))

    def seal_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Seals a stream, which then accepts no more events. Raises SealedError if it is sealed already."""
        self._thread.run(self._core.seal_stream(scope, stream, wait=wait))

    def freeze_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Freezes a stream: it refuses events and transactions until it is unfrozen, and its readers wait at its end.

        Does nothing if it is frozen. Open transactions are aborted. Raises SealedError if it is sealed.
        """
        self._thread.run(self._core.freeze_stream(scope, stream, wait=wait))

    def unfreeze_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Lets a frozen stream accept events again. Does nothing if it is not frozen.

        Each of its segments gets a successor. Raises SealedError if it is sealed.
        """
        self._thread.run(self._core.unfreeze_stream(scope, stream, wait=wait))

    def delete_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Deletes a sealed stream. Raises IllegalStateError with code "stream_not_sealed" for any other."""
        self._thread.run(self._core.delete_stream(scope, stream, wait=wait))

    def scale_stream(
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
        return self._thread.run(self._core.scale_stream(scope, stream, seal=seal, ranges=ranges, wait=wait))

    def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleState:
        return self._thread.run(self._core.scale_status(scope, stream, epoch))

    def segments(
        self, scope: str, stream: str, *, at: AnyEnd | int = "latest", epoch: int | None = None
    ) -> tuple[StartedSegment, ...]:
        """Lists the segments of an epoch, or at an end of the stream or a time (milliseconds since the Unix epoch)."""
        return self._thread.run(self._core.segments(scope, stream, at=at, epoch=epoch))

    def epoch_segments(
        self, scope: str, stream: str, *, at: AnyEnd | int = "latest", epoch: int | None = None
    ) -> EpochSegments:
        """Like `segments`, with the number of the epoch and whether the stream is sealed."""
        return self._thread.run(self._core.epoch_segments(scope, stream, at=at, epoch=epoch))

    def successors(self, scope: str, stream: str, segment_id: int, *, as_recorded: bool = False) -> Successors:
        """Lists the successors of a segment.

        With `as_recorded` also those of a truncated segment, where a client that was still using it continues.
        """
        return self._thread.run(self._core.successors(scope, stream, segment_id, as_recorded=as_recorded))

    def sealed_length(self, scope: str, stream: str, segment_id: int) -> int | None:
        """Returns the bytes of a sealed segment as the controller has recorded them; None if it may still grow.

        Raises:
            TruncatedError: a truncation has deleted the segment.
            NotFoundError: the stream does not have the segment.
        """
        return self._thread.run(self._core.sealed_length(scope, stream, segment_id))

    def predecessors(self, scope: str, stream: str, segment_id: int) -> tuple[SegmentView, ...]:
        return self._thread.run(self._core.predecessors(scope, stream, segment_id))

    def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        """Returns the address of the segment's store. Retries for a while if no store owns the container now."""
        return self._thread.run(self._core.endpoint(scope, stream, segment_id))

    def stream_cut(self, scope: str, stream: str, *, at: AnyEnd = "latest") -> StreamCut:
        """Returns the cut at "earliest" (the first retained byte) or "latest" (after the last acknowledged event)."""
        return self._thread.run(self._core.stream_cut(scope, stream, at=at))

    def segments_between(
        self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None
    ) -> RangesBetween:
        """Lists the ranges of bytes between two cuts. None means the head for `from_cut`, the tail for `to_cut`."""
        return self._thread.run(self._core.segments_between(scope, stream, from_cut, to_cut))

    def chunks(
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
        return self._thread.run(
            self._core.chunks(scope, stream, segment_id, from_offset=from_offset, to_offset=to_offset, limit=limit)
        )

    def next_cut(
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
        return self._thread.run(
            self._core.next_cut(
                scope,
                stream,
                start,
                end=end,
                bytes_max=bytes_max,
                strict_key_order=strict_key_order,
                on_truncation=on_truncation,
            )
        )

    def range_plans(
        self, scope: str, stream: str, ranges: Sequence[RangeToPlan], *, links: bool = True
    ) -> tuple[RangePlan, ...]:
        """Splits ranges into pieces, with links to their bytes in S3 and the addresses of their stores."""
        return self._thread.run(self._core.range_plans(scope, stream, ranges, links=links))
