"""The rows of a partition, in a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from headrace.api.plans import LostBytes
from headrace.client.ranges.range_bytes import Window, gathered, one_ahead, read_ahead_thread
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.event_columns import assemble_events
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError
from headrace.model.segments import segment_epoch
from headrace.spark.lost_bytes import (
    deleted_while_reading,
    log_skipped,
    log_stream_skipped,
    truncated_while_reading,
)
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import Partition
from headrace.spark.row_batches import RowShape, row_batches
from headrace.spark.stream_access import PlannedRange
from headrace.spark.worker_reads import WorkerReads, worker_reads

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
    if start <= unread.start or segment_epoch(unread.segment_id) > head.last_epoch:
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
