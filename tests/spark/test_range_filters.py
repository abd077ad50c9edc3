"""Filters that planning uses: no wanted row is left out, and what is not wanted is not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from spark_store_double import SCOPE, STREAM, StoreDouble, serving
from spark_stream_double import StreamDouble

from headrace.spark import range_filters
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.plans import open_plans
from headrace.spark.range_filters import Condition, RangeFilter
from headrace.spark.task_reads import read_partition

COLUMNS = ("scope", "stream", "segment_id", "offset", "key_range_low", "key_range_high")
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def filled() -> Iterator[StoreDouble]:
    """Two streams, one of them scaled twice, with events of many sizes; some of it is not in tier 2 yet."""
    double = StoreDouble(StreamDouble([(0.0, 0.5), (0.5, 1.0)]))
    double.streams["ships"] = StreamDouble([(0.0, 1.0)])
    for number in range(900):
        if number in (300, 600):
            low_half = [
                identifier for identifier in double.stream.active if double.stream.segments[identifier].low < 0.5
            ]
            double.stream.scale(low_half, [(0.0, 0.25), (0.25, 0.5)] if number == 300 else [(0.0, 0.5)])
        double.stream.append(number % 8 / 8, bytes(number * 7 % 83))
        double.streams["ships"].append(0.5, bytes(number * 5 % 41))
    double.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    with serving(double) as serving_double:
        yield serving_double


def options_of(store: StoreDouble) -> ReadOptions:
    where = {"controller": store.url, "scope": SCOPE, "stream": f"{STREAM},ships", "columns": ",".join(COLUMNS)}
    return read_options(where | {"max_partition_bytes": "2000", "patience_s": "5"})


def rows_read(store: StoreDouble, wanted: RangeFilter) -> list[Row]:
    """The rows that tasks read, before Spark filters them."""
    options = options_of(store)
    with closing(open_plans(options, wanted)) as plans:
        partitions = plans.batch_partitions()
    batches = [batch for partition in partitions for batch in read_partition(options, partition)]
    return [tuple(row[name] for name in COLUMNS) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def all_rows(filled: StoreDouble) -> list[Row]:
    rows = rows_read(filled, RangeFilter())
    assert len(rows) == 1800
    return rows


def passes(row: Row, conditions: tuple[Condition, ...]) -> bool:
    return all(condition.holds(row[COLUMNS.index(condition.column)]) for condition in conditions)


segment_ids = st.sampled_from([0, 1, (1 << 32) + 2, (1 << 32) + 3, (2 << 32) + 4, 99])
offsets = st.integers(-5, 20_000)
names = st.sampled_from([STREAM, "ships", "others"])
places = st.sampled_from([0.0, 0.25, 0.5, 1.0])


def conditions_on(column: str, values: st.SearchStrategy[Any], comparisons: str) -> st.SearchStrategy[Condition]:
    single = st.builds(Condition, st.just(column), st.sampled_from(comparisons.split()), values)
    several = st.builds(Condition, st.just(column), st.just("in"), st.lists(values, max_size=4).map(tuple))
    return single | several


every_comparison = "= < <= > >="
condition = (
    conditions_on("segment_id", segment_ids, every_comparison)
    | conditions_on("offset", offsets, every_comparison)
    | conditions_on("stream", names, "=")
    | conditions_on("key_range_low", places, every_comparison)
    | conditions_on("key_range_high", places, every_comparison)
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(condition, max_size=4).map(tuple), st.sampled_from([50, 400, 3000]))
@example((Condition("offset", ">=", 3000), Condition("offset", "<", 3001)), 50)
@example((Condition("offset", ">=", 3000), Condition("offset", "<", 20)), 50)
@example((Condition("offset", "in", ()),), 50)
def test_no_wanted_row_is_left_out(
    filled: StoreDouble,
    all_rows: list[Row],
    monkeypatch: pytest.MonkeyPatch,
    conditions: tuple[Condition, ...],
    slack: int,
) -> None:
    assert all(condition.is_known for condition in conditions)
    monkeypatch.setattr(range_filters, "SLACK_BYTES", slack)
    rows = rows_read(filled, RangeFilter(conditions))
    of_segments = tuple(condition for condition in conditions if condition.is_of_segment)
    assert len(rows) == len(set(rows))
    assert all(passes(row, of_segments) for row in rows), "what Spark does not filter again is exact"
    assert {row for row in rows if passes(row, conditions)} == {row for row in all_rows if passes(row, conditions)}


def requests_of(store: StoreDouble, work: Callable[[], object]) -> Counter[str]:
    before = Counter(store.requests)
    work()
    return store.requests - before


def test_segments_that_are_not_wanted_cost_nothing(filled: StoreDouble) -> None:
    one_segment = RangeFilter((Condition("stream", "=", STREAM), Condition("segment_id", "=", 1)))
    asked = requests_of(filled, lambda: rows_read(filled, one_segment))
    planning = {"stream-cut": 2, "next-cut": 1, "range-plans": 1}
    assert {kind: asked[kind] for kind in planning} == planning, "the other stream is not even planned"
    nothing = RangeFilter((Condition("segment_id", "=", 99),))
    asked = requests_of(filled, lambda: rows_read(filled, nothing))
    assert set(asked) <= {"stream-cut", "next-cut"}, "nothing is planned in pieces, and nothing is read"
    other_scope = RangeFilter((Condition("scope", "=", "others"),))
    assert not requests_of(filled, lambda: rows_read(filled, other_scope))


def test_offsets_bound_what_is_read(filled: StoreDouble, all_rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_filters, "SLACK_BYTES", 200)
    wanted = RangeFilter((Condition("offset", ">=", 9_000), Condition("offset", "<", 10_000)))
    asked = requests_of(filled, lambda: rows_read(filled, wanted))
    assert asked["range-plans"] <= 2 * 3, "two questions and a plan for each stream"
    rows = rows_read(filled, wanted)
    assert all(9_000 - 400 <= row[3] <= 10_000 + 200 for row in rows)
    assert len(rows) < len(all_rows) / 8


def test_a_boundary_that_no_store_knows_is_not_used(filled: StoreDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_filters, "SLACK_BYTES", 50)
    monkeypatch.setattr(filled, "indexed", False)
    wanted = RangeFilter((Condition("offset", "=", 9_000),))
    assert {row[3] for row in rows_read(filled, wanted)} >= {0}


@pytest.mark.parametrize(
    "unknown",
    [
        Condition("segment_id", "=", None),
        Condition("segment_id", "in", (1, None)),
        Condition("segment_id", "=", True),
        Condition("segment_id", "<", 1.5),
        Condition("key_range_low", "<", float("nan")),
        Condition("stream", ">", "a"),
        Condition("event", "=", b"a"),
        Condition("bytes", "=", 1),
    ],
    ids=str,
)
def test_what_spark_understands_otherwise_is_not_known(unknown: Condition) -> None:
    assert not unknown.is_known
