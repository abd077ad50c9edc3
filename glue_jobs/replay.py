"""Copies the events that a stream stored between two times into Parquet files or another stream, each exactly once.

    python glue_jobs/replay.py --controller URL --scope S --stream T --checkpoint DIR --output DIR --from TIME --to TIME

With `--target_stream NAME` instead of `--output`, the events go to another stream. Times are like 2026-11-23T10:00:00Z,
and mean when a segment store stored the event. The copy misses no event of that time, and may begin and end with
slightly older ones. docs/using/jobs.md explains the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.client import connect
from headrace.model.errors import InvalidRequestError
from headrace.spark.job_arguments import job_arguments
from headrace.spark.jobs.job_files import HadoopFiles
from headrace.spark.jobs.parquet_lake import EVENT_COLUMNS, RawEvents
from headrace.spark.jobs.run_stream import SOURCE_REQUIRED, only_stream, run_stream, source_options, target_options
from headrace.spark.jobs.stream_copies import StreamCopy
from headrace.spark.jobs.time_ranges import parse_time, recorded_range
from headrace.spark.options import read_options


@dataclass(frozen=True, slots=True)
class Replayed:
    """The events that a run has copied, and how many of them lacked the field of `--key_field`."""

    events: int
    without_field: int = 0


def run(spark: SparkSession, arguments: dict[str, str | None]) -> Replayed:
    """Copy the events.

    Raises:
        InvalidRequestError: an argument is wrong, or the checkpoint is of another replay.
        NotFoundError: the stream or the target does not exist.
    """
    options, key_field = source_options(arguments), arguments.get("key_field")
    target = target_options(arguments)
    if (arguments.get("output") is None) == (target is None):
        raise InvalidRequestError("give either --output or --target_stream", code="invalid_arguments")
    if target is None and key_field is not None:
        raise InvalidRequestError(
            "--key_field needs --target_stream: files have no routing keys", code="invalid_arguments"
        )
    source, checkpoint = read_options(options), str(arguments["checkpoint"]).rstrip("/")
    start, end = parse_time(str(arguments["from"])), parse_time(str(arguments["to"]))
    into = {} if target is None else {"to stream": f"{target['scope']}/{target['stream']}", "key field": key_field}
    with connect(source.controller, auth=source.auth, network=source.network) as headrace:
        if target is not None:
            headrace.admin.get_stream(target["scope"], target["stream"])
        path = f"{checkpoint}/replay.json"
        files, stream = HadoopFiles(spark), only_stream(source)
        cuts = recorded_range(headrace, files, path, source.scope, stream, start, end, into)
    copy = RawEvents(spark, str(arguments["output"])) if target is None else StreamCopy(target, key_field)
    options |= {"start_stream_cut": cuts.start, "end_stream_cut": cuts.end, "columns": ",".join(EVENT_COLUMNS)}
    if target is not None:
        options["strict_key_order"] = "true"  # so that batches are in the order of each key, also across scales
    run_stream(spark, options, copy.write, f"{checkpoint}/progress")
    return Replayed(copy.events, copy.without_field if isinstance(copy, StreamCopy) else 0)


def main() -> None:
    arguments = job_arguments(
        [*SOURCE_REQUIRED, "checkpoint", "from", "to"],
        [
            "output", "target_stream", "target_scope", "key_field",
            "approx_bytes_per_trigger", "read_history_from", "auth",
        ],
    )  # fmt: skip
    spark = SparkSession.builder.appName("replay").getOrCreate()
    copied = run(spark, arguments)
    spark.stop()
    print(f"events copied in this run: {copied.events}")
    if copied.without_field:
        print(f"events without the field {arguments['key_field']!r}: {copied.without_field}")


if __name__ == "__main__":
    main()
