"""Reads for every engine from Spark 3.5 on: plain functions instead of a data source.

Tasks are `mapInArrow` over the plan: a batch read carries it, a streaming query reads it from a directory of manifests.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from headrace.spark.engines.manifest_thread import ManifestThread, plan_for_queries
from headrace.spark.engines.session import with_session_defaults
from headrace.spark.manifest_planner import ManifestPlanner
from headrace.spark.manifests import partition_of_line
from headrace.spark.metadata_tables import asks_for_metadata, metadata_batches, metadata_options
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.partitions import Partition
from headrace.spark.plan_files import plan_files
from headrace.spark.plans import open_plans
from headrace.spark.task_reads import read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read_batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The events between two stream cuts, as `spark.read.format("headrace")` reads them on Spark 4.

    "latest" is the tail at the time of this call, so that every action on the DataFrame sees the same events. With the
    option metadata it is the rows of that table at the time of this call.

    Raises:
        InvalidRequestError: an option is wrong.
        HeadraceError: the read could not be planned, for example NotFoundError.
    """
    if asks_for_metadata(options):
        table = metadata_options(options)
        batches = metadata_batches(table)
        return _numbered(spark, partial(_metadata_numbered, batches), len(batches), table.ddl())
    checked = with_session_defaults(spark, read_options(options))
    with closing(open_plans(checked)) as plans:
        partitions = plans.batch_partitions()
    pickled = [pickle.dumps(partition) for partition in partitions]
    return _numbered(spark, partial(_read_numbered, checked, pickled), len(pickled), checked.ddl())


def read_stream(spark: SparkSession, options: Mapping[str, str], *, plans: str) -> DataFrame:
    """The events of a stream for a streaming query with any sink, trigger, watermark and state, from Spark 3.5 on.

    `plans` is a directory for the plans of the batches, which this process writes while the query runs: a path of this
    machine or, on a cluster, s3://bucket/prefix. Use one directory with one checkpoint, always together, for example a
    directory in the checkpoint. An idle stream makes no batches.

    With `trigger(availableNow=True)` the query reads one batch of what was there at this call, and each start needs a
    call of its own; `run_until_caught_up` reads everything. A problem of planning fails the query, and its next start
    continues where it stopped.

    Raises:
        InvalidRequestError: an option is wrong.
        HeadraceError: the stream could not be reached, for example NotFoundError.
    """
    return planned_stream(spark, with_session_defaults(spark, read_options(options)), plans)[0]


def planned_stream(spark: SparkSession, options: ReadOptions, plans: str) -> tuple[DataFrame, ManifestThread]:
    """A streaming DataFrame and the thread that plans its batches."""
    files = plan_files(plans)
    planning = plan_for_queries(spark, ManifestPlanner(MicroBatches(options, links=False), files))
    lines = spark.readStream.schema("plan string").option("maxFilesPerTrigger", 1).text(files.url)
    spread = lines.repartition(spark.sparkContext.defaultParallelism)
    frame = spread.mapInArrow(partial(_read_lines, options), options.ddl())
    return frame, planning


def _numbered(spark: SparkSession, read: Read, parts: int, ddl: str) -> DataFrame:
    """A task for each part, which `read` gets by its number."""
    return spark.range(0, parts, 1, max(1, parts)).mapInArrow(read, ddl)


def _metadata_numbered(
    batches: Sequence[pa.RecordBatch], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield batches[number]


def _read_numbered(
    options: ReadOptions, pickled: Sequence[bytes], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Each task gets all partitions with this function, and loads its own only: bytes take a hundredth of the time."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            partition: Partition = pickle.loads(pickled[number])  # noqa: S301 - as the function itself
            yield from read_partition(options, partition)


def _read_lines(options: ReadOptions, lines: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in lines:
        for line in batch.column(0).to_pylist():
            yield from read_partition(options, partition_of_line(line))
