"""`make bench-spark`: what an event costs in Spark through the connector, beside Parquet and ready-made Arrow batches.

The figures that count are processor time: of the JVM and of all its Python processes, for each event. They depend
little on the other programs of the machine. Rates do: believe them only on a quiet machine. All sources hand the same
events to Spark's `noop` sink in a session with two cores, in turn. The events come from an S3 double in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s_of_tree
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.settings import KIB, MIB, AppendLoad
from benchmarks.spark_sink import SinkRounds
from benchmarks.workloads import SCOPE, WrongResultError
from headrace.client import Headrace, ScalingPolicy, connect
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.local.running import running_stack
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS: Final = 4
TASKS: Final = 4
EVENTS_PER_WRITE: Final = 50_000
BATCH_BYTES: Final = 8 * MIB
READS_OF_A_TASK: Final = 50
STORED_WITHIN_S: Final = 120.0
ALPHABET: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)


@dataclass(frozen=True, slots=True)
class Workload:
    """Events that are read from one stream, and from a file with the same events."""

    name: str
    load: AppendLoad
    text: bool = False

    @property
    def stream(self) -> str:
        return f"{'text' if self.text else 'bytes'}-{self.load.event_bytes}"

    @property
    def file(self) -> str:
        return "text" if self.text else "parquet"


WORKLOADS: Final = (
    Workload("100 B", AppendLoad(100, 2_000_000)),
    Workload("1 KiB", AppendLoad(KIB, 300_000)),
    Workload("100 B JSON as text", AppendLoad(100, 2_000_000), text=True),
)
QUICK: Final = (
    Workload("100 B", AppendLoad(100, 20_000)),
    Workload("100 B JSON as text", AppendLoad(100, 20_000), text=True),
)
"""Proves that the benchmark runs. Its figures mean nothing."""


def events_of(workload: Workload, number: int) -> pa.Array:
    """The `number`-th column of events: random bytes, or JSON objects of the same length."""
    count, size = min(EVENTS_PER_WRITE, workload.load.events), workload.load.event_bytes
    choice = np.random.default_rng(number)
    if not workload.text:
        data = choice.integers(0, 256, count * size, np.uint8)
    else:
        head, tail = b'{"id":1,"text":"', b'"}'
        rows = np.empty((count, size), np.uint8)
        rows[:, : len(head)] = np.frombuffer(head, np.uint8)
        rows[:, len(head) : size - len(tail)] = choice.choice(ALPHABET, (count, size - len(head) - len(tail)))
        rows[:, size - len(tail) :] = np.frombuffer(tail, np.uint8)
        data = rows.ravel()
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def columns_of(workload: Workload) -> Iterator[pa.Array]:
    """All events, column by column."""
    left, number = workload.load.events, 0
    while left:
        events = events_of(workload, number)[:left]
        yield events
        left, number = left - len(events), number + 1


def write_stream(headrace: Headrace, workload: Workload) -> None:
    """Write the events to a stream of their own, and wait until tier 2 has all of them."""
    headrace.admin.create_stream(SCOPE, workload.stream, scaling=ScalingPolicy.fixed(SEGMENTS))
    with headrace.writer(SCOPE, workload.stream) as writer:
        for events in columns_of(workload):
            keys = pa.array(np.arange(len(events)) % 1000).cast(pa.string())
            writer.write_many(events, keys)
        writer.flush()
    tail = headrace.admin.stream_cut(SCOPE, workload.stream, at="latest")
    deadline_s = time.monotonic() + STORED_WITHIN_S
    for segment_id, length in tail.offsets.items():
        while not _is_stored(headrace, workload.stream, segment_id, length):
            if time.monotonic() > deadline_s:
                raise WrongResultError(f"segment {segment_id} of {workload.stream} did not reach tier 2")
            time.sleep(0.2)


def _is_stored(headrace: Headrace, stream: str, segment_id: int, length: int) -> bool:
    if length == 0:
        return True
    found = headrace.admin.chunks(SCOPE, stream, segment_id, from_offset=length - 1, to_offset=length, limit=1)
    return found.stored_until == length


def write_files(directory: Path, workload: Workload) -> None:
    """Write the same events as uncompressed Parquet, or as lines of text, in as many files as there are segments."""
    target = directory / workload.stream
    target.mkdir()
    all_events = list(columns_of(workload))
    for number in range(SEGMENTS):
        part = all_events[number::SEGMENTS]
        if workload.text:
            with (target / f"{number}.txt").open("wb") as file:
                for events in part:
                    file.write(b"\n".join(events.to_pylist()) + b"\n")
        elif part:
            table = pa.table({"event": pa.chunked_array(part)})
            pq.write_table(table, target / f"{number}.parquet", compression="none", use_dictionary=False)


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """A session with two cores, on loopback."""
    os.environ["PYTHONPATH"] = os.getcwd()
    from benchmarks.spark_sources import ReadyMadeSource
    from headrace.spark import register
    from headrace.spark.engines.local_session import local_session

    session = local_session(directory, "headrace-benchmarks", settings={"spark.driver.memory": "2g"})
    register(session)
    session.dataSource.register(ReadyMadeSource)
    try:
        yield session
    finally:
        session.stop()


class SparkCost:
    """Processor time of the JVM of a session and of its Python processes."""

    def __init__(self, spark: SparkSession) -> None:
        self._pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def measure(self, work: Callable[[], None]) -> tuple[float, float]:
        """Processor time and wall-clock time, in seconds."""
        processor_before_s, before_s = processor_s_of_tree(self._pid), time.perf_counter()
        work()
        return processor_s_of_tree(self._pid) - processor_before_s, time.perf_counter() - before_s


def read_once(frame: DataFrame) -> None:
    """Read all rows with all columns."""
    frame.write.format("noop").mode("overwrite").save()


def sources(
    spark: SparkSession, where: dict[str, str], directory: Path, workload: Workload
) -> dict[str, Callable[[], DataFrame]]:
    """What reads the events, by name. Each call makes a new plan."""
    options = where | {"stream": workload.stream} | ({"event_format": "text"} if workload.text else {})
    made = {"event_bytes": str(workload.load.event_bytes), "events": str(workload.load.events), "tasks": str(TASKS)}
    files = str(directory / workload.stream)
    found = {
        "headrace": lambda: spark.read.format("headrace").options(**options).load(),
        workload.file: lambda: spark.read.format(workload.file).load(files),
    }
    if not workload.text:
        found["ready-made"] = lambda: spark.read.format("ready-made").options(**made).load()
    return found


def measure_reading(
    results: Results, spark: SparkSession, where: dict[str, str], directory: Path, workload: Workload
) -> None:
    """One round: each source in turn."""
    cost, load = SparkCost(spark), workload.load
    for name, frame in sources(spark, where, directory, workload).items():
        processor_s, wall_s = cost.measure(lambda frame=frame: read_once(frame()))  # type: ignore[misc]
        beside = None if name != "headrace" else f"{workload.name}, {workload.file}, processor"
        results.add(
            f"{workload.name}, {name}, processor", processor_s / load.events * 1e6, "us an event", beside=beside
        )
        results.add(f"{workload.name}, {name}, rate", load.events / wall_s / 1e6, "M events/s")
        results.add(f"{workload.name}, {name}, payload", load.events * load.event_bytes / wall_s / 1e6, "MB/s")


def check_count(spark: SparkSession, where: dict[str, str], workload: Workload) -> None:
    """Raises WrongResultError if the connector does not return each event once."""
    found = spark.read.format("headrace").options(**where, stream=workload.stream, columns="offset").load().count()
    if found != workload.load.events:
        raise WrongResultError(f"{workload.stream}: {found} of {workload.load.events} events")


def measure_batches(
    results: Results, spark: SparkSession, where: dict[str, str], directory: Path, workload: Workload
) -> None:
    """Micro-batches of 8 MiB from all segments: the first ones warm up, and the last one is shorter."""
    options = where | {"stream": workload.stream, "start_stream_cut": "earliest"}
    frame = spark.readStream.format("headrace").options(**options, approx_bytes_per_trigger=str(BATCH_BYTES)).load()
    with tempfile.TemporaryDirectory(dir=directory) as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            processor_s, _ = SparkCost(spark).measure(query.processAllAvailable)
            batches = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
    results.add("micro-batch of 8 MiB, 4 segments", statistics.median(batches) / 1000, "s")
    results.add("micro-batch of 8 MiB, 4 segments, processor", processor_s / len(batches), "s a batch")
    results.add("micro-batches of that run", float(len(batches)), "batches")


def measure_task(results: Results, where: dict[str, str], workload: Workload) -> None:
    """What our code takes for a task with one small range, in a Python worker that has had tasks before."""
    from headrace.spark import HeadraceDataSource

    with connect(where["controller"]) as headrace:
        head = headrace.admin.stream_cut(SCOPE, workload.stream, at="earliest")
        ends = dict.fromkeys(head.offsets, workload.load.event_bytes + 8)
        end = stream_cut_text(StreamCut.of(SCOPE, workload.stream, ends))
    options = where | {"stream": workload.stream, "end_stream_cut": end}
    reader = HeadraceDataSource(options).reader(None)  # type: ignore[arg-type]
    partition = reader.partitions()[0]
    sent = pickle.dumps((reader, partition))

    def run() -> None:
        task_reader, task_partition = pickle.loads(sent)  # noqa: S301 pickled four lines above
        if not sum(batch.num_rows for batch in task_reader.read(task_partition)):
            raise WrongResultError("a task has read nothing")

    run()
    before_s = time.process_time()
    for _ in range(READS_OF_A_TASK):
        run()
    results.add(
        "a task with one event of each segment, our processor time",
        (time.process_time() - before_s) / READS_OF_A_TASK * 1e3,
        "ms",
    )


def measure(results: Results, directory: Path, workloads: tuple[Workload, ...], rounds: int) -> None:
    """All rounds on one local stack and in one session, after a round that warms up."""
    with (
        tempfile.TemporaryDirectory(prefix="spark-", dir=directory) as scratch,
        running_s3_double("free", keep=True) as s3_url,
    ):
        place = Path(scratch)
        environment = {
            "AWS_ENDPOINT_URL_S3": s3_url,
            "HEADRACE_FLUSH_AGE_S": "1",
            "HEADRACE_COMPACTION_BYTES_PER_S": "0",
        }
        with (
            running_stack(place, segment_stores=1, environment=environment) as stack,
            connect(stack["endpoints"]["http"]) as headrace,
        ):
            where = {"controller": stack["endpoints"]["http"], "scope": SCOPE}
            headrace.admin.create_scope(SCOPE)
            for workload in workloads:
                print(f"writing {workload.name}", file=sys.stderr, flush=True)
                write_stream(headrace, workload)
                write_files(place, workload)
            with spark_session(place) as spark:
                sinks = SinkRounds(spark, headrace, where, SEGMENTS)
                for number in range(rounds + 1):
                    print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
                    into = results if number else Results()  # the first round warms the JVM up
                    for workload in workloads:
                        if not number:
                            check_count(spark, where, workload)
                        measure_reading(into, spark, where, place, workload)
                    measure_batches(into, spark, where, place, workloads[0])
                    measure_task(into, where, workloads[0])
                    sinks.measure(into, place, workloads[0].stream, workloads[0].load.events)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it runs; figures mean nothing")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    workloads, rounds = (QUICK, 1) if options.quick else (WORKLOADS, options.rounds)
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    measure(results, options.output, workloads, rounds)
    settings: dict[str, Any] = {"rounds": rounds, "workloads": [asdict(workload) for workload in workloads]}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "spark.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
