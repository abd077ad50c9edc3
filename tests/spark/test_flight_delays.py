"""The Glue job on local Spark: figures as of the data, runs that continue, crashes and bad records without effect."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from glue_jobs import flight_delays
from headrace.spark.jobs.batch_table import StoredPart, read_table, read_version
from headrace.spark.jobs.job_files import HadoopFiles
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

Flight = dict[str, Any]


def flights(seed: int, count: int) -> list[Flight]:
    """Some were cancelled, some never arrived; one carrier never flew at all."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        carrier = chance.choice(["AA", "B6", "UA", "XX"])
        left = carrier != "XX" and chance.random() > 0.1
        arrived = left and chance.random() > 0.05
        found.append(
            {
                "carrier": carrier,
                "hour": chance.randrange(5, 24),
                "dep_delay": chance.randrange(-20, 400) if left else None,
                "arr_delay": chance.randrange(-60, 400) if arrived else None,
                "flight": number,
                "tailnum": None,
            }
        )
    return found


def write(store: StoreDouble, rows: Iterable[Flight]) -> None:
    for row in rows:
        store.stream.append(row["flight"] % 16 / 16, json.dumps(row).encode())


def expected(rows: list[Flight], key: str) -> dict[Any, tuple[int, int, int, float | None, float | None]]:
    found = {}
    for value in {row[key] for row in rows}:
        group = [row for row in rows if row[key] == value]
        departures = [row["dep_delay"] for row in group if row["dep_delay"] is not None]
        arrivals = [row["arr_delay"] for row in group if row["arr_delay"] is not None]
        means = [math.fsum(delays) / len(delays) if delays else None for delays in (departures, arrivals)]
        found[value] = (len(group), len(departures), len(arrivals), means[0], means[1])
    return found


class Job:
    def __init__(self, spark: SparkSession, store: StoreDouble, directory: Path) -> None:
        self.spark = spark
        self.store = store
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "delays"

    def run(self, merged_at_once: int = 16) -> flight_delays.RunCounts:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "approx_bytes_per_trigger": "40000"}
        return flight_delays.run(
            self.spark, where, str(self.checkpoint), str(self.output), merged_at_once=merged_at_once
        )

    def stored(self) -> tuple[StoredPart, ...]:
        return read_version(HadoopFiles(self.spark), f"{self.checkpoint}/flight-sums").of_kind("sums")

    def batches(self) -> int:
        return len(list((self.checkpoint / "progress" / "commits").glob("[0-9]*")))

    def results(self, name: str, key: str) -> dict[Any, tuple[Any, ...]]:
        rows = self.spark.read.parquet(str(self.output / name)).collect()
        fields = ("events", "departures", "arrivals", "mean_dep_delay", "mean_arr_delay")
        return {row[key]: tuple(row[field] for field in fields) for row in rows}

    def check(self, rows: list[Flight]) -> None:
        for name, key in (("per_carrier", "carrier"), ("per_hour", "hour")):
            found, wanted = self.results(name, key), expected(rows, key)
            assert found.keys() == wanted.keys()
            for value, figures in wanted.items():
                assert found[value] == pytest.approx(figures, abs=1e-9)


@pytest.fixture
def job(spark: SparkSession, store: StoreDouble, tmp_path: Path) -> Job:
    return Job(spark, store, tmp_path)


@pytest.mark.nightly
def test_figures_match_the_data_and_later_runs_add_new_flights(job: Job, store: StoreDouble) -> None:
    first, second = flights(1, 700), flights(2, 100)
    write(store, first[:400])
    store.stream.scale(list(store.stream.active), [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
    write(store, first[400:])
    assert job.run(merged_at_once=2).events == 700
    assert len(job.stored()) < job.batches()
    job.check(first)
    assert job.run().events == 0
    job.check(first)
    write(store, second)
    assert job.run().events == 100
    job.check(first + second)


def forget_last_commit(job: Job) -> None:
    """The state of a checkpoint when the process is killed after the batch was stored and before Spark notes that."""
    commits = sorted((job.checkpoint / "progress" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()


def test_a_batch_that_is_repeated_counts_once(job: Job, store: StoreDouble) -> None:
    rows = flights(3, 300)
    write(store, rows)
    assert job.run().events == 300
    forget_last_commit(job)
    assert job.run().events == 0
    job.check(rows)


BAD_RECORDS = {
    b"not json": "not_a_json_object",
    b"[1, 2]": "not_a_json_object",
    b"\xff\xfe": "not_utf8",
    b'{"carrier": "AA"}': "field_missing",
    b'{"carrier": "AA", "hour": "seven"}': "field_type",
    b'{"carrier": "AA", "hour": 7, "hour": 8}': "repeated_field",
}


@pytest.mark.nightly
def test_a_bad_record_goes_to_the_quarantine(job: Job, store: StoreDouble) -> None:
    rows = flights(4, 50)
    write(store, rows[:25])
    places = {}
    for record in BAD_RECORDS:
        places[record] = (store.stream.active[1], len(store.stream.segments[store.stream.active[1]].data))
        store.stream.append(0.9, record)
    write(store, rows[25:])
    assert job.run() == flight_delays.RunCounts(events=50 + len(BAD_RECORDS), quarantined=len(BAD_RECORDS))
    job.check(rows)
    found = read_table(job.spark, f"{job.checkpoint}/flight-sums", "quarantine", QUARANTINE_COLUMNS).collect()
    assert {bytes(row["event"]): row["reason"] for row in found} == BAD_RECORDS
    assert {bytes(row["event"]): (row["segment_id"], row["offset"]) for row in found} == places


@pytest.mark.nightly
def test_a_batch_of_bad_records_only_is_no_error(job: Job, store: StoreDouble) -> None:
    for record in BAD_RECORDS:
        store.stream.append(0.9, record)
    assert job.run() == flight_delays.RunCounts(events=len(BAD_RECORDS), quarantined=len(BAD_RECORDS))
    job.check([])
