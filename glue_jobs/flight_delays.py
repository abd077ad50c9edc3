"""Mean delays per carrier and per scheduled hour of departure, from a stream of flights. Runs on Glue and on a laptop.

    python glue_jobs/flight_delays.py --controller URL --scope S --stream T --checkpoint DIR --output DIR

The job reads the stream up to its tail and stops. Started again with the same checkpoint, it reads only the new events
and writes the results again. Each micro-batch stores its sums next to the checkpoint, under its batch number. A
batch that Spark repeats after a crash replaces its own sums, so no event counts twice. Sums are in whole minutes, so
that the order of addition does not change them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.spark import run_until_caught_up
from headrace.spark.job_arguments import job_arguments

FLIGHT = "carrier string, hour bigint, dep_delay double, arr_delay double"
"""What this job needs of an event's JSON object; delays are null where a flight was cancelled."""

SUMS = (
    "carrier string, hour bigint, events bigint, departures bigint, dep_delay_sum double, arrivals bigint,"
    " arr_delay_sum double"
)
"""What a batch leaves behind: one row per carrier and hour."""

BYTES_PER_BATCH = 32 * 1024 * 1024


def partial_sums(events: DataFrame) -> DataFrame:
    """Counts and sums per carrier and hour of the JSON flights in the column `event`; fails on any other event."""
    parsed = F.from_json(F.col("event"), FLIGHT, {"mode": "FAILFAST"})
    return (
        events.select(parsed.alias("flight"))
        .select("flight.*")
        .groupBy("carrier", "hour")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.count("dep_delay").alias("departures"),
            F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("dep_delay_sum"),
            F.count("arr_delay").alias("arrivals"),
            F.coalesce(F.sum("arr_delay"), F.lit(0.0)).alias("arr_delay_sum"),
        )
    )


def delays(sums: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Results per carrier and per hour from the partial sums of all batches; a mean over no flight is null."""
    return _delays_by(sums, "carrier"), _delays_by(sums, "hour")


def _delays_by(sums: DataFrame, key: str) -> DataFrame:
    totals = sums.groupBy(key).agg(
        *(F.sum(name).alias(name) for name in ("events", "departures", "dep_delay_sum", "arrivals", "arr_delay_sum"))
    )
    return totals.select(
        key,
        "events",
        "departures",
        "arrivals",
        _mean("dep_delay_sum", "departures").alias("mean_dep_delay"),
        _mean("arr_delay_sum", "arrivals").alias("mean_arr_delay"),
    )


def _mean(total: str, count: str) -> Column:
    return F.when(F.col(count) > 0, F.col(total) / F.col(count))


class BatchSums:
    """Writes each micro-batch's sums to a directory of its own; counts the events of this run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.events = 0

    def write(self, events: DataFrame, batch_id: int) -> None:
        directory = f"{self.directory}/batch={batch_id}"
        partial_sums(events).coalesce(1).write.mode("overwrite").parquet(directory)
        written = events.sparkSession.read.schema(SUMS).parquet(directory).agg(F.sum("events")).first()
        self.events += (written[0] or 0) if written else 0


def run(spark: SparkSession, options: dict[str, str], checkpoint: str, output: str) -> int:
    """Reads up to the tail, or to the option end_stream_cut, writes the results; the number of events read in this run.

    `options` are those of `format("headrace")`.
    """
    sums = BatchSums(f"{checkpoint}/sums")

    def query(events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(sums.write).option("checkpointLocation", f"{checkpoint}/progress")

    wanted = {"start_stream_cut": "earliest", "approx_bytes_per_trigger": str(BYTES_PER_BATCH)}
    wanted |= {"event_format": "text", "columns": "event"}
    run_until_caught_up(spark, wanted | options, query)
    per_carrier, per_hour = delays(spark.read.schema(SUMS).parquet(sums.directory))
    for name, key, results in (("per_carrier", "carrier", per_carrier), ("per_hour", "hour", per_hour)):
        results.coalesce(1).sortWithinPartitions(key).write.mode("overwrite").parquet(f"{output}/{name}")
    return sums.events


def main() -> None:
    arguments = job_arguments(
        ["controller", "scope", "stream", "checkpoint", "output"],
        ["end_stream_cut", "approx_bytes_per_trigger", "auth", "metrics"],
    )
    metrics = arguments.pop("metrics")
    checkpoint, output = str(arguments.pop("checkpoint")), str(arguments.pop("output"))
    options = {name: value for name, value in arguments.items() if value is not None}
    spark = SparkSession.builder.appName("flight-delays").getOrCreate()
    events = run(spark, options, checkpoint, output)
    spark.stop()
    print(f"events read in this run: {events}")
    if metrics:
        Path(metrics).write_text(json.dumps({"events": events}) + "\n")


if __name__ == "__main__":
    main()
