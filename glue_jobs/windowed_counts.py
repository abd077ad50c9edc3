"""Counts and sums in windows of event time, from a stream of JSON objects into another stream, each window once.

    python glue_jobs/windowed_counts.py --controller URL --scope S --stream T --checkpoint DIR --target_stream U \\
        --window_s 60 --time_field at --keys customer --sum amount

A window is written when the stream's watermark has passed its end: the writers note their times. For a stream without
notes, `--allowed_lateness_s` closes windows so many seconds after the latest event. The job reads up to the tail and
stops; with `--trigger_s` it runs until it is stopped. docs/using/jobs.md explains the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.adapters.system_clock import SystemClock
from headrace.client import connect
from headrace.model.errors import InvalidRequestError
from headrace.spark.job_arguments import job_arguments
from headrace.spark.jobs.run_stream import (
    SOURCE_OPTIONAL,
    SOURCE_REQUIRED,
    only_stream,
    plans_of,
    run_stream,
    source_options,
    target_options,
    trigger_seconds,
)
from headrace.spark.jobs.time_ranges import parse_time
from headrace.spark.jobs.window_definition import window_definition
from headrace.spark.jobs.windowed_counts import (
    AHEAD_S_DEFAULT,
    ClosingRules,
    WindowCounts,
    WindowedCounts,
    planned_position,
    stream_watermark,
)
from headrace.spark.option_values import whole_number
from headrace.spark.options import read_options

EVENT_COLUMNS = {"columns": "event,segment_id,offset"}


def run(spark: SparkSession, arguments: dict[str, str | None]) -> tuple[WindowCounts, int | None]:
    """Count the events; what this run has done, and the time in milliseconds up to which windows can be closed.

    Raises:
        InvalidRequestError: an argument is wrong, or the checkpoint is of other windows.
        NotFoundError: the stream or the target does not exist.
    """
    definition, rules = window_definition(arguments), closing_rules(arguments)
    options, target = source_options(arguments) | EVENT_COLUMNS, target_options(arguments)
    if target is None:
        raise InvalidRequestError("--target_stream is required: where the windows go", code="missing_argument")
    source, checkpoint = read_options(options), str(arguments["checkpoint"]).rstrip("/")
    trigger_s, progress = trigger_seconds(arguments), f"{checkpoint}/progress"
    if trigger_s is not None and rules.close_until_ms is not None:
        raise InvalidRequestError(
            "--close_until closes windows at the end of a run, and a run with --trigger_s has none: leave one out",
            code="invalid_argument",
        )
    with connect(source.controller, auth=source.auth, retry_s=source.patience_s, network=source.network) as headrace:
        headrace.admin.get_stream(target["scope"], target["stream"])
        windows = WindowedCounts(
            spark,
            checkpoint,
            definition,
            source=options,
            target=target,
            rules=rules,
            watermark=stream_watermark(headrace, source.scope, only_stream(source)),
            position_of=planned_position(plans_of(progress)),
            clock=SystemClock(),
        )
        run_stream(
            spark,
            options,
            windows.write,
            progress,
            trigger_s=trigger_s,
            keep_plans=True,
            meanwhile=windows.close_windows,
        )
        closable_ms = windows.close_at_end()
        return windows.counts, closable_ms


def closing_rules(arguments: Mapping[str, str | None]) -> ClosingRules:
    """When windows are closed. Raises InvalidRequestError: an argument has no meaning."""
    given = {name: value for name, value in arguments.items() if value is not None}
    lateness_s = whole_number(given, "allowed_lateness_s", least=0)
    ahead_s = whole_number(given, "ahead_s", least=0)
    until = given.get("close_until")
    return ClosingRules(
        lateness_ms=None if lateness_s is None else lateness_s * 1000,
        close_until_ms=None if until is None else int(parse_time(until).timestamp() * 1000),
        ahead_ms=1000 * (AHEAD_S_DEFAULT if ahead_s is None else ahead_s),
    )


def main() -> None:
    arguments = job_arguments(
        [*SOURCE_REQUIRED, "checkpoint", "target_stream", "window_s", "time_field"],
        [
            *SOURCE_OPTIONAL, "target_scope", "slide_s", "keys", "sum", "min", "max",
            "allowed_lateness_s", "ahead_s", "close_until", "trigger_s", "metrics",
        ],
    )  # fmt: skip
    spark = SparkSession.builder.appName("windowed-counts").getOrCreate()
    counts, closable_ms = run(spark, arguments)
    spark.stop()
    print(f"events read in this run: {counts.events}, of which late: {counts.late}, bad: {counts.bad}")
    print(f"windows written in this run: {counts.windows}, closed up to {closable_ms} ms since 1970")
    if closable_ms is None:
        print("no watermark is known here, so no window is closed: note times, or give --allowed_lateness_s")
    if metrics := arguments["metrics"]:
        Path(metrics).write_text(json.dumps(asdict(counts)) + "\n")


if __name__ == "__main__":
    main()
