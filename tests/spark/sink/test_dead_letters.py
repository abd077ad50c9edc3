"""Bad records of a query in a stream of dead letters: each once, also if Spark repeats the batch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sink_world import SinkWorld, forget_last_commit

from headrace.client import ScalingPolicy
from headrace.spark import read_stream, with_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


class Orders:
    """A query over the stream `orders` that counts good records, and writes the others to the stream `out`."""

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path) -> None:
        self.spark, self.world, self.directory = spark, world, directory
        self.checkpoint = directory / "checkpoint"
        self.batches: list[tuple[int, list[int]]] = []
        world.client.admin.create_stream(world.scope, "orders", scaling=ScalingPolicy.fixed(2))

    def write(self, *events: bytes) -> None:
        with self.world.client.writer(self.world.scope, "orders") as writer:
            writer.write_batch(list(events), [str(number) for number in range(len(events))])

    def handle(self, rows: DataFrame, batch_id: int) -> None:
        self.batches.append((batch_id, sorted(row.id for row in rows.collect())))

    def run(self) -> None:
        where = {"controller": self.world.url, "scope": self.world.scope, "stream": "orders"}
        where |= {"event_format": "json", "event_schema": "id bigint", "on_bad_record": "column"}
        options = where | {"start_stream_cut": "earliest", "corrupt_column": "a.bad"}
        rows = read_stream(self.spark, options, plans=str(self.directory / "plans"))
        divided = with_dead_letters(self.handle, self.world.options, corrupt_column="a.bad")
        query = rows.writeStream.foreachBatch(divided).option("checkpointLocation", str(self.checkpoint)).start()
        try:
            while not self.batches:
                query.awaitTermination(1)
            query.processAllAvailable()
        finally:
            query.stop()

    def letters(self) -> Counter[tuple[str, int]]:
        documents = [json.loads(event) for event in self.world.events()]
        assert {letter["stream"] for letter in documents} == {"orders"}
        return Counter((letter["reason"].partition(":")[0], letter["event_bytes"]) for letter in documents)


def test_a_repeated_batch_writes_no_letter_again(spark: SparkSession, world: SinkWorld, tmp_path: Path) -> None:
    orders = Orders(spark, world, tmp_path)
    orders.write(b'{"id":1}', b"", b'{"id":"2"}', b'{"id":3}', b"\xff\xff")
    orders.run()
    expected = Counter([("it is empty", 0), ("field 'id'", 10), ("it is not UTF-8", 2)])
    first = orders.batches[0]
    assert first == (0, [1, 3])
    assert orders.letters() == expected
    assert forget_last_commit(orders.checkpoint) == 0
    orders.batches.clear()
    orders.run()
    assert orders.batches == [first], "the good records are handled again"
    assert orders.letters() == expected
