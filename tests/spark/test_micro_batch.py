"""Streaming reads through a real Spark session: budgets, scaling, restarts, replays, troubles that pass."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.model.errors import UnavailableError
from headrace.spark import has_data_source, read_stream, register, run_until_caught_up
from headrace.spark.jobs.run_stream import run_stream
from headrace.spark.manifests import manifest_number
from headrace.spark.plan_files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

EVENT_BYTES = 100


class Job:
    """A query that keeps what each batch read; started anew as often as a test wants, from one checkpoint."""

    def __init__(self, spark: SparkSession, store: StoreDouble, directory: Path, form: str) -> None:
        if form == DATA_SOURCE:
            register(spark)
        self.plans = str(directory / "plans") if form == PLANS else None
        self.spark = spark
        self.store = store
        self.checkpoint = directory / "checkpoint"
        self.batches: list[tuple[int, list[Any]]] = []
        self.options = {
            "controller": store.url,
            "scope": SCOPE,
            "stream": STREAM,
            "start_stream_cut": "earliest",
            "event_format": "text",
        }

    def take(self, events: DataFrame, batch_id: int) -> None:
        self.batches.append((batch_id, events.collect()))

    def writer(self, events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))

    def run(self, **options: Any) -> list[tuple[int, list[Any]]]:
        """Runs until nothing is left; the batches of this run."""
        self.batches = []
        given = self.options | {name: str(value) for name, value in options.items()}
        if self.plans is not None:
            run_until_caught_up(self.spark, given, self.writer, plans=self.plans)
            return self.batches
        events = self.spark.readStream.format("headrace").options(**given).load()
        query: StreamingQuery = self.writer(events).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return self.batches

    def wait_for(self, events: Counter[int]) -> None:
        """Until the sink has taken exactly these. A batch that was repeated, as its commit was cut off, counts once."""
        deadline = time.monotonic() + 300
        while numbers(list(dict(self.batches).items())) != events:
            assert time.monotonic() < deadline, f"{numbers(self.batches).total()} of {len(events)} events"
            time.sleep(0.05)

    def forget_last_commit(self) -> None:
        """What a crash leaves after the sink took the last batch and before Spark noted that."""
        commits = sorted(self.checkpoint.glob("commits/[0-9]*"), key=lambda file: int(file.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


DATA_SOURCE, PLANS = "data source", "plans"
either_form = pytest.mark.parametrize(
    "job", [DATA_SOURCE, pytest.param(PLANS, marks=pytest.mark.nightly)], indirect=True
)


@pytest.fixture
def job(spark: SparkSession, store: StoreDouble, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """Reads with the data source; on engines without it, and where a test asks for that, with plans in a directory."""
    form = getattr(request, "param", DATA_SOURCE if has_data_source(spark) else PLANS)
    if form == DATA_SOURCE:
        pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
    return Job(spark, store, tmp_path, form)


def fill(store: StoreDouble, first: int, last: int) -> None:
    for number in range(first, last):
        store.stream.append(number % 8 / 8, b"%d" % number + b" " * (EVENT_BYTES - 8 - len(str(number))))


def numbers(batches: list[tuple[int, list[Any]]]) -> Counter[int]:
    return Counter(int(row.event) for _, rows in batches for row in rows)


def each_once(first: int, last: int) -> Counter[int]:
    return Counter(range(first, last))


@either_form
def test_a_scale_is_followed_and_batches_keep_to_their_budget(job: Job, store: StoreDouble) -> None:
    store.run_bytes = EVENT_BYTES
    fill(store, 0, 400)
    store.stream.scale(list(store.stream.active), [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)])
    fill(store, 400, 800)
    batches = job.run(approx_bytes_per_trigger=20_000)
    assert numbers(batches) == each_once(0, 800)
    assert len(batches) == 4
    assert all(len(rows) * EVENT_BYTES <= 20_000 + 6 * EVENT_BYTES for _, rows in batches)
    in_order = sorted((batch, row.segment_id, row.offset, int(row.event)) for batch, rows in batches for row in rows)
    for residue in range(8):
        keyed = [number for *_, number in in_order if number % 8 == residue]
        assert keyed == sorted(keyed), "per key, batches and then (segment_id, offset) give the order written"


@either_form
def test_a_restart_goes_on_where_the_last_run_ended(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 100)
    assert numbers(job.run()) == each_once(0, 100)
    assert numbers(job.run()) == Counter()
    store.stream.scale([store.stream.active[0]], [(0.0, 0.5)])
    fill(store, 100, 160)
    assert numbers(job.run(approx_bytes_per_trigger=2_000)) == each_once(100, 160)


@either_form
@pytest.mark.nightly
def test_a_batch_is_repeated_exactly_after_a_crash_and_a_scale(job: Job, store: StoreDouble) -> None:
    store.run_bytes = EVENT_BYTES
    fill(store, 0, 200)
    before = job.run(approx_bytes_per_trigger=8_000)
    job.forget_last_commit()
    store.stream.scale(list(store.stream.active), [(0.0, 1.0)])
    fill(store, 200, 240)
    store.stored = lambda segment: 0
    after = job.run(approx_bytes_per_trigger=8_000)
    assert after[0][0] == before[-1][0]
    assert sorted(after[0][1]) == sorted(before[-1][1])
    assert numbers(after[1:]) == each_once(200, 240)


def test_starting_at_the_latest_skips_what_is_there(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 50)
    assert numbers(job.run(start_stream_cut="latest")) == Counter()
    fill(store, 50, 60)
    assert numbers(job.run(start_stream_cut="latest")) == each_once(50, 60)


@pytest.mark.nightly
def test_an_end_cut_is_never_passed(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 100)
    end = cut_text(store.stream.tail())
    fill(store, 100, 150)
    assert numbers(job.run(end_stream_cut=end, approx_bytes_per_trigger=3_000)) == each_once(0, 100)
    assert numbers(job.run()) == each_once(100, 150)


def test_strict_key_order_ends_a_batch_at_a_scale(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 80)
    store.stream.scale([store.stream.active[0]], [(0.0, 0.5)])
    fill(store, 80, 160)
    batches = job.run(strict_key_order="true")
    assert numbers(batches) == each_once(0, 160)
    first_segments = {row.segment_id for row in batches[0][1]}
    assert first_segments == set(store.stream.first)


def test_troubles_that_pass_do_not_end_the_query(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 100)
    store.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    store.refuse("ReadSegment", 0, times=3)
    store.refuse("endpoint", 503)
    store.refuse("next-cut", 503, times=3)
    store.refuse("stream-cut", 503, times=2)
    store.refuse("chunks", 503, times=2)
    store.refuse("object", 403)
    store.refuse("object", 500)
    store.refuse("object", 0, times=2)
    assert numbers(job.run()) == each_once(0, 100)


@pytest.mark.parametrize("job", [PLANS], indirect=True)
@pytest.mark.nightly
def test_a_problem_of_planning_fails_this_run_only(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 100)
    assert numbers(job.run()) == each_once(0, 100)
    fill(store, 100, 120)
    events = read_stream(job.spark, job.options | {"patience_s": "1"}, plans=str(job.plans))
    fill(store, 120, 140)
    job.batches = []
    store.refuse("next-cut", 503, times=1000)
    query = job.writer(events).start()
    with pytest.raises(Exception, match=r"(?s)could not be planned.*as the test wants"):
        query.awaitTermination()
    store.forgive()
    assert numbers(job.batches) == each_once(100, 120), "planned by read_stream"
    assert numbers(job.run()) == each_once(120, 140)


def break_directory(monkeypatch: pytest.MonkeyPatch, plans: int) -> None:
    """The directory refuses all but the first plans."""
    create = LocalFiles.create

    def refuse(files: LocalFiles, name: str, data: bytes) -> bool:
        number = manifest_number(name)
        if number is not None and number >= plans:
            raise UnavailableError("503 SlowDown")
        return create(files, name, data)

    monkeypatch.setattr(LocalFiles, "create", refuse)


@pytest.mark.parametrize("job", [PLANS], indirect=True)
@pytest.mark.nightly
def test_a_run_whose_directory_fails_raises(job: Job, store: StoreDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no plan that could tell the query."""
    store.run_bytes = EVENT_BYTES
    fill(store, 0, 100)
    limited = {"approx_bytes_per_trigger": 4_000, "patience_s": 1}
    with monkeypatch.context() as patch:
        break_directory(patch, 2)
        with pytest.raises(UnavailableError, match="SlowDown"):
            job.run(**limited)
        first = numbers(job.batches)
        given = job.options | {"approx_bytes_per_trigger": "4000", "patience_s": "1"}
        with pytest.raises(UnavailableError, match="SlowDown"):
            run_stream(job.spark, given, job.take, str(job.checkpoint) + "-2", trigger_s=1, keep_plans=True)
    assert numbers(job.run(**limited)) + first == each_once(0, 100)


