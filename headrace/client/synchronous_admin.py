"""`Admin` for programs without an event loop; thread-safe.

Generated from `admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.api.chunks import Chunks
from headrace.api.segments import EpochSegments, RangesBetween, SegmentEndpoint, SegmentView, Successors
from headrace.api.streams import ScaleProgress, ScalingEvent, StreamSummary, StreamView
from headrace.client.admin import AsyncAdmin, At, CutLike
from headrace.client.loop_thread import LoopThread
from headrace.client.synchronous_cluster_admin import ClusterAdmin
from headrace.client.synchronous_dead_letters_admin import DeadLettersAdmin
from headrace.client.synchronous_reader_groups_admin import ReaderGroupsAdmin
from headrace.client.synchronous_retention_admin import RetentionAdmin, SubscribersAdmin
from headrace.client.synchronous_tables_admin import TablesAdmin
from headrace.client.synchronous_transactions_admin import TransactionsAdmin
from headrace.client.synchronous_watermarks_admin import WatermarksAdmin
from headrace.model.limits import PAGE_ITEMS_DEFAULT
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.stream_cuts import StreamCut


class Admin:
    """Administration of one Headrace deployment."""

    def __init__(self, thread: LoopThread, core: AsyncAdmin) -> None:
        self._thread = thread
        self._core = core
        self.cluster = ClusterAdmin(thread, core.cluster)
        self.dead_letters = DeadLettersAdmin(thread, core.dead_letters)
        self.watermarks = WatermarksAdmin(thread, core.watermarks)
        self.retention = RetentionAdmin(thread, core.retention)
        self.subscribers = SubscribersAdmin(thread, core.subscribers)
        self.reader_groups = ReaderGroupsAdmin(thread, core.reader_groups)
        self.tables = TablesAdmin(thread, core.tables)
        self.transactions = TransactionsAdmin(thread, core.transactions)

    def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        """Raises AlreadyExistsError unless `exist_ok`."""
        self._thread.run(self._core.create_scope(scope, exist_ok=exist_ok))

    def list_scopes(self) -> list[str]:
        """All scopes, by name."""
        return self._thread.run(self._core.list_scopes())

    def scope_exists(self, scope: str) -> bool:
        return self._thread.run(self._core.scope_exists(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False, wait: bool = True) -> None:
        """Removes an empty scope, or with `recursive` one with all its reader groups, streams and tables.

        Raises:
            IllegalStateError: code "scope_not_empty" while the scope has something in it, and not `recursive`.
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
        exist_ok: bool = False,
        wait: bool = True,
    ) -> StreamView:
        """A new stream, of two segments unless `scaling` says otherwise.

        With `exist_ok` a stream that exists is returned as it is, whatever its configuration.

        Raises:
            AlreadyExistsError: the stream exists, and not `exist_ok`.
            NotFoundError: there is no such scope.
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
                exist_ok=exist_ok,
                wait=wait,
            )
        )

    def get_stream(self, scope: str, stream: str) -> StreamView:
        return self._thread.run(self._core.get_stream(scope, stream))

    def list_streams(self, scope: str, *, tag: str | None = None, prefix: str = "") -> list[StreamSummary]:
        """The streams of a scope, by name; with `tag` or `prefix` only those that carry or begin with it."""
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
        """Replaces the whole configuration; what is left out is as for a new stream.

        With `expected_version`, the `configuration_version` of the view that the new configuration was made from, only
        if no other update came first.

        Raises:
            SealedError: the stream is sealed.
            IllegalStateError: code "configuration_changed": another update came first; or the update was accepted, and
                given up later.
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
        """Removes everything before a cut, which becomes the head; at the head it changes nothing.

        Raises:
            TruncatedError: some of the cut lies before the head.
            InvalidRequestError: code "invalid_stream_cut".
            SealedError: the stream is sealed.
        """
        self._thread.run(self._core.truncate_stream(scope, stream, cut, wait=wait))

    def scaling_events(
        self, scope: str, stream: str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> list[ScalingEvent]:
        """The scales between two times, both inclusive, in milliseconds since the Unix epoch; oldest first."""
        return self._thread.run(self._core.scaling_events(scope, stream, from_ms=from_ms, to_ms=to_ms))

    def is_stream_cut_valid(self, scope: str, stream: str, cut: StreamCut | Mapping[int, int]) -> bool:
        """Whether reading can start or end there: a cut of the stream, not truncated, and written already."""
        return self._thread.run(self._core.is_stream_cut_valid(scope, stream, cut))

    def stream_cut_distance(self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None) -> int:
        """How many bytes lie between two cuts; None stands for the head and the tail."""
        return self._thread.run(self._core.stream_cut_distance(scope, stream, from_cut, to_cut))

    def seal_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """After this the stream takes no more events. Raises SealedError if it is sealed already."""
        self._thread.run(self._core.seal_stream(scope, stream, wait=wait))

    def delete_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        """Removes a sealed stream. Raises IllegalStateError with code "stream_not_sealed" for any other."""
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
            InvalidRequestError: code "invalid_key_ranges": the ranges do not fill exactly the space of the segments.
            HeadraceError: code "segment_not_active": an id is not one of an active segment.
        """
        return self._thread.run(self._core.scale_stream(scope, stream, seal=seal, ranges=ranges, wait=wait))

    def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleProgress:
        return self._thread.run(self._core.scale_status(scope, stream, epoch))

    def segments(
        self, scope: str, stream: str, *, at: At | int = "tail", epoch: int | None = None
    ) -> tuple[SegmentView, ...]:
        """The segments at the head, at the tail, at a time (milliseconds since the Unix epoch) or of an epoch."""
        return self._thread.run(self._core.segments(scope, stream, at=at, epoch=epoch))

    def epoch_segments(
        self, scope: str, stream: str, *, at: At | int = "tail", epoch: int | None = None
    ) -> EpochSegments:
        """As `segments`, with the epoch's number and whether the stream is sealed."""
        return self._thread.run(self._core.epoch_segments(scope, stream, at=at, epoch=epoch))

    def successors(self, scope: str, stream: str, segment_id: int, *, as_recorded: bool = False) -> Successors:
        """What follows a segment. With `as_recorded` also of one that is truncated: whoever was in it goes on there."""
        return self._thread.run(self._core.successors(scope, stream, segment_id, as_recorded=as_recorded))

    def predecessors(self, scope: str, stream: str, segment_id: int) -> tuple[SegmentView, ...]:
        return self._thread.run(self._core.predecessors(scope, stream, segment_id))

    def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        """Where the segment's store listens. Waits a while for a container that nobody owns just now."""
        return self._thread.run(self._core.endpoint(scope, stream, segment_id))

    def stream_cut(self, scope: str, stream: str, *, at: At = "tail") -> StreamCut:
        """The position at the head (the first byte kept) or at the tail (behind the last event acknowledged)."""
        return self._thread.run(self._core.stream_cut(scope, stream, at=at))

    def segments_between(
        self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None
    ) -> RangesBetween:
        """Every range of bytes between two cuts; None stands for the head and the tail."""
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
        """Links with which the bytes from `from_offset` up to `to_offset` can be read straight from S3."""
        return self._thread.run(
            self._core.chunks(scope, stream, segment_id, from_offset=from_offset, to_offset=to_offset, limit=limit)
        )
