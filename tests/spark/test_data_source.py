"""Batch reads through a real Spark session: rows, columns, cuts, splits, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.spark import has_data_source, read_batch, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

DATA_SOURCE, FUNCTION = "data source", "function"
either_form = pytest.mark.parametrize("load", [DATA_SOURCE, FUNCTION], indirect=True)

Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, store: StoreDouble, request: pytest.FixtureRequest) -> Load:
    """Reads with the data source, on engines without it and where a test asks for that with the function."""
    form = getattr(request, "param", DATA_SOURCE if has_data_source(spark) else FUNCTION)
    if form == DATA_SOURCE:
        pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
        register(spark)

    def loaded(**options: Any) -> DataFrame:
        where = {"controller": store.url, "scope": SCOPE, "stream": STREAM}
        given = where | {name: str(value) for name, value in options.items()}
        if form == FUNCTION:
            return read_batch(spark, given)
        return spark.read.format("headrace").options(**given).load()

    return loaded


def fill(store: StoreDouble, first: int, last: int) -> None:
    """Events `first` to `last - 1`; event n goes to the key position n % 8 / 8."""
    for number in range(first, last):
        store.stream.append(number % 8 / 8, b"event %d" % number)


def fill_across_a_scale(store: StoreDouble) -> None:
    fill(store, 0, 400)
    store.stream.scale(list(store.stream.active), [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)])
    fill(store, 400, 1000)


def expected_rows(store: StoreDouble) -> list[tuple[bytes, str, str, int, int]]:
    return [
        (bytes(segment.data[start + 8 : end]), SCOPE, STREAM, identifier, start)
        for identifier, segment in sorted(store.stream.segments.items())
        for start, end in zip(segment.boundaries, segment.boundaries[1:], strict=False)
    ]


@either_form
def test_rows_are_the_events_with_their_places(load: Load, store: StoreDouble) -> None:
    fill_across_a_scale(store)
    rows = load().orderBy("segment_id", "offset").collect()
    assert rows[0].__fields__ == ["event", "scope", "stream", "segment_id", "offset"]
    assert [tuple(row) for row in rows] == expected_rows(store)
    assert store.requests["ReadSegment"] == 0, "history comes from tier 2"


def test_the_tail_comes_from_the_segment_store(load: Load, store: StoreDouble) -> None:
    fill_across_a_scale(store)
    store.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    assert [tuple(row) for row in load().orderBy("segment_id", "offset").collect()] == expected_rows(store)
    assert store.requests["object"] > 0
    assert store.requests["ReadSegment"] > 0


def test_a_read_lies_between_two_cuts(load: Load, store: StoreDouble) -> None:
    fill(store, 0, 100)
    start = store.stream.tail()
    fill(store, 100, 250)
    end = store.stream.tail()
    fill(store, 250, 300)
    events = load(start_stream_cut=cut_text(start), end_stream_cut=cut_text(end), event_format="text")
    assert {row.event for row in events.collect()} == {f"event {number}" for number in range(100, 250)}


def test_columns_can_be_chosen(load: Load, store: StoreDouble) -> None:
    fill(store, 0, 10)
    rows = load(columns="offset, key_range_low,KEY_RANGE_HIGH,event", event_format="text").collect()
    assert rows[0].__fields__ == ["offset", "key_range_low", "key_range_high", "event"]
    assert {(row.key_range_low, row.key_range_high) for row in rows} == {(0.0, 0.5), (0.5, 1.0)}


@either_form
def test_large_ranges_are_split_and_none_is_lost(load: Load, store: StoreDouble) -> None:
    store.run_bytes = 64 * 1024
    for number in range(6000):
        store.stream.append(number % 8 / 8, b"%d" % number * 200)
    whole, split = load(columns="event"), load(columns="event", max_partition_bytes=600_000)
    assert whole.rdd.getNumPartitions() == 2
    assert split.rdd.getNumPartitions() > 4
    assert split.distinct().count() == split.count() == 6000


@either_form
def test_one_busy_segment_uses_every_core(load: Load, store: StoreDouble) -> None:
    for _ in range(40):
        store.stream.append(0.1, bytes(1024 * 1024))
    assert load(columns="offset").rdd.getNumPartitions() == 2, "the session has two cores"


@either_form
def test_an_empty_stream_has_no_rows(load: Load) -> None:
    assert load().count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_stream_kut": "latest"}, "did you mean 'start_stream_cut'"),
        ({"end_stream_cut": "no cut"}, "stream cut is not valid"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(load: Load, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(**options).collect()


def test_what_is_not_text_is_refused_with_its_offset(load: Load, store: StoreDouble) -> None:
    store.stream.append(0.1, b"fine")
    store.stream.append(0.1, b"\xff\xfe")
    with pytest.raises(Exception, match="event at offset 12 is not UTF-8 text"):
        load(event_format="text").collect()
