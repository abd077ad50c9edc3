"""What an event costs from a stream through Spark into another stream, next to reading it alone.

All queries are streaming queries over the same events in one batch. One goes to Spark's `noop` sink: it is the floor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processor_time import processor_s_of_tree
from benchmarks.results import Results
from benchmarks.workloads import SCOPE, WrongResultError
from headrace.client import Headrace, ScalingPolicy
from headrace.spark import write_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FLOOR: Final = "source alone"
Sink = Callable[["DataStreamWriter"], "DataStreamWriter"]


class SinkRounds:
    """Rounds of the same copy, each into a new stream."""

    def __init__(self, spark: SparkSession, headrace: Headrace, where: dict[str, str], segments: int) -> None:
        self._spark = spark
        self._headrace = headrace
        self._where = where
        self._segments = segments
        self._pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        self._targets = 0

    def measure(self, results: Results, directory: Path, stream: str, events: int) -> None:
        """One round: the source alone, the streaming sink, and `write_batch` in `foreachBatch`, in turn."""
        floor = f"{FLOOR}, {stream}, processor"
        for name in (FLOOR, "sink", "sink with write_batch"):
            target = None if name == FLOOR else self._new_stream(stream)
            processor_s, wall_s = self._run(directory, stream, self._sink(name, target))
            if target is not None:
                self._check(target, stream)
            beside = None if target is None else floor
            results.add(f"{name}, {stream}, processor", processor_s / events * 1e6, "us an event", beside=beside)
            results.add(f"{name}, {stream}, rate", events / wall_s / 1e6, "M events/s")

    def _sink(self, name: str, target: str | None) -> Sink:
        if target is None:
            return lambda writer: writer.format("noop")
        options = self._where | {"stream": target}
        if name == "sink":
            return lambda writer: writer.format("headrace").options(**options)

        def write(batch: DataFrame, number: int) -> None:
            write_batch(batch, number, options)

        return lambda writer: writer.foreachBatch(write)

    def _run(self, directory: Path, stream: str, sink: Sink) -> tuple[float, float]:
        """Processor time, and the wall-clock time of the batches, in seconds."""
        options = self._where | {"stream": stream, "start_stream_cut": "earliest", "columns": "event"}
        frame = self._spark.readStream.format("headrace").options(**options).load()
        with tempfile.TemporaryDirectory(dir=directory) as checkpoint:
            before_s = processor_s_of_tree(self._pid)
            query: StreamingQuery = sink(frame.writeStream).option("checkpointLocation", checkpoint).start()
            try:
                query.processAllAvailable()
                processor_s = processor_s_of_tree(self._pid) - before_s
                wall_ms = sum(each["durationMs"]["triggerExecution"] for each in query.recentProgress)
            finally:
                query.stop()
        return processor_s, wall_ms / 1000

    def _new_stream(self, stream: str) -> str:
        self._targets += 1
        name = f"{stream}-copy-{self._targets}"
        self._headrace.admin.create_stream(SCOPE, name, scaling=ScalingPolicy.fixed(self._segments))
        return name

    def _check(self, target: str, stream: str) -> None:
        """Raises WrongResultError unless the copy has as many events as the stream, which are all of one size."""
        lengths = [
            sum(self._headrace.admin.stream_cut(SCOPE, name, at="latest").offsets.values()) for name in (target, stream)
        ]
        if lengths[0] != lengths[1]:
            raise WrongResultError(f"the copy of {stream} has {lengths[0]} bytes instead of {lengths[1]}")
