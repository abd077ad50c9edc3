"""What batch and streaming reads share: options resolved to cuts, cuts to partitions, partitions to rows.

`StreamPlans` belongs to the driver's planning process and keeps connections open. `read_partition` runs in tasks, opens
the connections that it needs and closes them. Neither is ever pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from threading import Event

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.client.range_bytes import RangeBytes, gathered, http_client, one_ahead
from headrace.client.segment_ranges import SegmentRange, ranges_to_read
from headrace.codec.event_columns import assemble_events
from headrace.model.stream_cuts import END_OF_SEGMENT
from headrace.spark.client_access import open_stream
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import partition_ranges
from headrace.spark.planner import Positions
from headrace.spark.row_batches import RowShape, row_batches
from headrace.spark.stream_access import At, StreamAccess


class SegmentRanges(InputPartition):
    """What one task reads, in order."""

    def __init__(self, ranges: tuple[SegmentRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class StreamPlans:
    """Stream cuts and partitions of one stream, for the driver."""

    def __init__(self, options: ReadOptions, access: StreamAccess) -> None:
        self.options = options
        self.access = access

    def start_cut(self, default: str) -> Positions:
        """Where the option start_stream_cut says; `default` is what it means when it is not given."""
        word = self.options.start_stream_cut or default
        return self._resolve(word, "tail" if word == "latest" else "head")

    def end_cut(self, default: str) -> Positions | None:
        """Where the option end_stream_cut says, "latest" as of now; None: never ends."""
        word = self.options.end_stream_cut or default
        return None if word == "unbounded" else self._resolve(word, "tail")

    def partitions(self, start: Positions, end: Positions) -> list[SegmentRanges]:
        """What to read between two cuts; depends on them alone, up to where large ranges are split."""
        parts = ranges_to_read(self.access.ranges_between(start, end).ranges)
        groups = partition_ranges(parts, self.options.max_partition_bytes, self.access.event_boundary)
        return [SegmentRanges(group) for group in groups]

    def _resolve(self, word: str, at: At) -> Positions:
        if word in ("earliest", "latest", "unbounded"):
            return self.access.cut(at)
        cut = self.access.cut_of_text(word)
        return self.access.ranges_between(cut, cut).start if END_OF_SEGMENT in cut.values() else cut


def open_plans(options: ReadOptions) -> StreamPlans:
    """Plans on a connection of their own; close `access` when done."""
    return StreamPlans(options, open_stream(options))


def read_partition(options: ReadOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of its ranges and their offsets.

    None is what Spark runs one task with when there are no partitions.

    Raises:
        HeadraceError: see `RangeBytes.windows`, `assemble_events` and `row_batches`.
    """
    if partition is None:
        return
    assert isinstance(partition, SegmentRanges), f"not one of our partitions: {partition!r}"
    shape = RowShape(options.scope, options.stream, options.columns, options.event_format)
    use_links = options.read_history_from == "s3"
    with (
        closing(open_stream(options)) as access,
        http_client() as http,
        RangeBytes(access, http, wait=Event().wait, use_links=use_links) as reader,
    ):
        for part in partition.ranges:
            windows = one_ahead(gathered(reader.windows(part.segment_id, part.start, part.end)))
            yield from row_batches(shape, part, assemble_events(windows, part.start, part.end))


class HeadraceBatchReader(DataSourceReader):
    """Reads the events between two stream cuts, once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        plans = open_plans(self._options)
        with closing(plans.access):
            start = plans.start_cut("earliest")
            end = plans.end_cut("latest") or plans.access.cut("tail")
            return list(plans.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)
