"""The Glue job on local Spark: figures as of the data, runs that continue, crashes that count nothing twice."""

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
        means = [math.fsum(one) / len(one) if one else None for one in (departures, arrivals)]
        found[value] = (len(group), len(departures), len(arrivals), means[0], means[1])
    return found


class Job:
    def __init__(self, spark: SparkSession, store: StoreDouble, directory: Path) -> None:
        self.spark = spark
        self.store = store
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "delays"

    def run(self) -> int:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "approx_bytes_per_trigger": "40000"}
        return flight_delays.run(self.spark, where, str(self.checkpoint), str(self.output))

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


def test_figures_match_the_data_and_later_runs_add_new_flights(job: Job, store: StoreDouble) -> None:
    first, second = flights(1, 700), flights(2, 100)
    write(store, first[:400])
    store.stream.scale(list(store.stream.active), [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
    write(store, first[400:])
    assert job.run() == 700
    job.check(first)
    assert job.run() == 0
    job.check(first)
    write(store, second)
    assert job.run() == 100
    job.check(first + second)


def test_a_batch_that_is_repeated_counts_once(job: Job, store: StoreDouble) -> None:
    rows = flights(3, 300)
    write(store, rows)
    job.run()
    commits = sorted((job.checkpoint / "progress" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    assert 0 < job.run() <= 300
    job.check(rows)


def test_an_event_that_is_no_flight_fails_the_job(job: Job, store: StoreDouble) -> None:
    write(store, flights(4, 5))
    store.stream.append(0.5, b"not json")
    with pytest.raises(Exception, match=r"MALFORMED|not json"):
        job.run()
    assert not (job.output / "per_carrier").exists()
