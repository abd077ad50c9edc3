"""The writers of `format("headrace")` on Spark 4.0 and later: thin classes between Spark and the sink.

Spark pickles a writer into its tasks and makes another one in the driver for each commit, so a writer has options only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from headrace.model.errors import InvalidRequestError
from headrace.spark.client_sink import open_sink
from headrace.spark.engines.task_writes import RUN_ID, batch_name, query_of, task_context, was_committed, write_rows
from headrace.spark.sink_commits import PreparedStreams, abort_batch, abort_unnamed_batch, commit_batch
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.write_columns import ColumnTypes, batches_of_rows, check_columns
from headrace.spark.write_options import WriteOptions
from headrace.spark.written_batches import BatchName, RepeatedBatches, TaskReport

_prepared = PreparedStreams()
_repeated = RepeatedBatches()


@dataclass(frozen=True, slots=True)
class ReportMessage(WriterCommitMessage):
    """A task's report on its way to the driver."""

    report: TaskReport


class HeadraceBatchWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame, all of them or none."""

    def __init__(self, options: WriteOptions, batch: BatchName, *, repeated: bool) -> None:
        self._options = options
        self._batch = batch
        self._repeated = repeated

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ReportMessage:
        return ReportMessage(write_rows(self._options, self._batch, iterator, repeated=self._repeated))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_batch(open_sink(self._options), self._options, self._batch, reports_of(messages), Event().wait)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_batch(open_sink(self._options), self._options, self._batch)


class HeadraceRowStreamWriter(DataSourceStreamWriter):
    """Commits each micro-batch once. This is the form for Spark 4.0, whose stream writers get rows."""

    def __init__(self, options: WriteOptions, columns: ColumnTypes) -> None:
        self._options = options
        self._columns = list(columns)

    def write(self, iterator: Iterator[Any]) -> ReportMessage:
        return self.write_batches(batches_of_rows(iterator, self._columns))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reports = reports_of(messages)
        if reports:
            batch = BatchName(reports[0].batch.name, batchId)
            commit_batch(open_sink(self._options), self._options, batch, reports, Event().wait)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        access, reports = open_sink(self._options), reports_of(messages)
        if reports:
            abort_batch(access, self._options, BatchName(reports[0].batch.name, batchId))
        else:
            abort_unnamed_batch(access, self._options, batchId)

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> ReportMessage:
        """Writes what Spark gives this task."""
        context = task_context()
        query_id, batch_id = query_of(context.getLocalProperty, "a stream writer")
        batch = BatchName.of_query(query_id, batch_id, self._options.writer_id)
        access, options = open_sink(self._options), self._options
        run_id = context.getLocalProperty(RUN_ID)
        run = None if run_id is None else (run_id, options.controller, options.scope, options.stream, batch.name)

        def is_repeated() -> bool:
            if not options.exactly_once:
                return False
            return _repeated.is_repeated(run, batch_id, lambda: access.committed_epoch(options.stream, batch.writer))

        attempt = TaskAttempt(batch, context.partitionId(), context.taskAttemptId(), context.attemptNumber())
        return ReportMessage(write_task(access, options, attempt, batches, is_repeated))


def open_batch_writer(options: WriteOptions, columns: ColumnTypes, *, overwrite: bool) -> HeadraceBatchWriter:
    """The writer of one batch write. Runs in the driver.

    Raises:
        InvalidRequestError: the mode is not append, or the columns cannot be written.
        NotFoundError: a target stream does not exist, and must not be created.
    """
    if overwrite:
        raise _append_only('mode("append")')
    check_columns(columns, options)
    _prepared.prepare(open_sink(options), options)
    batch = batch_name(options)
    repeated = options.writer_id is not None and was_committed(options, batch)
    return HeadraceBatchWriter(options, batch, repeated=repeated)


def open_stream_writer(options: WriteOptions, columns: ColumnTypes, *, overwrite: bool) -> HeadraceRowStreamWriter:
    """The writer of a streaming query. Runs in the driver, for each micro-batch.

    Raises:
        InvalidRequestError: the output mode is not append, or the columns cannot be written.
        NotFoundError: a target stream does not exist, and must not be created.
    """
    if overwrite:
        raise _append_only('outputMode("append")')
    check_columns(columns, options)
    _prepared.prepare(open_sink(options), options)
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        from headrace.spark.engines.arrow_stream_writer import HeadraceStreamWriter

        return HeadraceStreamWriter(options, columns)
    return HeadraceRowStreamWriter(options, columns)


def reports_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of the tasks that ended well; a task that failed has no message."""
    return [message.report for message in messages if isinstance(message, ReportMessage)]


def _append_only(how: str) -> InvalidRequestError:
    return InvalidRequestError(f"a stream is only appended to: write with {how}", code="append_only")
