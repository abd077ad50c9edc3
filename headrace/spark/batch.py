"""What batch and streaming reads share: options resolved to cuts, cuts to partitions, partitions to rows.

`StreamPlans` lives in the driver's planning process and keeps connections open; `read_partition` runs in tasks, builds
what it needs and leaves nothing behind. Neither is ever pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.spark.client_access import open_stream
from headrace.spark.event_parser import assemble_events
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import partition_ranges
from headrace.spark.planner import Positions, SegmentRange, ranges_to_read
from headrace.spark.range_reader import RangeReader, Wait, http_client, one_ahead
from headrace.spark.row_batches import RowShape, row_batches
from headrace.spark.stream_access import StreamAccess

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0
Answer = TypeVar("Answer")


@dataclass
class SegmentRanges(InputPartition):
    """What one task reads, in order."""

    ranges: tuple[SegmentRange, ...]

    def __init__(self, ranges: tuple[SegmentRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class StreamPlans:
    """Stream cuts and partitions of one stream for the driver. Waits out what is unavailable, within its patience."""

    def __init__(self, options: ReadOptions, access: StreamAccess, *, wait: Wait) -> None:
        self.options = options
        self.access = access
        self._wait = wait

    def start_cut(self, default: str) -> Positions:
        """Where the option start_stream_cut says; `default` is what it means when it is not given."""
        word = self.options.start_stream_cut or default
        return self._resolve(word, "tail" if word == "latest" else "head")

    def end_cut(self, default: str) -> Positions | None:
        """Where the option end_stream_cut says, "latest" as of now; None: never ends."""
        word = self.options.end_stream_cut or default
        if word == "earliest":
            raise InvalidRequestError(
                "option 'end_stream_cut': 'earliest' would read nothing; give latest, unbounded or the text of a cut",
                code="invalid_option",
            )
        return None if word == "unbounded" else self._resolve(word, "tail")

    def partitions(self, start: Positions, end: Positions) -> list[SegmentRanges]:
        """What to read between two cuts; depends on them alone, up to where large ranges are split."""
        between = self.patiently(lambda: self.access.ranges_between(start, end))

        def boundary(segment_id: int, target: int, stop: int) -> int:
            return self.patiently(lambda: self.access.event_boundary(segment_id, target, stop))

        parts = ranges_to_read(between.ranges)
        return [SegmentRanges(group) for group in partition_ranges(parts, self.options.max_partition_bytes, boundary)]

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """The answer of `ask`, asked again while it fails with something that can pass.

        Raises:
            HeadraceError: what cannot pass, or has not passed after `patience_s` seconds of waiting.
        """
        waited_s, wait_s = 0.0, FIRST_WAIT_S
        while True:
            try:
                return ask()
            except HeadraceError as error:
                if error.retry == "never" or waited_s >= self.options.patience_s:
                    raise
            self._wait(wait_s)
            waited_s += wait_s
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _resolve(self, word: str, at: str) -> Positions:
        if word in ("earliest", "latest", "unbounded"):
            return self.patiently(lambda: self.access.cut(at))
        return self.access.cut_of_text(word)


def open_plans(options: ReadOptions) -> StreamPlans:
    """Plans on a connection of their own; close `access` when done."""
    return StreamPlans(options, open_stream(options), wait=Event().wait)


def read_partition(options: ReadOptions, partition: SegmentRanges) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of its ranges and their offsets.

    Raises:
        HeadraceError: see `RangeReader.windows`, `assemble_events` and `row_batches`.
    """
    shape = RowShape(options.scope, options.stream, options.columns, options.event_format)
    with closing(open_stream(options)) as access, http_client() as http:
        reader = RangeReader(access, http, wait=Event().wait, use_links=options.read_history_from == "s3")
        for part in partition.ranges:
            windows = one_ahead(reader.windows(part.segment_id, part.start, part.end))
            yield from row_batches(shape, part, assemble_events(windows, part.start, part.end))


class HeadraceBatchReader(DataSourceReader):
    """Reads what lies between two stream cuts, once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        plans = open_plans(self._options)
        with closing(plans.access):
            start = plans.start_cut("earliest")
            end = plans.end_cut("latest") or plans.patiently(lambda: plans.access.cut("tail"))
            return list(plans.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRanges)
        return read_partition(self._options, partition)
