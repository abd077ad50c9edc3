"""Counts and sums in windows of event time, from a stream of JSON objects into another stream, each window once.

A window is closed when the stream's watermark has passed its end: no writer will write events of that time any more.
The watermark depends on when it is asked for. So what is closed is recorded before it is written, see
`window_table.py`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark import write_events
from headrace.spark.client_sink import open_sink
from headrace.spark.jobs.batch_table import MERGED_AT_ONCE, open_table, query_of, read_rows
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS, quarantined
from headrace.spark.jobs.stream_copies import TARGET_OPTIONS
from headrace.spark.jobs.time_ranges import YEAR_10000_MS
from headrace.spark.jobs.window_definition import COUNT, WindowDefinition
from headrace.spark.jobs.window_table import (
    GOOD,
    LATE,
    OUTCOMES,
    PARTLY_LATE,
    QUARANTINE,
    SUMS,
    BatchSums,
    Closing,
    WindowTable,
    added_up,
    between_ends,
    partial_sums,
    result_events,
    timed,
    to_quarantine,
)
from headrace.spark.manifests import manifest_head, manifest_name
from headrace.spark.plan_files import plan_files
from headrace.spark.write_options import write_options
from headrace.spark.written_batches import WRITER_PREFIX, is_repetition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.client.headrace import Headrace
    from headrace.ports.clock import Clock

WRITER_BYTES = 16
AHEAD_S_DEFAULT = 24 * 3600

Watermark = Callable[[str], int | None]
"""The watermark at the text of a stream cut, in milliseconds since 1970: later events are not older. None: unknown."""


@dataclass(slots=True)
class WindowCounts:
    """What a run has done. `late` are events that were not counted in a closed window; `bad` could not be counted."""

    events: int = 0
    windows: int = 0
    late: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class ClosingRules:
    """When windows are closed: by the stream's watermark, or `lateness_ms` after the latest event if that is given.

    `close_until_ms`: at the end of the run also those that end at this time or before; not earlier, since a run has
    several batches. Events more than `ahead_ms` in the future are bad.
    """

    lateness_ms: int | None = None
    close_until_ms: int | None = None
    ahead_ms: int = AHEAD_S_DEFAULT * 1000


class WindowedCounts:
    """The windows of one checkpoint. `write` is for `foreachBatch`, and `close_windows` for idle times.

    `source` and `target` are the options of the connector. `position_of` gives the text of the cut where a batch ends.

    Raises:
        InvalidRequestError: code "other_windows": the checkpoint was begun with other windows, source or target.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        definition: WindowDefinition,
        *,
        source: Mapping[str, str],
        target: Mapping[str, str],
        rules: ClosingRules,
        watermark: Watermark,
        position_of: Callable[[int], str],
        clock: Clock,
        merged_at_once: int = MERGED_AT_ONCE,
    ) -> None:
        self.counts = WindowCounts()
        self._spark = spark
        self._definition = definition
        self._rules = rules
        self._watermark = watermark
        self._position_of = position_of
        self._clock = clock
        self._lock = threading.Lock()
        identity = {**definition.to_json(), "source": _name(source), "target": _name(target)}
        rows = _SparkRows(spark, definition, target)
        table = open_table(spark, f"{checkpoint}/windows")
        new_writer = f"windows-{secrets.token_hex(WRITER_BYTES)}"
        self.table = WindowTable(table, rows, identity, new_writer, merged_at_once=merged_at_once)

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch with the columns event, segment_id and offset, once, and close windows."""
        with self._lock:
            self.counts.windows += self.table.finish()
            counts = WindowCounts()
            position = self._position_of(batch_id)
            if self.table.add_batch(query_of(events), batch_id, position, lambda path: self._sum(events, path, counts)):
                self.counts.events += counts.events
                self.counts.late += counts.late
                self.counts.bad += counts.bad
            self._close()
            self.table.tidy()

    def close_windows(self) -> None:
        """Close the windows that the watermark has passed since the last batch."""
        with self._lock:
            self.counts.windows += self.table.finish()
            self._close()

    def close_at_end(self) -> int | None:
        """Close what can be closed when all events were read.

        Returns the end of the last window that could be, in milliseconds since 1970; None: not known.
        """
        with self._lock:
            self.counts.windows += self.table.finish()
            return self._close(self._rules.close_until_ms)

    def _closable_until(self, at_least_ms: int | None) -> int | None:
        progress, rules = self.table.progress, self._rules
        if progress.position is None:
            return None
        if rules.lateness_ms is None:
            reached = self._watermark(progress.position)
        else:
            reached = None if progress.newest_ms is None else progress.newest_ms - rules.lateness_ms
        known = [time for time in (reached, at_least_ms) if time is not None]
        return self._definition.aligned(max(known)) if known else None

    def _close(self, at_least_ms: int | None = None) -> int | None:
        until_ms = self._closable_until(at_least_ms)
        self.counts.windows += self.table.close_until(until_ms)
        return until_ms

    def _sum(self, events: DataFrame, path: Callable[[str], str], counts: WindowCounts) -> BatchSums:
        """One pass over the batch, and a second one only for its quarantine."""
        closed_ms = self.table.progress.closed_ms
        records = timed(events, self._definition, closed_ms, self._clock.now_ms() + self._rules.ahead_ms)
        tasks = self._spark.sparkContext.defaultParallelism
        sums = partial_sums(records, self._definition, closed_ms).coalesce(tasks)
        sums.write.mode("overwrite").parquet(path(SUMS))
        written = read_rows(self._spark, [path(SUMS)], self._definition.columns() | OUTCOMES)
        totals = written.groupBy("outcome").agg(F.count(F.lit(1)), F.sum(COUNT), F.max("newest_ms")).collect()
        rows = {SUMS: sum(int(each[1]) for each in totals if each[0] is None), QUARANTINE: 0}
        by_outcome = {str(each[0]): int(each[2]) for each in totals if each[0] is not None}
        counts.events = sum(by_outcome.values())
        counts.late = sum(by_outcome.get(outcome, 0) for outcome in (LATE, PARTLY_LATE))
        counts.bad = counts.events - counts.late - by_outcome.get(GOOD, 0)
        if counts.late or counts.bad:
            quarantined(to_quarantine(records)).coalesce(1).write.mode("overwrite").parquet(path(QUARANTINE))
            rows[QUARANTINE] = counts.late + counts.bad
        newest = [int(each[3]) for each in totals if each[3] is not None]
        return BatchSums(rows, max(newest, default=None))


class _SparkRows:
    """The rows of the table in parquet files, which Spark reads and writes."""

    def __init__(self, spark: SparkSession, definition: WindowDefinition, target: Mapping[str, str]) -> None:
        self._spark = spark
        self._definition = definition
        self._target = {**target, **TARGET_OPTIONS}
        self._checked = False

    def has_windows(self, closing: Closing) -> bool:
        return bool(self._windows(closing).limit(1).count())

    def write_windows(self, closing: Closing) -> int:
        """The first one of a process may be one that an earlier process has committed."""
        if not self._checked:
            options = write_options(self._target, streaming=True)
            writer = f"{WRITER_PREFIX}{closing.writer}"
            is_repetition(closing.number, open_sink(options).committed_epoch(options.stream, writer))
            self._checked = True
        tasks = self._spark.sparkContext.defaultParallelism
        windows = added_up(self._windows(closing), self._definition)
        events = result_events(windows, self._definition, tasks)
        named = {"writer_id": closing.writer, "epoch": str(closing.number)}
        return write_events(events, self._target | named).events

    def merge_sums(self, directories: Sequence[str], into: str, closed_ms: int | None) -> None:
        rows = between_ends(self._read(directories), self._definition, closed_ms, None)
        added_up(rows, self._definition).coalesce(1).write.mode("overwrite").parquet(into)

    def merge_quarantine(self, directories: Sequence[str], into: str) -> None:
        rows = read_rows(self._spark, directories, QUARANTINE_COLUMNS)
        rows.coalesce(1).write.mode("overwrite").parquet(into)

    def _windows(self, closing: Closing) -> DataFrame:
        return between_ends(self._read(closing.paths), self._definition, closing.after_ms, closing.until_ms)

    def _read(self, directories: Sequence[str]) -> DataFrame:
        return read_rows(self._spark, directories, self._definition.columns())


def stream_watermark(headrace: Headrace, scope: str, stream: str) -> Watermark:
    """The watermarks of a stream, from the times that its writers note.

    The result raises InvalidRequestError, code "other_time_unit", if the times cannot be milliseconds since 1970.
    """

    def watermark(position: str) -> int | None:
        with headrace.reader(scope, stream, start=parse_stream_cut_text(position)) as reader:
            lower = reader.time_window().lower
        if lower is not None and lower >= YEAR_10000_MS:
            raise InvalidRequestError(
                f"the watermark of {scope}/{stream} is {lower}: note times in milliseconds since 1970, or give"
                " --allowed_lateness_s",
                code="other_time_unit",
            )
        return lower

    return watermark


def planned_position(plans: str) -> Callable[[int], str]:
    """Where batches end, from the directory of a query's plans."""
    files = plan_files(plans)

    def position(batch_id: int) -> str:
        data = files.read(manifest_name(batch_id))
        if data is None:
            raise CorruptError(f"{files.url} has no plan of batch {batch_id}, which Spark runs now")
        return manifest_head(manifest_name(batch_id), data).end

    return position


def _name(options: Mapping[str, Any]) -> str:
    return f"{options['scope']}/{options['stream']}"
