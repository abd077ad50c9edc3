"""Streaming reads: a micro-batch is the range between two stream cuts, and only the checkpoint holds progress.

What Spark 4.0 and 4.1 do, and this reader has to stand:
- on a first start they ask `latestOffset` before `initialOffset`, so the start is resolved once and remembered;
- they do not say where a batch starts, so `partitions` remembers where it ended; after a restart they call
  `partitions(end, end)` with the newest logged offset before anything else, so that this holds there, too;
- a logged pair of offsets is final: it is planned again after a crash, from the pair alone;
- an error in `latestOffset` ends the query, so what can pass is waited for (by the stream access);
- while there is nothing to read, the default trigger asks 100 times a second, so idle questions are spaced out here.
An offset is one string, the text of a stream cut: thousands of segments stay one JSON string in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.client.range_bytes import Wait
from headrace.model.errors import CorruptError
from headrace.spark.batch import StreamPlans, open_plans, read_partition
from headrace.spark.options import ReadOptions
from headrace.spark.planner import Positions, next_cut

Offset = dict[str, str]
_CUT = "stream_cut"


class HeadraceStreamReader(DataSourceStreamReader):
    """Plans micro-batches in the driver and reads them in tasks; only its options travel."""

    def __init__(self, options: ReadOptions, *, wait: Wait | None = None) -> None:
        self._options = options
        self._wait = wait or Event().wait
        self._idle = False
        self._plans: StreamPlans | None = None
        self._initial: Offset | None = None
        self._planned_to: Offset | None = None
        self._end: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HeadraceStreamReader.__init__(self, state["_options"])

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint starts: the option start_stream_cut, by default the tail."""
        if self._initial is None:
            plans = self._opened()
            self._initial = self._offset(plans.start_cut("latest"))
        return self._initial

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        """The end of the next batch: at most about approx_bytes_per_trigger after the last one.

        Spark 4.2 and later give `start`; what they give as `limit` is not used, the option decides.
        """
        plans = self._opened()
        current = start or self._planned_to or self.initialOffset()
        if self._positions(current) == self._end:
            return current
        if self._idle:
            self._wait(self._options.idle_poll_ms / 1000)
        latest = self._next(plans, current)
        self._idle = latest == current
        return latest

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        plans = self._opened()
        self._planned_to = end
        if start == end:
            return []
        return list(plans.partitions(self._positions(start), self._positions(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Nothing to do: the checkpoint is Spark's, and a stream keeps its events for other readers."""

    def stop(self) -> None:
        if self._plans is not None:
            self._plans.access.close()
            self._plans = None

    def _opened(self) -> StreamPlans:
        if self._plans is None:
            self._plans = open_plans(self._options)
            self._end = self._plans.end_cut("unbounded")
        return self._plans

    def _next(self, plans: StreamPlans, current: Offset) -> Offset:
        positions = self._positions(current)
        between = plans.access.ranges_between(positions, self._end)
        ends = {part.segment_id: part.end for part in between.ranges}
        upcoming = next_cut(
            between.ranges,
            between.start,
            budget_bytes=self._options.approx_bytes_per_trigger,
            locate=lambda segment_id, target: plans.access.event_boundary(segment_id, target, ends[segment_id]),
            strict_key_order=self._options.strict_key_order,
        )
        # Spark compares offsets as strings, so the same cut must keep its text, even if another version wrote the text.
        return current if upcoming.positions == positions else self._offset(upcoming.positions)

    def _offset(self, positions: Positions) -> Offset:
        return {_CUT: self._opened().access.text_of_cut(positions)}

    def _positions(self, offset: Offset) -> Positions:
        text = offset.get(_CUT)
        if text is None:
            raise CorruptError(
                f"the checkpoint holds an offset of another source: {sorted(offset)}, expected {_CUT!r}. Use a"
                " checkpoint location of its own for each query",
                code="foreign_checkpoint",
            )
        return self._opened().access.cut_of_text(text)
