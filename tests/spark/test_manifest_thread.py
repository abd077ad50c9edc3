"""The thread that plans for queries, with queries that say what a test wants."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.model.errors import UnavailableError
from headrace.spark.engines.manifest_thread import ManifestThread
from headrace.spark.manifest_planner import ManifestPlanner
from headrace.spark.manifests import manifest_name, partition_of_line
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.plan_files import LocalFiles


class Query:
    """Has finished batch 0 of the plans."""

    def __init__(self, url: str) -> None:
        self.lastProgress = {"sources": [{"description": f"FileStreamSource[{url}]", "endOffset": {"logOffset": 0}}]}

    def stop(self) -> None:
        """Its next batch fails."""


@pytest.mark.parametrize("queries", [1, 2])
def test_two_queries_over_one_directory_are_refused(store: StoreDouble, tmp_path: Path, queries: int) -> None:
    """The faster one would have plans deleted that the other has not read."""
    for number in range(30):
        store.stream.append(number % 2 / 2, b"event")
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    planner = ManifestPlanner(
        MicroBatches(read_options(where | {"approx_bytes_per_trigger": "20"})), LocalFiles(tmp_path)
    )
    planner.open()
    planner.step(None)
    active = [Query(planner.files.url) for _ in range(queries)]
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=object()), streams=SimpleNamespace(active=active))
    thread = ManifestThread(spark, planner)
    second = tmp_path / manifest_name(1)
    deadline_s = time.monotonic() + 30
    while not second.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    thread.stop()
    first_line = second.read_text().splitlines()[0]
    if queries == 1:
        assert partition_of_line(first_line) == ()
    else:
        with pytest.raises(UnavailableError, match="2 queries read the plans in"):
            partition_of_line(first_line)
