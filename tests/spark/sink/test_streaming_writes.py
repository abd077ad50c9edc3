"""Streaming queries that end in a stream, on the local stack: each event once, whatever Spark repeats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sink_world import SinkWorld, each_once, forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


class Copy:
    """A query that copies the stream `in` to the stream `out`, started as often as a test wants from one checkpoint."""

    def __init__(self, session: SparkSession, world: SinkWorld, checkpoint: Path) -> None:
        self.session, self.world, self.checkpoint = session, world, checkpoint

    def run(self, select: str = "event", sink: str = "headrace", **options: str) -> StreamingQuery:
        """Runs until all events of `in` are copied; the stopped query."""
        where = {"controller": self.world.url, "scope": self.world.scope, "stream": "in"}
        wanted = where | {"start_stream_cut": "earliest", "columns": "event"}
        events = self.session.readStream.format("headrace").options(**wanted).load().selectExpr(*select.split(";"))
        writing = events.writeStream.format(sink).options(**(self.world.options | options))
        query = writing.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return query


@pytest.fixture
def copy(session: SparkSession, world: SinkWorld, checkpoint: Path) -> Copy:
    return Copy(session, world, checkpoint)


def test_a_batch_after_a_crash_is_not_written_twice(copy: Copy, world: SinkWorld) -> None:
    world.fill("in", 0, 300)
    query = copy.run()
    assert world.numbers() == each_once(0, 300)
    world.fill("in", 300, 500)
    copy.run()
    last = forget_last_commit(copy.checkpoint)
    assert copy.run().recentProgress[0]["batchId"] == last, "Spark did repeat the batch"
    assert world.numbers() == each_once(0, 500)
    assert world.open_labels() == []
    assert world.client.admin.transactions.committed_epoch(world.scope, "out", f"spark:{query.id}") == last


@pytest.mark.nightly
def test_transactions_of_a_driver_that_died_are_aborted(copy: Copy, world: SinkWorld) -> None:
    world.fill("in", 0, 100)
    query = copy.run()
    with world.client.transactional_writer(world.scope, "out") as writer:
        for label in (f"{query.id}/1/0/0", f"{query.id}/7/0/0", "another-query/0/0/0"):
            lost = writer.begin(label=label)
            lost.write(b"1000")
            lost.detach()
    world.fill("in", 100, 150)
    copy.run()
    assert world.numbers() == each_once(0, 150)
    world.wait_until_open([f"{query.id}/7/0/0", "another-query/0/0/0"])


@pytest.mark.nightly
def test_a_new_checkpoint_is_a_new_writer(copy: Copy, world: SinkWorld, session: SparkSession, tmp_path: Path) -> None:
    world.fill("in", 0, 50)
    first = copy.run(writer_id="copy")
    again = Copy(session, world, tmp_path / "another").run(writer_id="copy")
    assert first.id != again.id
    assert world.numbers() == each_once(0, 50) + each_once(0, 50)


def test_rows_choose_their_streams_and_keys(copy: Copy, world: SinkWorld) -> None:
    world.fill("in", 0, 100)
    number = "cast(decode(event, 'utf-8') as int)"
    stream = f"if({number} % 3 = 0, 'third', cast(null as string)) stream"
    copy.run(f"event;concat('key ', {number} % 5) routing_key;{stream}", streams="third")
    assert sorted(world.numbers("third")) == list(range(0, 100, 3))
    assert world.numbers() + world.numbers("third") == each_once(0, 100)


@pytest.mark.nightly
def test_spark_4_0_writes_rows(copy: Copy, world: SinkWorld) -> None:
    """The writer for Spark 4.0 works on later versions, too."""
    from pyspark import cloudpickle

    from headrace.spark import HeadraceDataSource
    from headrace.spark.engines.data_writers import HeadraceRowStreamWriter
    from headrace.spark.write_options import write_options

    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    class RowsSource(HeadraceDataSource):
        @classmethod
        def name(cls) -> str:
            return "headrace_rows"

        def streamWriter(self, schema: object, overwrite: bool) -> HeadraceRowStreamWriter:
            options = write_options(self.options, streaming=True)
            return HeadraceRowStreamWriter(options, [("event", "binary"), ("routing_key", "string")])

    world.client.admin.create_stream(world.scope, "out")
    copy.session.dataSource.register(RowsSource)
    world.fill("in", 0, 200)
    copy.run("event;if(hash(event) % 2 = 0, 'k', null) routing_key", sink="headrace_rows")
    forget_last_commit(copy.checkpoint)
    copy.run("event;if(hash(event) % 2 = 0, 'k', null) routing_key", sink="headrace_rows")
    assert world.numbers() == each_once(0, 200)
    assert world.open_labels() == []


def test_at_least_once_needs_no_transaction(copy: Copy, world: SinkWorld) -> None:
    world.fill("in", 0, 100)
    query = copy.run(exactly_once="false")
    assert world.numbers() == each_once(0, 100)
    assert world.client.admin.transactions.list_completed(world.scope, "out") == []
    assert world.client.admin.transactions.committed_epoch(world.scope, "out", f"spark:{query.id}") is None


@pytest.mark.nightly
def test_a_failed_task_leaves_no_transaction(copy: Copy, world: SinkWorld) -> None:
    """The tasks have written most of their rows by then."""
    world.fill("in", 0, 30_000)
    failing = "if(event = encode('29999', 'utf-8'), cast(raise_error('no') as binary), event) event"
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        copy.run(failing)
    world.wait_until_open([])
    assert world.events() == []
    copy.run()
    assert world.numbers() == each_once(0, 30_000)


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("event", {"exactly_onse": "true"}, "did you mean 'exactly_once'"),
        ("event", {"allow_create_stream": "false"}, "there is no stream .*/out: create it"),
        ("event;1L offset", {}, "the column 'offset' cannot be written"),
        ("cast(null as binary) event", {}, "rows have null in the column 'event'"),
        ("event;'elsewhere' stream", {"streams": "other"}, "the stream 'elsewhere'"),
    ],
)
def test_what_cannot_be_written_is_named(
    copy: Copy, world: SinkWorld, select: str, options: dict[str, str], message: str
) -> None:
    world.fill("in", 0, 10)
    with pytest.raises(Exception, match=message):
        copy.run(select, **options)
    if world.client.admin.list_streams(world.scope, prefix="out"):
        world.wait_until_open([])
