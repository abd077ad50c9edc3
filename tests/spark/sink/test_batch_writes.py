"""Batch writes and `foreachBatch` on the local stack: all rows or none, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_world import SinkWorld, each_once, forget_last_commit

from headrace.spark import WrittenBatch, write_batch, write_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


def numbered(session: SparkSession, first: int, last: int, partitions: int = 3) -> DataFrame:
    numbers = session.range(first, last, 1, partitions)
    return numbers.selectExpr("cast(id as string) event", "concat('key ', id % 5) routing_key")


def test_a_dataframe_is_appended_all_at_once(session: SparkSession, world: SinkWorld) -> None:
    for first in (0, 100):
        frame = numbered(session, first, first + 100)
        frame.write.format("headrace").mode("append").options(**world.options).save()
    assert world.numbers() == each_once(0, 200)
    assert world.open_labels() == []
    assert world.client.admin.get_stream(world.scope, "out").segments == 2


def test_a_failed_write_adds_nothing(session: SparkSession, world: SinkWorld) -> None:
    frame = numbered(session, 0, 100).selectExpr("if(event = '99', raise_error('no'), event) event")
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        frame.write.format("headrace").mode("append").options(**world.options).save()
    world.wait_until_open([])
    assert world.events() == []


@pytest.mark.nightly
def test_a_rerun_of_an_epoch_adds_nothing(session: SparkSession, world: SinkWorld) -> None:
    job = world.options | {"writer_id": "nightly", "epoch": "20261123"}
    for _ in range(2):
        numbered(session, 0, 50).write.format("headrace").mode("append").options(**job).save()
    assert world.numbers() == each_once(0, 50)


def test_a_function_writes_batches_on_all_versions(spark: SparkSession, world: SinkWorld) -> None:
    job = world.options | {"writer_id": "nightly", "epoch": "7"}
    assert write_events(numbered(spark, 0, 50), job) == WrittenBatch(50, 3, repeated=False)
    assert write_events(numbered(spark, 0, 50), job) == WrittenBatch(0, 0, repeated=True)
    assert write_events(numbered(spark, 50, 80), job | {"epoch": "8"}).events == 30
    assert world.numbers() == each_once(0, 80)


@pytest.mark.parametrize("mode", ["overwrite", "error", "ignore"])
def test_only_appends_are_allowed(session: SparkSession, world: SinkWorld, mode: str) -> None:
    with pytest.raises(Exception, match=r"append|[Mm]ode"):
        numbered(session, 0, 1).write.format("headrace").mode(mode).options(**world.options).save()


class BatchJob:
    """A query over files whose batches `write_batch` writes, on all versions of Spark."""

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path) -> None:
        self.spark, self.world, self.directory = spark, world, directory
        self.checkpoint = directory / "checkpoint"
        self.written: list[WrittenBatch] = []
        self.computed = spark.sparkContext.accumulator(0)
        self.writer_ids: tuple[str | None, ...] = (None,)

    def write(self, events: DataFrame, batch_id: int) -> None:
        computed = self.computed

        def counted(batches: Any) -> Any:
            for batch in batches:
                computed.add(batch.num_rows)
                yield batch

        rows = events.mapInArrow(counted, "event binary")
        for writer_id in self.writer_ids:
            options = self.world.options | ({"writer_id": writer_id} if writer_id else {})
            self.written.append(write_batch(rows, batch_id, options))

    def fill(self, first: int, last: int) -> None:
        (self.directory / "in").mkdir(exist_ok=True)
        (self.directory / "in" / f"{first}.txt").write_text("".join(f"{number}\n" for number in range(first, last)))

    def run(self) -> None:
        source = self.spark.readStream.text(str(self.directory / "in")).selectExpr("encode(value, 'utf-8') event")
        writing = source.writeStream.foreachBatch(self.write).option("checkpointLocation", str(self.checkpoint))
        query = writing.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


@pytest.fixture
def job(spark: SparkSession, world: SinkWorld, tmp_path: Path) -> BatchJob:
    return BatchJob(spark, world, tmp_path)


def test_a_repeated_batch_is_not_even_computed(job: BatchJob, world: SinkWorld) -> None:
    job.fill(0, 200)
    job.run()
    assert job.computed.value == 200, "one action computes the rows once"
    forget_last_commit(job.checkpoint)
    job.run()
    assert [(report.events, report.repeated) for report in job.written] == [(200, False), (0, True)]
    assert job.computed.value == 200
    assert world.numbers() == each_once(0, 200)
    assert world.open_labels() == []


def test_two_writes_of_a_batch_need_two_writers(job: BatchJob, world: SinkWorld) -> None:
    job.fill(0, 20)
    job.writer_ids = (None, None)
    with pytest.raises(Exception, match="a 'writer_id' of its own"):
        job.run()
    job.writer_ids = (None, "audit")
    job.run()
    assert [report.repeated for report in job.written] == [False, True, False]
    assert world.numbers() == each_once(0, 20) + each_once(0, 20)


def test_outside_of_a_query_there_is_no_batch(spark: SparkSession, world: SinkWorld) -> None:
    with pytest.raises(Exception, match="in a micro-batch of a streaming query only"):
        write_batch(numbered(spark, 0, 5), 0, world.options)
