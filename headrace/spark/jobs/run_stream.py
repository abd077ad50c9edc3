"""The query of a job: from a stream into a function per micro-batch, up to the tail or for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidRequestError
from headrace.spark import has_data_source, register, run_until_caught_up
from headrace.spark.engines.functions import planned_stream
from headrace.spark.engines.manifest_thread import ManifestThread
from headrace.spark.engines.session import with_session_defaults
from headrace.spark.option_values import invalid_option, whole_number
from headrace.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SOURCE_REQUIRED = ("controller", "scope", "stream")
SOURCE_OPTIONAL = ("auth", "start_stream_cut", "end_stream_cut", "approx_bytes_per_trigger", "read_history_from")
"""Arguments of jobs that are options of `format("headrace")`."""

BYTES_PER_BATCH = 64 * 1024 * 1024


def source_options(arguments: Mapping[str, str | None]) -> dict[str, str]:
    """The options of the source among a job's arguments, from the head of the stream in batches of limited size."""
    given = {name: arguments.get(name) for name in (*SOURCE_REQUIRED, *SOURCE_OPTIONAL)}
    defaults = {"start_stream_cut": "earliest", "approx_bytes_per_trigger": str(BYTES_PER_BATCH)}
    return defaults | {name: value for name, value in given.items() if value is not None}


def trigger_seconds(arguments: Mapping[str, str | None]) -> int | None:
    """The seconds between batches; None: the job reads up to the tail. Raises InvalidRequestError: not a number."""
    value = arguments.get("trigger_s")
    return None if value is None else whole_number({"trigger_s": value}, "trigger_s")


def target_options(arguments: Mapping[str, str | None]) -> dict[str, str] | None:
    """The options of the sink for the stream that a job's arguments name; None: they name none.

    Raises:
        InvalidRequestError: code "same_stream": the job would read what it writes.
    """
    stream = arguments.get("target_stream")
    scope = arguments.get("target_scope") or arguments.get("scope")
    if stream is None:
        if arguments.get("target_scope") is not None:
            raise InvalidRequestError("--target_scope needs --target_stream", code="invalid_arguments")
        return None
    if (scope, stream) == (arguments.get("scope"), arguments.get("stream")):
        raise InvalidRequestError(
            f"the target is the stream itself, {scope}/{stream}: the job would read what it writes", code="same_stream"
        )
    shared = {name: value for name in ("controller", "auth") if (value := arguments.get(name)) is not None}
    return shared | {"scope": str(scope), "stream": stream}


def only_stream(options: ReadOptions) -> str:
    """The stream, for a job that reads one. Raises InvalidRequestError if the options name several."""
    if len(options.streams) != 1:
        raise invalid_option("stream", "this job reads one stream")
    return options.streams[0]


def run_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    handle: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    trigger_s: int | None = None,
    keep_plans: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Give every micro-batch to `handle`, up to the tail as of now; with `trigger_s` until the query is stopped.

    On Spark 3.5 the plans of the batches are in a directory of the checkpoint, see `plans_of`. `keep_plans`: on all
    versions. `meanwhile` is called every `trigger_s` seconds, also while the stream is idle, in the thread of the
    caller.

    Raises:
        InvalidRequestError: an option is wrong.
        StreamingQueryException: the query failed. The next run continues at the checkpoint.
        HeadraceError: a batch could not be planned, or the query was stopped before it had caught up.
    """

    def query(events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(handle).option("checkpointLocation", checkpoint)

    plans = plans_of(checkpoint) if keep_plans or not has_data_source(spark) else None
    if trigger_s is None:
        run_until_caught_up(spark, options, query, plans=plans)
        return
    planning: ManifestThread | None = None
    if plans is None:
        register(spark)
        events = spark.readStream.format("headrace").options(**options).load()
    else:
        events, planning = planned_stream(spark, with_session_defaults(spark, read_options(options)), plans)
    try:
        running = query(events).trigger(processingTime=f"{trigger_s} seconds").start()
        try:
            with nullcontext() if planning is None else planning.raising_problem():
                while not running.awaitTermination(trigger_s):
                    if meanwhile is not None:
                        meanwhile()
        finally:
            running.stop()
    finally:
        if planning is not None:
            planning.stop()


def plans_of(checkpoint: str) -> str:
    """The directory with the plans of the batches of a query, which belongs to its checkpoint."""
    return f"{checkpoint.rstrip('/')}/plans"
