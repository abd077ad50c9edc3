"""The copy of `sink_query` without Spark: the connector's parts below it, in a loop that treats them as Spark does.

It takes the same arguments, and keeps a checkpoint of that form. Tasks are threads. It says nothing about Spark, but it
is many times faster. So it finds what the end of a driver, a controller or a store does to a commit.
"""

from __future__ import annotations

import itertools
import json
import secrets
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Final

import pyarrow as pa

from fuzz.sink_files import BATCH_BYTES, FAILED, OVERLAPPED, query_arguments
from headrace.spark.client_sink import open_sink
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.partitions import Partition
from headrace.spark.sink_commits import commit_batch, prepare_streams
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.task_reads import read_partition
from headrace.spark.write_options import WriteOptions, write_options
from headrace.spark.written_batches import BatchName, TaskReport, is_repetition

_TASKS: Final = 2
_KEYS: Final = 7
_EVERY: Final = 3
_POLL_S: Final = 0.2


class Checkpoint:
    """Spark's: the end of each batch that is planned, and the numbers of those that are committed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        metadata = directory / "metadata"
        if not metadata.exists():
            self._write(metadata, {"id": secrets.token_hex(16)})
        self.query_id: str = json.loads(metadata.read_text())["id"]

    def last(self, name: str) -> int:
        return max((int(each.name) for each in (self._directory / name).glob("[0-9]*")), default=-1)

    def plan(self, number: int, start: str, end: str) -> None:
        self._write(self._directory / "offsets" / str(number), {"start": start, "end": end})

    def planned(self, number: int) -> tuple[str, str]:
        document = json.loads((self._directory / "offsets" / str(number)).read_text())
        return document["start"], document["end"]

    def commit(self, number: int) -> None:
        self._write(self._directory / "commits" / str(number), {})

    def _write(self, file: Path, document: object) -> None:
        temporary = file.parent / f".{file.name}"
        temporary.write_text(json.dumps(document))
        temporary.replace(file)


class Query:
    """Batch after batch, each with two tasks at a time."""

    def __init__(self, arguments: Namespace) -> None:
        where = {"controller": arguments.controller, "scope": arguments.scope}
        reading = where | {"stream": "in", "columns": "event", "start_stream_cut": "earliest"}
        reading |= {"approx_bytes_per_trigger": str(BATCH_BYTES), "max_partition_bytes": str(BATCH_BYTES // 2)}
        self._arguments = arguments
        self._reading: ReadOptions = read_options(reading)
        self._writing: WriteOptions = write_options(
            where | {"stream": "out", "default_num_segments": "2"}, streaming=True
        )
        self._checkpoint = Checkpoint(arguments.directory / "checkpoint")
        self._batches = MicroBatches(self._reading)
        self._access = open_sink(self._writing)
        self._attempts = itertools.count()

    def run(self) -> None:
        """Until there is a file `finish`, and nothing is left to read."""
        prepare_streams(self._access, self._writing)
        with ThreadPoolExecutor(_TASKS) as threads:
            while (number := self._next()) is not None:
                self._run_batch(number, threads)
                self._checkpoint.commit(number)

    def _next(self) -> int | None:
        planned, committed = self._checkpoint.last("offsets"), self._checkpoint.last("commits")
        if planned > committed:
            return planned
        start = self._batches.initial() if planned < 0 else self._checkpoint.planned(planned)[1]
        while True:
            may_end = (self._arguments.directory / "finish").exists()
            end = self._batches.latest(start, BATCH_BYTES)
            if end != start:
                self._checkpoint.plan(planned + 1, start, end)
                return planned + 1
            if may_end:
                return None
            Event().wait(_POLL_S)

    def _run_batch(self, number: int, threads: ThreadPoolExecutor) -> None:
        batch = BatchName.of_query(self._checkpoint.query_id, number, None)
        partitions = self._batches.partitions(*self._checkpoint.planned(number))
        inputs = self._sorted(partitions) if self._arguments.ordered else [[partition] for partition in partitions]
        tasks = [threads.submit(self._run_task, batch, index, rows) for index, rows in enumerate(inputs)]
        commit_batch(self._access, self._writing, batch, [task.result() for task in tasks], Event().wait)

    def _run_task(self, batch: BatchName, index: int, rows: Sequence[Partition | pa.RecordBatch]) -> TaskReport:
        """One attempt, or two: the first one fails after it has written, or both write at the same time."""
        is_first_lost = self._arguments.fail_first_attempts and batch.epoch % _EVERY == 0
        if is_first_lost and self._attempt(batch, index, rows).transactions:
            self._tell(FAILED, f"{batch.epoch}-{index}")
        if not (self._arguments.speculation and index == 0 and batch.epoch % _EVERY == 1):
            return self._attempt(batch, index, rows)
        with ThreadPoolExecutor(2) as both:
            attempts = [both.submit(self._attempt, batch, index, rows) for _ in range(2)]
            wait(attempts)
        self._tell(OVERLAPPED, str(batch.epoch))
        return attempts[0].result()

    def _attempt(self, batch: BatchName, index: int, rows: Sequence[Partition | pa.RecordBatch]) -> TaskReport:
        attempt = TaskAttempt(batch, index, next(self._attempts))

        def is_repeated() -> bool:
            return is_repetition(batch.epoch, self._access.committed_epoch("out", batch.writer))

        return write_task(self._access, self._writing, attempt, self._rows(rows), is_repeated)

    def _rows(self, rows: Sequence[Partition | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in rows:
            if isinstance(row, pa.RecordBatch):
                yield row
            else:
                yield from read_partition(self._reading, row)

    def _sorted(self, partitions: Sequence[Partition]) -> list[list[pa.RecordBatch]]:
        """The events by key, so that those of a key are in one task, in order."""
        events = sorted(event for batch in self._rows(partitions) for event in batch.column(0).to_pylist())
        shares: list[list[bytes]] = [[] for _ in range(_TASKS)]
        for event in events:
            shares[int(event) % _KEYS % _TASKS].append(event)
        keys = [[str(int(event) % _KEYS) for event in share] for share in shares]
        return [
            [pa.RecordBatch.from_pydict({"event": pa.array(share, pa.binary()), "routing_key": of_share})]
            for share, of_share in zip(shares, keys, strict=True)
        ]

    def _tell(self, what: str, name: str) -> None:
        (self._arguments.directory / f"{what}-{name}").touch()


if __name__ == "__main__":
    Query(query_arguments()).run()
