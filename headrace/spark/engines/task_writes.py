"""Batch writes as the writers of the Data Source API and the functions for all versions of Spark share them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.model.errors import IllegalStateError
from headrace.spark.client_sink import open_sink
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.write_options import WriteOptions
from headrace.spark.written_batches import BatchName, TaskReport

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession


# What Spark tells about a run, a batch and a task: the local properties of a streaming query, and the task's context.
#
# The properties are set by Spark's micro-batches (`StreamExecution`, `MicroBatchExecution`) on all versions from 3.5 to
# 4.3, in the driver's thread and in tasks. A data source's writer has no other way to learn the query and the batch.

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""In a task of a streaming sink, the query's run id: each start of a query is a job group of its own. A function of
`foreachBatch` may have set another job group, see `active_run`."""

Property = Callable[[str], str | None]


def task_context() -> TaskContext:
    """The context of the task that runs in this process."""
    from pyspark import TaskContext  # not above: `import headrace.spark` works without pyspark

    context = TaskContext.get()
    if context is None:
        raise IllegalStateError("this runs in a Spark task only", code="no_task")
    return context


def query_of(read: Property, writer: str) -> tuple[str, int]:
    """The query's id and the number of its batch, from local properties.

    Raises:
        IllegalStateError: this does not run in a batch of a streaming query. `writer` names what needs one.
    """
    query_id, batch_id = read(QUERY_ID), read(BATCH_ID)
    if not query_id or batch_id is None:
        raise IllegalStateError(
            f"{writer} works in a micro-batch of a streaming query only: Spark has set no {QUERY_ID}", code="no_query"
        )
    return query_id, int(batch_id)


def active_run(session: SparkSession, query_id: str) -> str | None:
    """The id of the run of a query that is running in this driver; None if Spark does not tell.

    `streams` of a batch's session is empty, because that is a clone of the query's session. They share a state.
    """
    from py4j.protocol import Py4JError

    inner: Any = session
    try:
        query = inner.sparkContext._jvm.java.util.UUID.fromString(query_id)
        running = inner._jsparkSession.sharedState().activeStreamingQueries().get(query)
    except Py4JError:
        return None
    return None if running is None else str(running.runId())


_RANDOM_NAME_BYTES: Final = 16


def batch_name(options: WriteOptions) -> BatchName:
    """The name of a batch write: that of the options, or one that no other write has."""
    if options.writer_id is not None and options.epoch is not None:
        return BatchName(options.writer_id, options.epoch)
    return BatchName(secrets.token_hex(_RANDOM_NAME_BYTES), 0)


def was_committed(options: WriteOptions, batch: BatchName) -> bool:
    """Asks the controller whether the batch was committed before."""
    last = open_sink(options).committed_epoch(options.stream, batch.writer)
    return last is not None and batch.epoch <= last


def write_rows(
    options: WriteOptions, batch: BatchName, batches: Iterable[pa.RecordBatch], *, repeated: bool
) -> TaskReport:
    """Writes what Spark gives this task, for a batch whose name the driver has chosen."""
    context = task_context()
    attempt = TaskAttempt(batch, context.partitionId(), context.taskAttemptId(), context.attemptNumber())
    return write_task(open_sink(options), options, attempt, batches, lambda: repeated)
