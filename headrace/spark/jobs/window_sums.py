"""The rows of windowed counts in Spark: events with their time, partial sums of a batch, and closed windows as events.

`timed` gives each event a reason if it cannot be counted. A bad or late event never fails a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark.jobs.json_records import classified
from headrace.spark.jobs.time_ranges import YEAR_1_MS, YEAR_10000_MS
from headrace.spark.jobs.window_definition import COUNT, START, VALUE_TYPE, WindowDefinition, result_event

if TYPE_CHECKING:
    import pyarrow as pa

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
    found = records.withColumns({**keys, **values, "time_text": field(definition.time_field)})
    texts = {name: F.expr(f"try_cast({name} as {VALUE_TYPE})") for name in values}
    found = found.withColumns({f"{name}_exact": decimal for name, decimal in texts.items()})
    time_ms = F.when(F.col("time_text").rlike(_MILLISECONDS), F.expr("try_cast(time_text as bigint)")).when(
        F.col("time_text").rlike(_DATE_AND_TIME), F.unix_millis(F.expr("try_cast(time_text as timestamp)"))
    )
    in_range = time_ms.between(YEAR_1_MS, YEAR_10000_MS - 1)
    found = found.withColumn("time_ms", F.when(in_range, time_ms))
    last_start = F.col("time_ms") - F.pmod(F.col("time_ms"), F.lit(definition.slide_ms))
    found = found.withColumn("last_start", last_start)
    return found.withColumns(_reasons(definition, list(values), closed_ms, latest_ms)).drop(*values)


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
        found = [result_event(definition, row) for row in rows]
        events = pa.array([event for event, _ in found], pa.binary())
        keys = pa.array([key for _, key in found], pa.string())
        yield pa.RecordBatch.from_arrays([events, keys], ["event", "routing_key"])


def _with_types(rows: DataFrame, definition: WindowDefinition, further: Mapping[str, str] | None = None) -> DataFrame:
    types = definition.columns() | dict(further or {})
    return rows.select(*(F.col(name).cast(type_).alias(name) for name, type_ in types.items()))
