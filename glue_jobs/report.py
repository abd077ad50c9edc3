"""Writes a page about a stream: rates by segment, skew of the key space, and the lag of its readers.

    python glue_jobs/report.py --controller URL --scope S --stream T --output FILE.html --from TIME [--to TIME]

Times are like 2026-11-23T10:00:00Z; `--to` is now by default. With `--field NAME` the job also reads the events of that
time and counts the values of a field of their JSON objects. docs/using/jobs.md explains the arguments.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from headrace.adapters.system_clock import SystemClock
from headrace.client import connect
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.spark.job_arguments import job_arguments
from headrace.spark.jobs.job_files import HadoopFiles
from headrace.spark.jobs.run_stream import SOURCE_REQUIRED, only_stream, source_options
from headrace.spark.jobs.stream_report import field_counts, interval_times, measure_stream, report_html
from headrace.spark.jobs.time_ranges import parse_time
from headrace.spark.option_values import invalid_option, whole_number
from headrace.spark.options import read_options

INTERVALS_DEFAULT = 12


def run(spark: SparkSession, arguments: dict[str, str | None]) -> str:
    """Write the report; its HTML.

    Raises:
        InvalidRequestError: an argument is wrong, or the output is a directory.
        NotFoundError: the stream does not exist.
    """
    options = source_options(arguments)
    source = read_options(options)
    stream = only_stream(source)
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    given = {name: value for name, value in arguments.items() if value is not None}
    start, end = parse_time(given["from"]), parse_time(given["to"]) if "to" in given else now
    times = interval_times(start, end, whole_number(given, "intervals") or INTERVALS_DEFAULT)
    files, output = HadoopFiles(spark), given["output"]
    if files.is_directory(output):
        raise invalid_option("output", f"{output} is a directory: give the path of a file, which is replaced")
    with connect(source.controller, auth=source.auth, network=source.network) as headrace:
        measures = measure_stream(headrace, source.scope, stream, times)
        cuts = [headrace.stream_cut_at(source.scope, stream, time) for time in (times[0], times[-1])]
    shares = None
    if field := arguments.get("field"):
        first, last = map(stream_cut_text, cuts)
        shares = field_counts(spark, options | {"start_stream_cut": first, "end_stream_cut": last}, field)
    page = report_html(measures, shares)
    files.replace(output, page)
    return page


def main() -> None:
    arguments = job_arguments([*SOURCE_REQUIRED, "from", "output"], ["to", "intervals", "field", "auth"])
    spark = SparkSession.builder.appName("stream-report").getOrCreate()
    run(spark, arguments)
    spark.stop()
    print(f"report written to {arguments['output']}")


if __name__ == "__main__":
    main()
