"""Batch writes as the writers of the Data Source API and the functions for all versions of Spark share them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from headrace.spark.client_sink import open_sink
from headrace.spark.engines.task_identity import task_context
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.write_options import WriteOptions
from headrace.spark.written_batches import BatchName, TaskReport

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
