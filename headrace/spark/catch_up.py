"""Runs a streaming query until it has read what was in the stream when it started, in as many batches as it takes.

Why not `trigger(availableNow=True)`: Spark 4.0 and 4.1 end it after one batch for a source that limits its batches, so
with approx_bytes_per_trigger it would stop with events unread. Here the end is frozen as a stream cut, and the query
runs batch after batch until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from headrace.spark.batch import open_plans
from headrace.spark.data_source import register
from headrace.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_until_caught_up(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataFrame], DataStreamWriter],
) -> StreamingQuery:
    """Runs the query that `write` makes of the stream's events and stops it when it has caught up; the stopped query.

    `options` are those of `format("headrace")`. The end is the option end_stream_cut, by default the tail as of now;
    what is written later is for the next run from the same checkpoint. `write` sets output, checkpoint location and
    mode; the trigger is set here.

    Raises:
        InvalidRequestError: an option is wrong.
        StreamingQueryException: the query failed; what was committed stays, the next run goes on from there.
    """
    register(spark)
    frozen = {name.lower(): value for name, value in options.items()}
    frozen["end_stream_cut"] = _end(frozen)
    events = spark.readStream.format("headrace").options(**frozen).load()
    query = write(events).trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def _end(options: Mapping[str, str]) -> str:
    """The text of the cut to read up to."""
    plans = open_plans(read_options(options))
    with closing(plans.access):
        return plans.access.text_of_cut(plans.end_cut("latest") or plans.access.cut("tail"))