@pytest.mark.parametrize("job", [PLANS], indirect=True)
@pytest.mark.nightly
def test_a_query_that_cannot_be_told_fails(job: Job, store: StoreDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` would end it as if it had been stopped on purpose."""
    fill(store, 0, 100)
    events = read_stream(job.spark, job.options | {"patience_s": "1"}, plans=str(job.plans))
    fill(store, 100, 120)
    break_directory(monkeypatch, 1)
    other = job.spark.readStream.format("rate").load().writeStream.format("noop").start()
    query = job.writer(events).start()
    try:
        with pytest.raises(Exception, match="STREAM_FAILED"):
            query.awaitTermination()
        assert other.isActive
    finally:
        other.stop()
    monkeypatch.undo()
    assert numbers(job.batches) == each_once(0, 100)
    assert numbers(job.run()) == each_once(100, 120)


@either_form
@pytest.mark.nightly
def test_a_run_that_is_stopped_raises(job: Job, store: StoreDouble) -> None:
    fill(store, 0, 100)

    def stop(events: DataFrame, batch_id: int) -> None:
        for query in job.spark.streams.active:
            threading.Thread(target=query.stop).start()
        time.sleep(5)

    def stopping(events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(stop).option("checkpointLocation", str(job.checkpoint))

    with pytest.raises(Exception, match="stopped before it had caught up"):
        run_until_caught_up(job.spark, job.options, stopping, plans=job.plans)


@pytest.mark.parametrize("job", [PLANS], indirect=True)
@pytest.mark.nightly
def test_each_start_with_available_now_reads_a_batch(job: Job, store: StoreDouble) -> None:
    for run in range(4):
        fill(store, 100 * run, 100 * (run + 1))
        job.batches = []
        events = read_stream(job.spark, job.options, plans=str(job.plans))
        query = job.writer(events).trigger(availableNow=True).start()
        query.awaitTermination()
        assert numbers(job.batches) == each_once(100 * run, 100 * (run + 1))
    job.batches = []
    job.writer(events).trigger(availableNow=True).start().awaitTermination()
    assert job.batches == [], "there is nothing"


@pytest.mark.parametrize("job", [PLANS], indirect=True)
def test_a_started_query_follows_the_stream(job: Job, store: StoreDouble) -> None:
    """Without any end, as a job with its own sink and trigger runs it; twice from one DataFrame."""
    events = read_stream(job.spark, job.options | {"idle_poll_ms": "20"}, plans=str(job.plans))
    for first in (0, 100):
        query = job.writer(events).start()
        for more in (first, first + 50):
            fill(store, more, more + 50)
            job.wait_for(each_once(0, more + 50))
        query.stop()
    plans = [file.read_text() for file in Path(str(job.plans)).glob("[0-9]*.json")]
    assert any(SCOPE in plan for plan in plans)
    assert not any(store.url in plan for plan in plans), "a process that reads the files could follow the links"


@either_form
@pytest.mark.nightly
def test_caught_up_means_all_that_was_there_in_limited_batches(job: Job, store: StoreDouble) -> None:
    store.run_bytes = EVENT_BYTES
    fill(store, 0, 300)

    def write_and_grow(events: DataFrame) -> DataStreamWriter:
        fill(store, 300, 320)
        return job.writer(events)

    limited = job.options | {"approx_bytes_per_trigger": "6000"}
    run_until_caught_up(job.spark, limited, write_and_grow, plans=job.plans)
    assert numbers(job.batches) == each_once(0, 300)
    assert len(job.batches) >= 4
    job.batches = []
    run_until_caught_up(job.spark, limited, job.writer, plans=job.plans)
    assert numbers(job.batches) == each_once(300, 320)
    job.batches = []
    query = run_until_caught_up(job.spark, limited, job.writer, plans=job.plans)
    assert job.batches == []
    assert not query.isActive


@pytest.mark.parametrize("job", [DATA_SOURCE], indirect=True)
@pytest.mark.parametrize("limit", [None, 3_000])
def test_available_now_reads_what_was_there(job: Job, store: StoreDouble, limit: int | None) -> None:
    if limit is not None:
        pytest.importorskip("pyspark.sql.streaming.datasource", reason="before Spark 4.2 it ends after one batch")
    store.run_bytes = EVENT_BYTES
    fill(store, 0, 100)
    options = job.options if limit is None else job.options | {"approx_bytes_per_trigger": str(limit)}
    events = job.spark.readStream.format("headrace").options(**options).load()
    query = job.writer(events).trigger(availableNow=True).start()
    query.awaitTermination()
    assert numbers(job.batches) == each_once(0, 100)
    assert len(job.batches) == (1 if limit is None else 4)
