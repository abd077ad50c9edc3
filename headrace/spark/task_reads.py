"""The rows of a partition, in a task, and the connections with which tasks read."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from threading import Event

import pyarrow as pa

from headrace.api.plans import LostBytes
from headrace.client.headrace import Headrace
from headrace.client.ranges.range_bytes import RangeBytes, StreamRanges, Window, gathered, one_ahead, read_ahead_thread
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.client.reading.object_reads import ObjectReads
from headrace.codec.event_columns import assemble_events
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.stream_cuts import Side, StreamCut
from headrace.spark.client_access import ClientStreamAccess
from headrace.spark.lost_bytes import deleted_while_reading, log_skipped, log_stream_skipped, truncated_while_reading
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import Partition
from headrace.spark.python_workers import shared_client
from headrace.spark.row_batches import RowShape, row_batches
from headrace.spark.stream_access import PlannedRange

# What tasks read with: connections that live as long as the Python worker, which Spark keeps for many tasks.
#
# A client and its connections cost more than reading a small range: three TLS contexts alone take 57 ms of CPU.

IDLE_S_MAX = 30.0
"""A segment store closes a connection that is idle for longer than a minute."""

_Key = tuple[str, str]


class WorkerReads:
    """Reads ranges of any stream behind one controller. Several threads may use it at once."""

    def __init__(self, options: ReadOptions, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._objects = ObjectReads()
        self._idle: dict[_Key, list[tuple[float, StreamRanges]]] = {}
        self._lock = threading.Lock()

    def windows(self, planned: PlannedRange) -> Generator[Window, None, None]:
        """The bytes of a range; raises as `RangeBytes.windows`."""
        part = planned.part
        use_links = self._options.read_history_from == "s3"
        with (
            self._borrowed(part.scope, part.stream) as source,
            RangeBytes(
                source,
                self._objects,
                wait=Event().wait,
                use_links=use_links,
                patience_s=self._options.patience_s,
            ) as reader,
        ):
            if planned.endpoint is not None:
                source.expect(part.segment_id, planned.endpoint)
            if planned.token is not None:
                source.offer(planned.token)
            if planned.trust is not None:
                source.offer_trust(planned.trust)
            yield from reader.windows(part.segment_id, part.start, part.end, planned.listing)

    def with_links(self, partition: Partition) -> Partition:
        """The partition with links to S3 where there are none that can be used: one request for all ranges of a stream.

        If that fails, reading the ranges asks for the links of each one, and says what is wrong.
        """
        if self._options.read_history_from != "s3":
            return partition
        now_ms = time.time_ns() // 1_000_000
        lacking: dict[_Key, list[int]] = {}
        for index, planned in enumerate(partition):
            if planned.listing is None or not planned.listing.is_fresh(now_ms):
                lacking.setdefault((planned.part.scope, planned.part.stream), []).append(index)
        planned_ranges = list(partition)
        for (scope, stream), indexes in lacking.items():
            if len(indexes) == 1:
                continue  # reading it asks for as many links as are used before they expire
            # What is refused for one range is refused for all of them, for example because it was truncated.
            parts = [partition[index].part for index in indexes]
            try:
                listed = self._access(scope, stream).planned(parts, max(1, *(part.length_bytes for part in parts)))
            except UnavailableError:
                break  # it was waited for: not once more for each stream
            except HeadraceError:
                continue
            for index, new in zip(indexes, listed, strict=True):
                planned_ranges[index] = replace(planned_ranges[index], listing=new.listing, endpoint=new.endpoint)
        return tuple(planned_ranges)

    def head(self, scope: str, stream: str) -> StreamCut:
        """Where a stream begins now."""
        return self._client().admin.stream_cut(scope, stream, at="earliest")

    def close(self) -> None:
        """Closes the connections that no thread uses."""
        with self._lock:
            sources = [source for idle in self._idle.values() for _, source in idle]
            self._idle.clear()
        for source in sources:
            source.close()
        self._objects.close()

    @contextmanager
    def _borrowed(self, scope: str, stream: str) -> Iterator[StreamRanges]:
        """For one thread; a source that failed or was left early is not used again."""
        source = self._idle_source(scope, stream) or self._new_source(scope, stream)
        try:
            yield source
        except BaseException:
            source.close()
            raise
        with self._lock:
            self._idle.setdefault((scope, stream), []).append((self._monotonic_s(), source))

    def _idle_source(self, scope: str, stream: str) -> StreamRanges | None:
        oldest_s = self._monotonic_s() - IDLE_S_MAX
        with self._lock:
            idle = self._idle.get((scope, stream), [])
            stale = [source for since_s, source in idle if since_s < oldest_s]
            fresh = [entry for entry in idle if entry[0] >= oldest_s]
            newest = fresh.pop()[1] if fresh else None
            self._idle[scope, stream] = fresh
        for source in stale:
            source.close()
        return newest

    def _new_source(self, scope: str, stream: str) -> StreamRanges:
        return StreamRanges(self._client().admin, scope, stream, give_up_after_s=self._options.patience_s)

    def _access(self, scope: str, stream: str) -> ClientStreamAccess:
        return ClientStreamAccess(
            self._client(), scope, stream, self._options.on_truncation, links=True, ships_tokens=False
        )

    def _client(self) -> Headrace:
        options = self._options
        return shared_client(options.controller, options.auth, options.patience_s, options.network).client


_reads: dict[tuple[object, ...], WorkerReads] = {}
_lock = threading.Lock()


def worker_reads(options: ReadOptions) -> WorkerReads:
    """Those of this process. They are never closed; connections end with the process."""
    key = (os.getpid(), options.controller, options.auth, options.patience_s, options.read_history_from)
    with _lock:
        reads = _reads.get(key)
        if reads is None:
            reads = _reads[key] = WorkerReads(options)
        return reads


SMALL_RANGE_BYTES = 1024 * 1024
RANGES_AT_ONCE = 4
"""Small ranges of a task that are on their way together: each waits for S3 or a store longer than it is read."""


def read_partition(options: ReadOptions, partition: Partition) -> Iterator[pa.RecordBatch]:
    """The rows, in the order of the ranges and their offsets.

    Raises:
        HeadraceError: see `RangeBytes.windows`, `assemble_events` and `row_batches`.
    """
    reads = worker_reads(options)
    ready = reads.with_links(partition)
    with read_ahead_thread() as thread, closing(_windows_in_order(reads, ready, thread)) as ranges:
        for planned, windows in ranges:
            left: SegmentRange | None = planned.part
            while left is not None:
                left = yield from _rows(options, reads, left, windows)
                if left is not None:
                    windows = one_ahead(gathered(reads.windows(PlannedRange(left))), thread)


def _rows(
    options: ReadOptions, reads: WorkerReads, part: SegmentRange, windows: Generator[Window, None, None]
) -> Generator[pa.RecordBatch, None, SegmentRange | None]:
    """Yields the rows of a range; returns what is left of it if some of it was truncated, which may be skipped."""
    shape = RowShape(part.scope, part.stream, options.columns, options.event_format, options.records)
    position = part.start
    try:
        with closing(windows):
            for events in assemble_events(windows, part.start, part.end):
                yield from row_batches(shape, part, (events,))
                position += events.bytes_used
    except (TruncatedError, NotFoundError) as error:
        return _after_truncation(options, reads, replace(part, start=position), error)
    return None


def _after_truncation(
    options: ReadOptions, reads: WorkerReads, unread: SegmentRange, error: HeadraceError
) -> SegmentRange | None:
    """What of a range is behind the head of its stream, None if nothing is. Logs what is lost, which may be skipped.

    Raises:
        TruncatedError: on_truncation is "fail".
        NotFoundError: the stream was deleted, and is not one of a pattern.
        HeadraceError: the `error`, if the range is not truncated at all.
    """
    try:
        head = reads.head(unread.scope, unread.stream)
    except NotFoundError as deleted:
        if not options.skips_deleted_streams:
            raise deleted_while_reading(unread) from deleted
        log_stream_skipped(unread.scope, unread.stream)
        return None
    start = head.offsets.get(unread.segment_id, unread.end)
    if start <= unread.start or head.side_by_epoch(unread.segment_id) is Side.AFTER:
        raise error
    start = min(start, unread.end)
    lost = LostBytes(unread.segment_id, unread.start, start - unread.start)
    if options.on_truncation != "skip":
        raise truncated_while_reading(lost, head, error) from error
    log_skipped(unread.scope, unread.stream, [lost], lost.length)
    return replace(unread, start=start) if start < unread.end else None


def _windows_in_order(
    reads: WorkerReads, partition: Partition, thread: ThreadPoolExecutor
) -> Generator[tuple[PlannedRange, Generator[Window, None, None]], None, None]:
    """Each range with its bytes. Those of small ones are fetched while their predecessors are worked on."""
    waiting, coming = deque(partition), deque[tuple[PlannedRange, Future[bytes]]]()
    with ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="headrace-ranges") as pool:
        try:
            while waiting or coming:
                while waiting and waiting[0].length_bytes <= SMALL_RANGE_BYTES and len(coming) < RANGES_AT_ONCE:
                    planned = waiting.popleft()
                    coming.append((planned, pool.submit(_whole, reads, planned)))
                if coming:
                    planned, fetched = coming.popleft()
                    yield planned, _fetched(fetched)
                else:
                    planned = waiting.popleft()
                    yield planned, one_ahead(gathered(reads.windows(planned)), thread)
        finally:
            for _, fetched in coming:
                fetched.cancel()


def _whole(reads: WorkerReads, planned: PlannedRange) -> bytes:
    return b"".join(reads.windows(planned))


def _fetched(window: Future[bytes]) -> Generator[Window, None, None]:
    yield window.result()
