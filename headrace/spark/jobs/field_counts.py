"""How often each value of a JSON field occurs in a range of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.spark import read_batch
from headrace.spark.jobs.json_records import classified
from headrace.spark.jobs.stream_report import FieldShares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES_MAX = 20


def field_counts(spark: SparkSession, options: Mapping[str, str], field: str) -> FieldShares:
    """Read what the options of `read_batch` select, and count the values of a field as text."""
    wanted = {**options, "columns": "event,segment_id,offset"}
    records = classified(read_batch(spark, wanted), {field: "string"})
    values = records.select(F.col("reason").isNotNull().alias("bad"), F.col("record").getField(field).alias("value"))
    counts = values.groupBy("bad", "value").count().persist()
    try:
        sums = counts.groupBy("bad").agg(F.sum("count").alias("events")).collect()
        most = counts.filter("not bad").orderBy(F.desc("count"), "value").limit(VALUES_MAX).collect()
    finally:
        counts.unpersist()
    totals = {row["bad"]: row["events"] for row in sums}
    top = tuple((row["value"], int(row["count"])) for row in most)
    return FieldShares(field, top, int(totals.get(False, 0)), int(totals.get(True, 0)))
