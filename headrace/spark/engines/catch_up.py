"""Runs a streaming query until it has read what was in the stream when it started, in as many batches as it takes.

Why not `trigger(availableNow=True)`: before Spark 4.2 it ends after one batch for a source that limits its batches, so
with approx_bytes_per_trigger it would stop with events unread. Here the end is frozen as a stream cut, and the query
runs batch after batch until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.spark.engines.functions import planned_stream
from headrace.spark.engines.session import has_data_source, register, with_session_defaults
from headrace.spark.options import read_options
from headrace.spark.plans import open_plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_S = 0.2

Write = Callable[["DataFrame"], "DataStreamWriter"]


def run_until_caught_up(
    spark: SparkSession, options: Mapping[str, str], write: Write, *, plans: str | None = None
) -> StreamingQuery:
    """Runs the query that `write` makes of the stream's events and stops it when it has caught up; the stopped query.

    `options` are those of `format("headrace")`. The end is the option end_stream_cut, by default the tail as of now;
    what is written later is for the next run from the same checkpoint. `write` sets output, checkpoint location and
    mode; the trigger is set here.

    With `plans`, the query reads with `read_stream` and keeps its plans in that directory. Spark 3.5 needs that. A
    checkpoint is always used with the same directory or always without.

    Raises:
        InvalidRequestError: an option is wrong, or `plans` is missing.
        StreamingQueryException: the query failed; what was committed stays, the next run goes on from there.
        HeadraceError: a batch could not be planned, or code "query_stopped": the query was stopped before it had
            caught up.
    """
    frozen = {name.lower(): value for name, value in options.items()}
    frozen["end_stream_cut"] = _end(frozen)
    if plans is not None:
        return _run_planned(spark, frozen, write, plans)
    if not has_data_source(spark):
        raise InvalidRequestError(
            f"Spark {spark.version} has no data sources in Python: give the parameter plans, a directory for the plans"
            " of the batches",
            code="invalid_option",
        )
    register(spark)
    events = spark.readStream.format("headrace").options(**frozen).load()
    query = write(events).trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        if not query.isActive:
            raise _stopped()
    finally:
        query.stop()
    return query


def _run_planned(spark: SparkSession, options: Mapping[str, str], write: Write, plans: str) -> StreamingQuery:
    events, planning = planned_stream(spark, with_session_defaults(spark, read_options(options)), plans)
    try:
        query = write(events).trigger(processingTime="0 seconds").start()
        try:
            with planning.raising_problem():
                while not planning.caught_up.is_set():
                    if query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # raises what the query failed with
                        raise _stopped()
        finally:
            query.stop()
    finally:
        planning.stop()
    return query


def _stopped() -> IllegalStateError:
    return IllegalStateError("the query was stopped before it had caught up: run it again", code="query_stopped")


def _end(options: Mapping[str, str]) -> str:
    """The offset to read up to."""
    with closing(open_plans(read_options(options))) as plans:
        return plans.end_text()
