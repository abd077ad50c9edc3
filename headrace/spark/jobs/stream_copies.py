"""Copies the events of micro-batches into another stream, each event once and in the order of its routing key.

A stream does not store routing keys. So the copy has the value of a field as the key, or one key for each segment of
the source: then the events of a segment stay in order, but are in other segments of the target than they would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F

from headrace.spark import write_batch
from headrace.spark.jobs.json_records import classified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET_OPTIONS = {"allow_create_scope": "false", "allow_create_stream": "false"}
"""A job writes to a stream that exists: its segments and its retention are a decision of its owner."""


class StreamCopy:
    """The writer to one stream; `write` is for `foreachBatch`.

    `target` are the options of the sink. `key_field` is a field of JSON objects. An event without it gets the key of
    its segment. `events` and `without_field` count those of this run.
    """

    def __init__(self, target: Mapping[str, str], key_field: str | None = None) -> None:
        self.events = 0
        self.without_field = 0
        self._target = {**target, **TARGET_OPTIONS}
        self._key_field = key_field

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch with the columns event, segment_id and offset, once."""
        seen = Observation()
        keyed = self._keyed(events).observe(seen, F.count(F.when(F.col("field").isNull(), True)).alias("without_field"))
        tasks = events.sparkSession.sparkContext.defaultParallelism
        # A successor has a higher id than the segments that it replaced, so this is the order of each key.
        ordered = keyed.repartition(tasks, "routing_key").sortWithinPartitions("segment_id", "offset")
        written = write_batch(ordered.select("event", "routing_key"), batch_id, self._target)
        self.events += written.events
        if written.events and self._key_field is not None:
            self.without_field += seen.get["without_field"]

    def _keyed(self, events: DataFrame) -> DataFrame:
        field: Column = F.lit(None).cast("string")
        if self._key_field is not None:
            events = classified(events, {self._key_field: "string"})
            field = F.when(F.col("reason").isNull(), F.col("record").getField(self._key_field))
        of_segment = F.concat(F.lit("segment "), F.col("segment_id").cast("string"))
        keyed = events.withColumn("field", field)
        return keyed.select(
            "event", "segment_id", "offset", "field", F.coalesce("field", of_segment).alias("routing_key")
        )
