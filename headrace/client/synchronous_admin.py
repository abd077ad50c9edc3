"""Administration for programs without an event loop: `AsyncAdmin`, run on the client's background thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.client import views
from headrace.client.admin import AsyncAdmin, At, CutLike
from headrace.client.cluster_admin import ClusterAdmin
from headrace.client.dead_letters_admin import DeadLettersAdmin
from headrace.client.loop_thread import LoopThread
from headrace.client.reader_groups_admin import ReaderGroupsAdmin
from headrace.client.retention_admin import RetentionAdmin, SubscribersAdmin
from headrace.client.tables_admin import TablesAdmin
from headrace.client.transactions_admin import TransactionsAdmin
from headrace.client.watermarks_admin import WatermarksAdmin
from headrace.model.limits import PAGE_ITEMS_DEFAULT
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.stream_cuts import StreamCut


class Admin:
    """Administration of one Headrace deployment. Every method is described at its twin in `AsyncAdmin`."""

    def __init__(self, thread: LoopThread, admin: AsyncAdmin) -> None:
        self._run = thread.run
        self._admin = admin
        self.cluster = ClusterAdmin(thread, admin.cluster)
        self.dead_letters = DeadLettersAdmin(thread, admin.dead_letters)
        self.watermarks = WatermarksAdmin(thread, admin.watermarks)
        self.retention = RetentionAdmin(thread, admin.retention)
        self.subscribers = SubscribersAdmin(thread, admin.subscribers)
        self.reader_groups = ReaderGroupsAdmin(thread, admin.reader_groups)
        self.tables = TablesAdmin(thread, admin.tables)
        self.transactions = TransactionsAdmin(thread, admin.transactions)

    def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        self._run(self._admin.create_scope(scope, exist_ok=exist_ok))

    def list_scopes(self) -> list[str]:
        return self._run(self._admin.list_scopes())

    def scope_exists(self, scope: str) -> bool:
        return self._run(self._admin.scope_exists(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False, wait: bool = True) -> None:
        self._run(self._admin.delete_scope(scope, recursive=recursive, wait=wait))

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
    ) -> views.StreamView:
        return self._run(
            self._admin.create_stream(
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

    def get_stream(self, scope: str, stream: str) -> views.StreamView:
        return self._run(self._admin.get_stream(scope, stream))

    def list_streams(self, scope: str, *, tag: str | None = None, prefix: str = "") -> list[views.StreamSummary]:
        return self._run(self._admin.list_streams(scope, tag=tag, prefix=prefix))

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
    ) -> views.StreamView:
        return self._run(
            self._admin.update_stream(
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
        self._run(self._admin.truncate_stream(scope, stream, cut, wait=wait))

    def scaling_events(
        self, scope: str, stream: str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> list[views.ScalingEvent]:
        return self._run(self._admin.scaling_events(scope, stream, from_ms=from_ms, to_ms=to_ms))

    def is_stream_cut_valid(self, scope: str, stream: str, cut: StreamCut | Mapping[int, int]) -> bool:
        return self._run(self._admin.is_stream_cut_valid(scope, stream, cut))

    def stream_cut_distance(self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None) -> int:
        return self._run(self._admin.stream_cut_distance(scope, stream, from_cut, to_cut))

    def seal_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        self._run(self._admin.seal_stream(scope, stream, wait=wait))

    def delete_stream(self, scope: str, stream: str, *, wait: bool = True) -> None:
        self._run(self._admin.delete_stream(scope, stream, wait=wait))

    def scale_stream(
        self,
        scope: str,
        stream: str,
        *,
        seal: Sequence[int],
        ranges: Sequence[tuple[float, float] | KeyRange],
        wait: bool = True,
    ) -> views.ScaleProgress:
        return self._run(self._admin.scale_stream(scope, stream, seal=seal, ranges=ranges, wait=wait))

    def scale_status(self, scope: str, stream: str, epoch: int) -> views.ScaleProgress:
        return self._run(self._admin.scale_status(scope, stream, epoch))

    def segments(
        self, scope: str, stream: str, *, at: At | int = "tail", epoch: int | None = None
    ) -> tuple[views.SegmentView, ...]:
        return self._run(self._admin.segments(scope, stream, at=at, epoch=epoch))

    def epoch_segments(
        self, scope: str, stream: str, *, at: At | int = "tail", epoch: int | None = None
    ) -> views.EpochSegments:
        return self._run(self._admin.epoch_segments(scope, stream, at=at, epoch=epoch))

    def successors(self, scope: str, stream: str, segment_id: int, *, as_recorded: bool = False) -> views.Successors:
        return self._run(self._admin.successors(scope, stream, segment_id, as_recorded=as_recorded))

    def predecessors(self, scope: str, stream: str, segment_id: int) -> tuple[views.SegmentView, ...]:
        return self._run(self._admin.predecessors(scope, stream, segment_id))

    def endpoint(self, scope: str, stream: str, segment_id: int) -> views.SegmentEndpoint:
        return self._run(self._admin.endpoint(scope, stream, segment_id))

    def stream_cut(self, scope: str, stream: str, *, at: At = "tail") -> StreamCut:
        return self._run(self._admin.stream_cut(scope, stream, at=at))

    def segments_between(
        self, scope: str, stream: str, from_cut: CutLike = None, to_cut: CutLike = None
    ) -> views.RangesBetween:
        return self._run(self._admin.segments_between(scope, stream, from_cut, to_cut))

    def chunks(
        self,
        scope: str,
        stream: str,
        segment_id: int,
        *,
        from_offset: int,
        to_offset: int,
        limit: int = PAGE_ITEMS_DEFAULT,
    ) -> views.Chunks:
        return self._run(
            self._admin.chunks(scope, stream, segment_id, from_offset=from_offset, to_offset=to_offset, limit=limit)
        )
