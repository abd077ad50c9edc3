"""Delegation tokens in Spark: the driver ships one for each stream, and nothing that is kept or shown has it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.spark import python_workers
from headrace.spark.manifests import ManifestHead, manifest_bytes
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.partitions import Partition
from headrace.spark.plans import open_plans
from headrace.spark.task_reads import read_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 40
TOKEN = "token-1-for-GET"


@pytest.fixture
def wanting(store: StoreDouble) -> StoreDouble:
    """A store that wants tokens, with all events in it and half of them in S3 too."""
    for number in range(EVENTS):
        store.stream.append(number % 2 / 2, b"event %2d" % number)
    store.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    store.token_life_s = 600.0
    return store


def _options(store: StoreDouble, **others: str) -> ReadOptions:
    return read_options({"controller": store.url, "scope": SCOPE, "stream": STREAM, "patience_s": "5"} | others)


def _planned(options: ReadOptions, *, links: bool = True) -> list[Partition]:
    with closing(open_plans(options, links=links)) as plans:
        return plans.batch_partitions()


def _read(options: ReadOptions, partitions: Iterable[Partition]) -> int:
    """The events that tasks read, each from what Spark sends it."""
    sent = pickle.loads(pickle.dumps(list(partitions)))
    return sum(batch.num_rows for part in sent for batch in read_partition(options, part))


def _tokens_of(partitions: Iterable[Partition]) -> set[str]:
    return {"" if planned.token is None else planned.token.token for part in partitions for planned in part}


def test_tasks_use_the_token_of_the_driver(wanting: StoreDouble) -> None:
    options = _options(wanting)
    partitions = _planned(options)
    assert _tokens_of(partitions) == {TOKEN}
    assert _read(options, partitions) == EVENTS
    assert wanting.tokens == [TOKEN]
    assert wanting.requests["refused"] == 0


def test_a_task_that_starts_late_fetches_its_own(wanting: StoreDouble) -> None:
    """The driver's token is still valid, but not for as long as a read may take."""
    wanting.token_life_s = 25.0
    options = _options(wanting)
    partitions = _planned(options)
    assert _read(options, partitions) == EVENTS
    assert wanting.tokens == [TOKEN, "token-2-for-GET"]
    assert _read(options, partitions) == EVENTS
    assert len(wanting.tokens) == 2, "a process keeps it for its next tasks"


def test_history_needs_no_token(wanting: StoreDouble) -> None:
    wanting.stored = lambda segment: len(segment.data)
    options = _options(wanting)
    partitions = _planned(options)
    assert _tokens_of(partitions) == {""}
    assert _read(options, partitions) == EVENTS
    assert wanting.tokens == []


def test_without_tokens_none_is_shipped(wanting: StoreDouble) -> None:
    wanting.token_life_s = None
    options = _options(wanting)
    partitions = _planned(options)
    assert _tokens_of(partitions) == {""}
    assert _read(options, partitions) == EVENTS
    assert wanting.requests["delegation-token"] == 0


def test_the_driver_keeps_its_token_for_many_batches(wanting: StoreDouble) -> None:
    with closing(MicroBatches(_options(wanting, start_stream_cut="earliest"))) as batches:
        start, read = batches.initial(), 0
        for _ in range(5):
            end = batches.latest(start, 80)
            partitions = batches.partitions(start, end)
            assert {planned.token.token for part in partitions for planned in part if planned.token is not None} <= {
                TOKEN
            }
            read += _read(batches.options, partitions)
            start = end
    assert read > 0
    assert wanting.tokens == [TOKEN]


def test_plans_in_files_have_no_token(wanting: StoreDouble) -> None:
    """Their tasks fetch their own: who can read the files could read the stream with it."""
    options = _options(wanting)
    partitions = _planned(options, links=False)
    assert _tokens_of(partitions) == {""}
    assert wanting.tokens == []
    shipped = _planned(options)
    assert TOKEN.encode() not in manifest_bytes(ManifestHead("end", "planner"), shipped)
    assert TOKEN not in repr(shipped) + str(shipped)
    assert _read(options, partitions) == EVENTS


def _texts_below(directory: Path) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in directory.rglob("*") if path.is_file()]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_nothing_that_spark_keeps_or_shows_has_a_token(
    spark: SparkSession, wanting: StoreDouble, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints, the event log of the history server, plans, and what driver and tasks print."""
    pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
    from headrace.spark import register

    register(spark)
    where = {"controller": wanting.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    rows = spark.read.format("headrace").options(**where).load()
    assert rows.count() == EVENTS
    query: Any = (
        spark.readStream.format("headrace")
        .options(**where)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        shown = [str(query.lastProgress), query._jsq.toString()]
    finally:
        query.stop()
    shown.append(rows._jdf.queryExecution().toString())
    kept = _texts_below(tmp_path / "checkpoint")
    logged = _texts_below(Path(urlsplit(spark.conf.get("spark.eventLog.dir") or "").path))
    assert len(wanting.tokens) >= 2
    assert wanting.requests["refused"] == 0
    assert any("stream_cut" in text for text in kept)
    assert any("SparkListenerJobEnd" in text for text in logged)
    assert not [text for text in (*shown, *kept, *logged, *capfd.readouterr()) if "-for-GET" in text]


def test_processes_share_one_token_for_all_tasks(wanting: StoreDouble) -> None:
    options = _options(wanting, read_history_from="segment_store")
    partitions = _planned(options, links=False)
    for _ in range(3):
        assert _read(options, partitions) == EVENTS
    assert wanting.tokens == [TOKEN]
    assert len(python_workers._clients) == 1
