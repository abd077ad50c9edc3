"""Writing without the Data Source API, for all versions of Spark from 3.5 on: `write_batch` and `write_events`.

The rows go through `mapInArrow`, whose tasks return their reports as rows. One action collects them, so that the
DataFrame is computed once. The driver then commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.model.errors import IllegalStateError
from headrace.spark.client_sink import open_sink
from headrace.spark.engines.task_writes import active_run, batch_name, query_of, was_committed, write_rows
from headrace.spark.sink_commits import PreparedStreams, abort_batch, commit_batch
from headrace.spark.write_columns import check_columns
from headrace.spark.write_options import WriteOptions, write_options
from headrace.spark.written_batches import BatchName, TaskReport, WrittenBatch, is_repetition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPORT: Final = "report"
_BATCHES_KEPT_MAX: Final = 1000

_prepared = PreparedStreams()
_lock = threading.Lock()
_written: dict[tuple[Any, ...], None] = {}
"""The batches that this process wrote, by run and sink, so that a second write of a batch is not taken for a repeat.
If the run is not known, the controller decides."""


def write_batch(events: DataFrame, batch_id: int, options: Mapping[str, str]) -> WrittenBatch:
    """Writes a micro-batch exactly once, from a function that `foreachBatch` calls.

    `options` are those of the sink. If the batch was committed before, `events` is not computed. A function that writes
    several DataFrames of one batch to one stream gives each its own `writer_id`.

    Raises:
        InvalidRequestError: an option or a column cannot be used.
        IllegalStateError: a streaming query did not call this, it runs another batch, this sink already wrote the
            batch in this run, or the checkpoint is older than the last commit.
        HeadraceError: the batch is not committed. Let the query fail: its next run repeats the batch.
    """
    checked = write_options(options, streaming=True)
    read: Callable[[str], str | None] = events.sparkSession.sparkContext.getLocalProperty
    query_id, of_spark = query_of(read, "write_batch")
    if batch_id != of_spark:
        raise IllegalStateError(
            f"Spark runs batch {of_spark}, not {batch_id}: pass the number that foreachBatch gives to the function, or"
            " new batches would be taken for repetitions",
            code="other_batch",
        )
    batch = BatchName.of_query(query_id, batch_id, checked.writer_id)
    _check(events, checked)
    if not checked.exactly_once:
        return _write(events, checked, batch)
    run_id = active_run(events.sparkSession, query_id)
    write = (run_id, checked.controller, checked.scope, checked.stream, batch)
    if run_id is not None and write in _written:
        raise IllegalStateError(
            f"batch {batch_id} was already written to {checked.scope}/{checked.stream}: give each write of a batch a"
            " 'writer_id' of its own, or it would be taken for a repetition",
            code="written_twice",
        )
    repeated = is_repetition(batch_id, open_sink(checked).committed_epoch(checked.stream, batch.writer))
    done = WrittenBatch(0, 0, repeated=True) if repeated else _write(events, checked, batch)
    with _lock:
        _written[write] = None
        while len(_written) > _BATCHES_KEPT_MAX:
            del _written[next(iter(_written))]
    return done


def write_events(events: DataFrame, options: Mapping[str, str]) -> WrittenBatch:
    """Appends the rows of a DataFrame, all of them or none, on all versions of Spark from 3.5 on.

    With the options `writer_id` and `epoch`, a job that is run again adds nothing if it has succeeded before.

    Raises:
        InvalidRequestError: an option or a column cannot be used.
        HeadraceError: nothing is written, unless the message says that the batch is committed, or the controller did
            not answer. With `writer_id` and `epoch` the job can be run again in any case.
    """
    checked = write_options(options, streaming=False)
    batch = batch_name(checked)
    _check(events, checked)
    if checked.writer_id is not None and was_committed(checked, batch):
        return WrittenBatch(0, 0, repeated=True)
    return _write(events, checked, batch)


def _check(events: DataFrame, options: WriteOptions) -> None:
    check_columns([(field.name, field.dataType.simpleString()) for field in events.schema.fields], options)
    _prepared.prepare(open_sink(options), options)


def _write(events: DataFrame, options: WriteOptions, batch: BatchName) -> WrittenBatch:
    access = open_sink(options)
    try:
        rows = events.mapInArrow(partial(_write_partition, options, batch), f"{_REPORT} string").collect()
        reports = [TaskReport.from_text(row[_REPORT]) for row in rows]
        return commit_batch(access, options, batch, reports, threading.Event().wait)
    except BaseException:
        abort_batch(access, options, batch)  # has no effect on a commit that the controller has accepted
        raise


def _write_partition(
    options: WriteOptions, batch: BatchName, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    report = write_rows(options, batch, batches, repeated=False)
    yield pa.RecordBatch.from_arrays([pa.array([report.to_text()], pa.string())], [_REPORT])
