"""Mean delays per carrier and per scheduled hour of departure, from a stream of flights. Runs on Glue and on a laptop.

    python glue_jobs/flight_delays.py --controller URL --scope S --stream T --checkpoint DIR --output DIR

The job reads the stream up to its tail and stops. Started again with the same checkpoint, it reads only the new events
and writes the results again. Each micro-batch adds its sums to a table next to the checkpoint, once, even if Spark
repeats the batch after a crash. The table merges the sums of many batches into one directory from time to time. Sums
are in whole minutes, so that the order of addition does not change them.

An event that is not a flight does not fail the job. It goes to the kind `quarantine` of the table, with its segment and
offset, and the job counts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.spark import has_data_source, run_until_caught_up
from headrace.spark.job_arguments import job_arguments
from headrace.spark.jobs.batch_table import MERGED_AT_ONCE, BatchRows, open_table, query_of, read_rows
from headrace.spark.jobs.json_records import classified, good_rows, quarantined

FLIGHT = {"carrier": "string", "hour": "bigint", "dep_delay": "double", "arr_delay": "double"}
"""What this job needs of an event's JSON object; delays are null where a flight was cancelled."""

TOTALS = ("events", "departures", "dep_delay_sum", "arrivals", "arr_delay_sum")
SUMS = {
    "carrier": "string",
    "hour": "bigint",
    "events": "bigint",
    "departures": "bigint",
    "dep_delay_sum": "double",
    "arrivals": "bigint",
    "arr_delay_sum": "double",
}
"""What a batch adds to the table: one row per carrier and hour."""

KINDS = ("sums", "quarantine")
BYTES_PER_BATCH = 32 * 1024 * 1024


@dataclass(slots=True)
class RunCounts:
    """The events that a run has read, and how many of them went to the quarantine."""

    events: int = 0
    quarantined: int = 0


def partial_sums(flights: DataFrame) -> DataFrame:
    """Counts and sums per carrier and hour."""
    return flights.groupBy("carrier", "hour").agg(
        F.count(F.lit(1)).alias("events"),
        F.count("dep_delay").alias("departures"),
        F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("dep_delay_sum"),
        F.count("arr_delay").alias("arrivals"),
        F.coalesce(F.sum("arr_delay"), F.lit(0.0)).alias("arr_delay_sum"),
    )


def delays(sums: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Results per carrier and per hour from the partial sums of all batches; a mean over no flight is null."""
    return _delays_by(sums, "carrier"), _delays_by(sums, "hour")


def _delays_by(sums: DataFrame, key: str) -> DataFrame:
    return _totals(sums, key).select(
        key,
        "events",
        "departures",
        "arrivals",
        _mean("dep_delay_sum", "departures").alias("mean_dep_delay"),
        _mean("arr_delay_sum", "arrivals").alias("mean_arr_delay"),
    )


def _mean(total: str, count: str) -> Column:
    return F.when(F.col(count) > 0, F.col(total) / F.col(count))


def _totals(sums: DataFrame, *keys: str) -> DataFrame:
    return sums.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in TOTALS))


class FlightSums:
    """The table of sums next to a checkpoint, and the counts of this run."""

    def __init__(self, spark: SparkSession, checkpoint: str, *, merged_at_once: int = MERGED_AT_ONCE) -> None:
        self.counts = RunCounts()
        self.table = open_table(spark, f"{checkpoint}/flight-sums")
        self._spark = spark
        self._merged_at_once = merged_at_once
        self.table.clean(KINDS)

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch."""
        counts = RunCounts()
        if self.table.add_batch(query_of(events), batch_id, lambda path: self._write(events, path, counts)):
            self.counts.events += counts.events
            self.counts.quarantined += counts.quarantined
        if self.table.merge("sums", self._merge, at_once=self._merged_at_once):
            self.table.clean(KINDS)

    def read(self) -> DataFrame:
        return read_rows(self._spark, self.table.paths("sums"), SUMS)

    def _write(self, events: DataFrame, path: Callable[[str], str], counts: RunCounts) -> BatchRows:
        """One pass over the batch, and a second one only if a record is bad."""
        # Adaptive execution drops a stage without rows, and the observed count with it: that of a batch of bad records.
        events.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        bad = Observation()
        records = classified(events, FLIGHT, required=("carrier", "hour"))
        observed = records.observe(bad, F.count("reason").alias("records"))
        _write_one_file(partial_sums(good_rows(observed, FLIGHT)), path("sums"))
        rows = {"sums": 0, "quarantine": 0}
        rows["sums"], counts.events = self._rows_and_events([path("sums")])
        if bad.get["records"]:
            _write_one_file(quarantined(records), path("quarantine"))
            rows["quarantine"] = self._spark.read.parquet(path("quarantine")).count()
            counts.quarantined = rows["quarantine"]
            counts.events += rows["quarantine"]
        return BatchRows(rows)

    def _merge(self, directories: Sequence[str], into: str) -> None:
        _write_one_file(_totals(read_rows(self._spark, list(directories), SUMS), "carrier", "hour"), into)

    def _rows_and_events(self, directories: Sequence[str]) -> tuple[int, int]:
        found = read_rows(self._spark, list(directories), SUMS).agg(F.count(F.lit(1)), F.sum("events")).first()
        return (int(found[0]), int(found[1] or 0)) if found else (0, 0)


def _write_one_file(rows: DataFrame, directory: str) -> None:
    rows.coalesce(1).write.mode("overwrite").parquet(directory)


def run(
    spark: SparkSession,
    options: dict[str, str],
    checkpoint: str,
    output: str,
    *,
    merged_at_once: int = MERGED_AT_ONCE,
) -> RunCounts:
    """Reads up to the tail, or to the option end_stream_cut, and writes the results; the counts of this run.

    `options` are those of `format("headrace")`.
    """
    sums = FlightSums(spark, checkpoint, merged_at_once=merged_at_once)

    def query(events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(sums.write).option("checkpointLocation", f"{checkpoint}/progress")

    wanted = {"start_stream_cut": "earliest", "approx_bytes_per_trigger": str(BYTES_PER_BATCH)}
    wanted |= {"columns": "event,segment_id,offset"}
    plans = None if has_data_source(spark) else f"{checkpoint}/plans"
    run_until_caught_up(spark, wanted | options, query, plans=plans)
    per_carrier, per_hour = delays(sums.read())
    for name, key, results in (("per_carrier", "carrier", per_carrier), ("per_hour", "hour", per_hour)):
        results.coalesce(1).sortWithinPartitions(key).write.mode("overwrite").parquet(f"{output}/{name}")
    return sums.counts


def main() -> None:
    arguments = job_arguments(
        ["controller", "scope", "stream", "checkpoint", "output"],
        ["end_stream_cut", "approx_bytes_per_trigger", "auth", "metrics"],
    )
    metrics = arguments.pop("metrics")
    checkpoint, output = str(arguments.pop("checkpoint")), str(arguments.pop("output"))
    options = {name: value for name, value in arguments.items() if value is not None}
    spark = SparkSession.builder.appName("flight-delays").getOrCreate()
    counts = run(spark, options, checkpoint.rstrip("/"), output.rstrip("/"))
    spark.stop()
    print(f"events read in this run: {counts.events}, of which in quarantine: {counts.quarantined}")
    if metrics:
        Path(metrics).write_text(json.dumps(asdict(counts)) + "\n")


if __name__ == "__main__":
    main()
