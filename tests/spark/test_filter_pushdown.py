"""Filters that Spark 4.1 and later hand to the data source: the same rows as without, and less is read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble
from spark_stream_double import StreamDouble

from headrace.spark import register
from headrace.spark.engines.session import FILTER_PUSHDOWN
from headrace.spark.options import read_options

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
from pyspark.sql import datasource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]
needs_filters = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"), reason="Spark 4.1 is the first version that hands filters to Python"
)

RANDOM_FILTERS = 8
BIG_EVENTS = 24
MIB = 1024 * 1024


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, with filters handed to Python sources."""
    spark.conf.set(FILTER_PUSHDOWN, "true")
    register(spark)
    yield spark
    spark.conf.unset(FILTER_PUSHDOWN)
    register(spark)


def events(spark: SparkSession, store: StoreDouble, **options: str) -> DataFrame:
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "columns": "segment_id,offset,stream"}
    return spark.read.format("headrace").options(**(where | options)).load()


def fill(store: StoreDouble) -> None:
    for number in range(600):
        if number == 300:
            store.stream.scale(list(store.stream.active), [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
        store.stream.append(number % 8 / 8, b"%d" % number)


def is_filtered_by_spark(frame: DataFrame) -> bool:
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    return re.search(r"\bFilter \(", plan) is not None  # and not the "PushedFilters" of the scan


@needs_filters
def test_a_segment_that_is_not_wanted_is_not_read(pushing: SparkSession, store: StoreDouble) -> None:
    fill(store)
    store.stored = lambda segment: 0 if segment.identifier == 1 else len(segment.data)
    frame = events(pushing, store).where("segment_id = 1 and offset is not null")
    assert frame.count() == 148
    assert store.requests["object"] == 0, "the other segments are only in tier 2"
    assert store.requests["ReadSegment"] > 0
    assert not is_filtered_by_spark(frame), "what the source answers exactly, Spark does not filter again"


@needs_filters
def test_offsets_bound_the_bytes_that_are_read(pushing: SparkSession, store: StoreDouble) -> None:
    for _ in range(BIG_EVENTS):
        store.stream.append(0.1, bytes(2 * MIB - 8))
    store.run_bytes = MIB
    frame = events(pushing, store).where(f"offset >= {30 * MIB} and offset < {32 * MIB}")
    assert [row.offset for row in frame.collect()] == [30 * MIB]
    assert is_filtered_by_spark(frame), "bounds are wider than the filter"
    whole = BIG_EVENTS * 2
    assert store.requests["object"] <= whole // 2, f"{store.requests['object']} of {whole} MiB"


@needs_filters
def test_streams_that_are_not_wanted_are_not_planned(pushing: SparkSession, store: StoreDouble) -> None:
    fill(store)
    store.streams["ships"] = StreamDouble([(0.0, 1.0)])
    store.streams["ships"].append(0.1, b"one")
    frame = events(pushing, store, stream=f"{STREAM},ships").where("stream = 'ships'")
    assert frame.count() == 1
    assert store.requests["next-cut"] == 1
    assert events(pushing, store).where("stream = 'others'").count() == 0


def random_filter(source: random.Random) -> str:
    """An expression that Spark may hand over in part, or not at all."""
    segment = source.choice([0, 1, (1 << 32) + 2, (1 << 32) + 3, 77])
    offset, comparison = source.randrange(0, 2000), source.choice(["=", "<", "<=", ">", ">=", "<>"])
    parts = [
        f"segment_id {comparison} {segment}",
        f"offset {comparison} {offset}",
        f"segment_id in (0, {segment}, null)",
        f"offset in ({offset}, 11, 22, 495)",
        f"not (segment_id = {segment})",
        f"segment_id <=> {segment}",
        f"offset between {offset} and {offset + 300}",
        f"(segment_id = {segment} or offset < {offset})",
        f"offset % 2 = 0 and segment_id + 1 > {segment}",
        "stream = 'stations'",
        "stream > 'a'",
        "offset is not null",
    ]
    return " and ".join(source.sample(parts, source.randrange(1, 4)))


@needs_filters
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 8))])
def test_any_filter_gives_the_rows_that_it_gives_without(pushing: SparkSession, store: StoreDouble, seed: int) -> None:
    fill(store)
    source = random.Random(seed)
    frame, plain = events(pushing, store), events(pushing, store, filter_pushdown="false").cache()
    for _ in range(RANDOM_FILTERS):
        wanted = random_filter(source)
        assert sorted(frame.where(wanted).collect()) == sorted(plain.where(wanted).collect()), wanted
    plain.unpersist()


def test_a_session_without_the_setting_reads_as_always(spark: SparkSession, store: StoreDouble) -> None:
    fill(store)
    register(spark)
    assert events(spark, store).where("segment_id = 1").count() == 148
    with pytest.raises(Exception, match=r"filterPushdown\.enabled|Spark 4\.1 is the first version"):
        events(spark, store, filter_pushdown="true").where("segment_id = 1").count()


@needs_filters
def test_fields_of_json_with_our_names_are_fields():
    from headrace.spark.engines.filtering_reader import HeadraceFilteringReader

    options = {
        "controller": "http://127.0.0.1:1",
        "scope": SCOPE,
        "stream": STREAM,
        "event_format": "json",
        "event_schema": "offset bigint, stream string, event string",
        "columns": "event,segment_id",
    }
    filters = [
        datasource.EqualTo(("offset",), 5),
        datasource.EqualTo(("stream",), "north"),
        datasource.IsNotNull(("event",)),
        datasource.EqualTo(("segment_id",), 3),
    ]
    reader = HeadraceFilteringReader(read_options(options))
    assert list(reader.pushFilters(filters)) == filters[:3]
