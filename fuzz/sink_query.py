"""A streaming query that copies the stream `in` to the stream `out` of a scope, as a process that can be killed.

    python -m fuzz.sink_query --controller URL --scope S --directory DIR [--form FORM] [--master URL] ...

It runs until DIR has a file `finish`, and then ends when it has copied all that it finds. Its checkpoint is in DIR.
FORM is `sink` (the data source) or `foreach-batch`. On Spark 3.5 it reads with `read_stream`.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from fuzz.sink_files import BATCH_BYTES, query_arguments
from fuzz.sink_tasks import ROWS_AT_ONCE, TaskPlan
from headrace.spark import read_stream, register, write_batch
from headrace.spark.engines.local_session import local_settings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ATTEMPTS_MAX: Final = 8
"""Of a task: executors and workers are killed under it."""

_TASKS: Final = 2
_BUFFER_BYTES: Final = 256
_HAS_DATA_SOURCES: Final = int(pyspark.__version__.partition(".")[0]) >= 4


def main() -> None:
    arguments = query_arguments(f"local[2,{ATTEMPTS_MAX}]")
    spark = session(arguments)
    try:
        copy(spark, arguments)
    finally:
        spark.stop()


def session(arguments: Namespace) -> SparkSession:
    """A session that repeats tasks, as a cluster does."""
    settings = local_settings(arguments.directory) | {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.buffer.size": str(_BUFFER_BYTES),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_ONCE),
        "spark.task.maxFailures": str(ATTEMPTS_MAX),
    }
    if arguments.speculation:
        settings |= {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation.task.duration.threshold": "2s",
        }
    builder = SparkSession.builder.master(arguments.master).appName("sink-query")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def copy(spark: SparkSession, arguments: Namespace) -> None:
    directory: Path = arguments.directory
    where = {"controller": arguments.controller, "scope": arguments.scope}
    writing = where | {"stream": "out", "default_num_segments": "2"}

    def write(batch: DataFrame, batch_id: int) -> None:
        write_batch(batch, batch_id, writing)

    events = _rows(_read(spark, where, directory), arguments)
    if arguments.form == "sink":
        query = events.writeStream.format("headrace").options(**writing)
    else:
        query = events.writeStream.foreachBatch(write)
    started = query.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        _await_finish(started, directory / "finish")
    finally:
        started.stop()


def _read(spark: SparkSession, where: dict[str, str], directory: Path) -> DataFrame:
    reading = where | {"stream": "in", "columns": "event", "start_stream_cut": "earliest"}
    reading |= {"approx_bytes_per_trigger": str(BATCH_BYTES), "max_partition_bytes": str(BATCH_BYTES // 2)}
    if not _HAS_DATA_SOURCES:
        return read_stream(spark, reading, plans=str(directory / "plans"))
    register(spark)
    return spark.readStream.format("headrace").options(**reading).load()


def _rows(events: DataFrame, arguments: Namespace) -> DataFrame:
    """The events as they are; or with keys, those of a key in order."""
    columns = ["event"]
    if arguments.ordered:
        columns = ["event", "routing_key"]
        key = "cast(cast(decode(event, 'utf-8') as int) % 7 as string) routing_key"
        events = events.selectExpr("event", key).repartition(_TASKS, "routing_key")
    plan = TaskPlan(
        arguments.directory,
        is_sorted=arguments.ordered,
        fails=arguments.fail_first_attempts,
        straggles=arguments.speculation,
    )
    return events.mapInArrow(
        plan, ", ".join(f"{column} {'binary' if column == 'event' else 'string'}" for column in columns)
    )


def _await_finish(query: StreamingQuery, finish: Path) -> None:
    while not finish.exists():
        if query.awaitTermination(1):
            return
    query.processAllAvailable()


if __name__ == "__main__":
    main()
