"""What Spark does around the sink, without Spark: tasks with their attempts, then the commit."""

from __future__ import annotations

import pyarrow as pa
from sink_double import SinkDouble

from headrace.spark.sink_commits import commit_batch
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.write_options import WriteOptions, write_options
from headrace.spark.written_batches import BatchName, TaskReport, WrittenBatch

BATCH = BatchName.of_query("1c0f", 3, None)


def options(**more: str) -> WriteOptions:
    given = {"controller": "http://c", "scope": "s", "stream": "t"} | more
    return write_options(given, streaming="epoch" not in given)


def rows_of(*events: bytes, key: str | None = None, stream: str | None = None) -> pa.RecordBatch:
    columns = {"event": pa.array(events, pa.binary()), "routing_key": pa.array([key] * len(events), pa.string())}
    if stream is not None:
        columns["stream"] = pa.array([stream] * len(events), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


class Driver:
    """What Spark does around the sink: tasks with their attempts, then the commit."""

    def __init__(self, sink: SinkDouble, checked: WriteOptions, batch: BatchName = BATCH) -> None:
        self.sink, self.options, self.batch = sink, checked, batch
        self.slept: list[float] = []
        self._attempts = 0

    def task(self, *batches: pa.RecordBatch, partition: int = 0, repeated: bool = False) -> TaskReport:
        self._attempts += 1
        attempt = TaskAttempt(self.batch, partition, self._attempts)
        return write_task(self.sink, self.options, attempt, batches, lambda: repeated)

    def commit(self, *reports: TaskReport) -> WrittenBatch:
        return commit_batch(self.sink, self.options, self.batch, reports, self.slept.append)
