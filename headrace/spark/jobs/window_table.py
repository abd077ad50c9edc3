"""The open windows of a job: sums that grow batch by batch, and closings that hand out each window once.

Everything is a version of one batch table, so that a process that is killed between two steps is continued there:

    1. a batch is added, with the position in the stream where it ends;
    2. a closing is decided: windows up to a time, with the number of the closing;
    3. the windows are written to the target, as an epoch with this number, which commits once;
    4. the closing is done. Its rows are dropped when parts are merged.

A decided closing is finished before the next batch is added. So its rows cannot change, and an event whose window is
closed is known to be late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.jobs.batch_table import MERGED_AT_ONCE, BatchRows, BatchTable
from headrace.spark.jobs.json_records import classified
from headrace.spark.jobs.time_ranges import YEAR_1_MS, YEAR_10000_MS
from headrace.spark.jobs.window_definition import COUNT, START, VALUE_TYPE, WindowDefinition, result_event

if TYPE_CHECKING:
    import pyarrow as pa


SUMS, QUARANTINE = KINDS = ("sums", "quarantine")
SMALL_PART_BYTES = 64 * 1024 * 1024
"""Larger parts of the quarantine stay as they are."""


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """What the table keeps in addition to its rows. Times are in milliseconds since 1970.

    `identity` is what must never change: the windows, the source and the target. `writer` writes to the target.
    `position` is the text of the cut up to which events are in the table, `newest_ms` the latest time of them. Windows
    that end at `closed_ms` or before are written. Those up to `closing_ms` are decided, and may be written; None: no
    closing is open. `closings` is how many are done.
    """

    identity: Mapping[str, Any]
    writer: str
    position: str | None = None
    newest_ms: int | None = None
    closed_ms: int | None = None
    closing_ms: int | None = None
    closings: int = 0

    def with_batch(self, position: str, newest_ms: int | None) -> WindowProgress:
        known = [time for time in (self.newest_ms, newest_ms) if time is not None]
        return replace(self, position=position, newest_ms=max(known, default=None))

    def closing(self, until_ms: int) -> WindowProgress:
        assert self.closing_ms is None
        assert self.closed_ms is None or until_ms > self.closed_ms
        return replace(self, closing_ms=until_ms)

    def closed(self) -> WindowProgress:
        assert self.closing_ms is not None
        return replace(self, closed_ms=self.closing_ms, closing_ms=None, closings=self.closings + 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": dict(self.identity),
            "writer": self.writer,
            "position": self.position,
            "newestMs": self.newest_ms,
            "closedMs": self.closed_ms,
            "closingMs": self.closing_ms,
            "closings": self.closings,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WindowProgress:
        """Raises CorruptError if `to_json` did not write the document."""
        try:
            return cls(
                dict(document["identity"]),
                str(document["writer"]),
                document["position"],
                document["newestMs"],
                document["closedMs"],
                document["closingMs"],
                int(document["closings"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"the table of windows has no progress that can be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Closing:
    """The windows to write: those in the rows of `paths` that end after `after_ms` (None: all) and by `until_ms`."""

    paths: Sequence[str]
    after_ms: int | None
    until_ms: int
    writer: str
    number: int


class WindowRows(Protocol):
    """What the table asks of the engine."""

    def has_windows(self, closing: Closing) -> bool:
        """Whether the closing has any window."""
        ...

    def write_windows(self, closing: Closing) -> int:
        """Write the windows as the epoch `closing.number` of the writer, if that was not done; how many are new."""
        ...

    def merge_sums(self, directories: Sequence[str], into: str, closed_ms: int | None) -> None:
        """Add up the rows of some directories, without windows that end at `closed_ms` or before."""
        ...

    def merge_quarantine(self, directories: Sequence[str], into: str) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchSums:
    """What was written of a batch: rows by kind, and the latest time of its events, None if it has none."""

    rows: Mapping[str, int]
    newest_ms: int | None


class WindowTable:
    """The table, for the one process that writes it.

    Raises:
        InvalidRequestError: code "other_windows": the table was begun with another identity.
    """

    def __init__(
        self,
        table: BatchTable,
        rows: WindowRows,
        identity: Mapping[str, Any],
        new_writer: str,
        *,
        merged_at_once: int = MERGED_AT_ONCE,
    ) -> None:
        self._table = table
        self._rows = rows
        self._merged_at_once = merged_at_once
        self.progress = (
            WindowProgress.from_json(table.version.state)
            if table.version.number
            else WindowProgress(identity, new_writer)
        )
        for name, value in self.progress.identity.items():
            if identity.get(name) != value:
                raise InvalidRequestError(
                    f"the checkpoint was begun with {name} = {value}, not {identity.get(name)}: use a new checkpoint",
                    code="other_windows",
                )
        table.clean(KINDS)

    def add_batch(
        self, query_id: str, batch_id: int, position: str, write: Callable[[Callable[[str], str]], BatchSums]
    ) -> BatchSums | None:
        """Add a batch that ends at `position`; None, and nothing is written, if it is in the table already."""
        assert self.progress.closing_ms is None, "finish() comes first"
        written_sums: list[BatchSums] = []

        def written(path: Callable[[str], str]) -> BatchRows:
            sums = write(path)
            written_sums.append(sums)
            return BatchRows(sums.rows, state=self.progress.with_batch(position, sums.newest_ms).to_json())

        if self._table.add_batch(query_id, batch_id, written) is None:
            return None
        self.progress = self.progress.with_batch(position, written_sums[0].newest_ms)
        return written_sums[0]

    def finish(self) -> int:
        """Finish the closing that an earlier run has decided, if there is one; how many windows were new."""
        if self.progress.closing_ms is None:
            return 0
        windows = self._rows.write_windows(self._closing(self.progress.closing_ms))
        self._record(self.progress.closed())
        return windows

    def close_until(self, until_ms: int | None) -> int:
        """Close the windows that end at a time or before; how many. None: the time is not known."""
        closed_ms = self.progress.closed_ms
        if until_ms is None or (closed_ms is not None and until_ms <= closed_ms):
            return 0
        if not self._table.version.of_kind(SUMS) or not self._rows.has_windows(self._closing(until_ms)):
            return 0
        self._record(self.progress.closing(until_ms))
        return self.finish()

    def tidy(self) -> None:
        """Merge small parts, and delete what is not needed any more."""
        assert self.progress.closing_ms is None, "a merge would drop rows of an open closing"
        closed_ms = self.progress.closed_ms

        def merge(directories: Sequence[str], into: str) -> None:
            self._rows.merge_sums(directories, into, closed_ms)

        merges = self._table.merge(SUMS, merge, at_once=self._merged_at_once)
        merges += self._table.merge(QUARANTINE, self._rows.merge_quarantine, bytes_max=SMALL_PART_BYTES)
        if merges:
            self._table.clean(KINDS)

    def _closing(self, until_ms: int) -> Closing:
        progress = self.progress
        return Closing(self._table.paths(SUMS), progress.closed_ms, until_ms, progress.writer, progress.closings)

    def _record(self, progress: WindowProgress) -> None:
        self._table.record(progress.to_json())
        self.progress = progress


# The rows of windowed counts in Spark: events with their time, partial sums of a batch, and closed windows as events.
#
# `timed` gives each event a reason if it cannot be counted. A bad or late event never fails a query.

TIME_INVALID: Final = "time_invalid"
TIME_AHEAD: Final = "time_ahead"
VALUE_RANGE: Final = "value_range"
LATE: Final = "late"
PARTLY_LATE: Final = "partly_late"
"""Counted in its later windows, but the first ones are closed."""

GOOD: Final = "good"
OUTCOMES: Final = {"outcome": "string", "newest_ms": "bigint"}
"""Columns of the partial sums of a batch in addition to those of the table."""

_MILLISECONDS: Final = r"^-?\d{1,18}$"
_DATE_AND_TIME: Final = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})$"
"""With its zone: without, it would be a time in the zone of the session."""


def timed(events: DataFrame, definition: WindowDefinition, closed_ms: int | None, latest_ms: int) -> DataFrame:
    """The events with `reason`, `partly_late`, `time_ms`, `last_start`, the columns of the keys, and `value_<n>`.

    `last_start` is the start of the last window that has the time. Events later than `latest_ms` are bad: a wrong clock
    would keep windows open for ever, or close all of them. Those with a closed window are late.
    """
    records = classified(events, definition.fields(), required=[definition.time_field])
    field = F.col("record").getField
    keys = {name: field(key) for name, key in zip(definition.key_columns(), definition.keys, strict=True)}
    values = {f"value_{number}": field(name) for number, name in enumerate(definition.values)}
    records_with_fields = records.withColumns({**keys, **values, "time_text": field(definition.time_field)})
    texts = {name: F.expr(f"try_cast({name} as {VALUE_TYPE})") for name in values}
    records_with_fields = records_with_fields.withColumns({f"{name}_exact": decimal for name, decimal in texts.items()})
    time_ms = F.when(F.col("time_text").rlike(_MILLISECONDS), F.expr("try_cast(time_text as bigint)")).when(
        F.col("time_text").rlike(_DATE_AND_TIME), F.unix_millis(F.expr("try_cast(time_text as timestamp)"))
    )
    in_range = time_ms.between(YEAR_1_MS, YEAR_10000_MS - 1)
    records_with_fields = records_with_fields.withColumn("time_ms", F.when(in_range, time_ms))
    last_start = F.col("time_ms") - F.pmod(F.col("time_ms"), F.lit(definition.slide_ms))
    records_with_fields = records_with_fields.withColumn("last_start", last_start)
    return records_with_fields.withColumns(_reasons(definition, list(values), closed_ms, latest_ms)).drop(*values)


def _reasons(
    definition: WindowDefinition, values: Sequence[str], closed_ms: int | None, latest_ms: int
) -> dict[str, Column]:
    time_ms, last_start = F.col("time_ms"), F.col("last_start")
    is_late = is_partly_late = F.lit(False)
    if closed_ms is not None:
        is_late = last_start + definition.size_ms <= closed_ms
        is_partly_late = ~is_late & (last_start + definition.slide_ms <= closed_ms)
    reason = F.when(F.col("reason").isNotNull(), F.col("reason")).when(time_ms.isNull(), F.lit(TIME_INVALID))
    for name in values:
        is_outside = F.col(name).isNotNull() & F.col(f"{name}_exact").isNull()
        reason = reason.when(is_outside, F.lit(VALUE_RANGE))
    reason = reason.when(time_ms > latest_ms, F.lit(TIME_AHEAD)).when(is_late, F.lit(LATE))
    return {"reason": reason, "partly_late": is_partly_late & reason.isNull()}


def to_quarantine(records: DataFrame) -> DataFrame:
    """Timed events with a reason for those, too, that are not counted in all of their windows."""
    late = F.when(F.col("partly_late"), F.lit(PARTLY_LATE))
    return records.withColumn("reason", F.coalesce("reason", late))


def partial_sums(records: DataFrame, definition: WindowDefinition, closed_ms: int | None) -> DataFrame:
    """What a batch adds: a row for each open window and keys of its good events, in `definition.columns()`.

    Further rows, without a window, count the events by `outcome`, the reason or GOOD, with the latest time.
    Observed metrics would not do: adaptive execution loses them where a stage has no rows.
    """
    first = F.col("last_start") - (definition.size_ms - definition.slide_ms)
    starts = F.sequence(first, F.col("last_start"), F.lit(definition.slide_ms).cast("bigint"))
    if closed_ms is not None:
        starts = F.filter(starts, lambda start: start + definition.size_ms > closed_ms)
    none = F.array(F.lit(None).cast("bigint"))
    started = records.withColumn(
        START, F.explode(F.when(F.col("reason").isNull(), F.concat(starts, none)).otherwise(none))
    )
    is_window = F.col(START).isNotNull()
    late = F.when(F.col("partly_late"), F.lit(PARTLY_LATE))
    outcome = F.when(~is_window, F.coalesce("reason", late, F.lit(GOOD)))
    keys = {name: F.when(is_window, F.col(name)) for name in definition.key_columns()}
    started = started.withColumns({**keys, "outcome": outcome})
    totals = [
        getattr(F, how)(F.when(is_window, F.col(f"value_{index}_exact"))).alias(name)
        for name, (how, index) in definition.totals().items()
    ]
    newest = F.max(F.when(F.col("reason").isNull(), F.col("time_ms"))).alias("newest_ms")
    counted = started.groupBy(START, *keys, "outcome").agg(F.count(F.lit(1)).alias(COUNT), *totals, newest)
    return _with_types(counted, definition, OUTCOMES)


def added_up(rows: DataFrame, definition: WindowDefinition) -> DataFrame:
    """One row for each window and keys, from the partial sums of many batches."""
    totals = [getattr(F, how)(name).alias(name) for name, (how, _) in definition.totals().items()]
    added = rows.groupBy(START, *definition.key_columns()).agg(F.sum(COUNT).alias(COUNT), *totals)
    return _with_types(added, definition)


def between_ends(
    rows: DataFrame, definition: WindowDefinition, after_ms: int | None, until_ms: int | None
) -> DataFrame:
    """The rows of windows that end after one time (None: all) and not after another (None: all)."""
    end = F.col(START) + definition.size_ms
    rows = rows.filter(F.col(START).isNotNull())
    if after_ms is not None:
        rows = rows.filter(end > after_ms)
    return rows if until_ms is None else rows.filter(end <= until_ms)


def result_events(windows: DataFrame, definition: WindowDefinition, tasks: int) -> DataFrame:
    """Closed windows as the columns `event` and `routing_key`: those of the same keys in one partition, in order."""
    keys = definition.key_columns()
    spread = windows.repartition(tasks, *keys) if keys else windows.coalesce(1)
    ordered = spread.sortWithinPartitions(START)
    return ordered.mapInArrow(partial(_result_events, definition), "event binary, routing_key string")


def _result_events(definition: WindowDefinition, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In tasks: an event for each row."""
    import pyarrow as pa

    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        results = [result_event(definition, row) for row in rows]
        events = pa.array([event for event, _ in results], pa.binary())
        keys = pa.array([key for _, key in results], pa.string())
        yield pa.RecordBatch.from_arrays([events, keys], ["event", "routing_key"])


def _with_types(rows: DataFrame, definition: WindowDefinition, further: Mapping[str, str] | None = None) -> DataFrame:
    types = definition.columns() | dict(further or {})
    return rows.select(*(F.col(name).cast(type_).alias(name) for name, type_ in types.items()))
