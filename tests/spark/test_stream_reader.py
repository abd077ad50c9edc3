"""The stream reader without Spark, called in the orders in which Spark 4.0 and 4.1, and 4.2 and later, call it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.spark.batch import SegmentRanges
from headrace.spark.micro_batch import HeadraceStreamReader, Offset
from headrace.spark.options import read_options

FRAME_BYTES = 20
Open = Callable[..., HeadraceStreamReader]


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def opened(store: StoreDouble, waits: list[float]) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_reader(**options: Any) -> HeadraceStreamReader:
            where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
            given = {name: str(value) for name, value in (where | options).items()}
            reader = HeadraceStreamReader(read_options(given), wait=waits.append)
            stack.callback(reader.stop)
            return reader

        yield open_reader


def fill(store: StoreDouble, events: int) -> None:
    for number in range(events):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8))


def planned_bytes(partitions: list[InputPartition]) -> int:
    groups = [one.ranges for one in partitions if isinstance(one, SegmentRanges)]
    assert len(groups) == len(partitions)
    return sum(part.length_bytes for group in groups for part in group)


def test_a_fresh_start_asks_for_the_latest_first(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    latest = reader.latestOffset()
    initial = reader.initialOffset()
    assert planned_bytes(reader.partitions(initial, latest)) == 10 * FRAME_BYTES
    following = reader.latestOffset()
    assert planned_bytes(reader.partitions(latest, following)) == 10 * FRAME_BYTES
    assert reader.initialOffset() == initial


def test_the_tail_is_resolved_once(opened: Open, store: StoreDouble) -> None:
    fill(store, 10)
    reader = opened(start_stream_cut="latest")
    latest = reader.latestOffset()
    fill(store, 10)
    initial = reader.initialOffset()
    assert initial == latest == {"stream_cut": cut_text({0: 5 * FRAME_BYTES, 1: 5 * FRAME_BYTES})}
    assert reader.partitions(initial, latest) == []


def logged(opened: Open) -> tuple[Offset, Offset]:
    """The offsets of a first batch, as a checkpoint keeps them."""
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    latest = reader.latestOffset()
    return reader.initialOffset(), latest


def test_a_restart_begins_with_the_newest_logged_offset(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    _, end = logged(opened)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    assert reader.partitions(end, end) == []
    following = reader.latestOffset()
    assert planned_bytes(reader.partitions(end, following)) == 10 * FRAME_BYTES


def test_an_unfinished_batch_is_planned_from_its_pair_alone(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    start, end = logged(opened)
    store.stream.scale(list(store.stream.active), [(0.0, 1.0)])
    fill(store, 50)
    reader = opened(start_stream_cut="latest", approx_bytes_per_trigger=3)
    reader.partitions(end, end)
    assert planned_bytes(reader.partitions(start, end)) == 10 * FRAME_BYTES


def test_newer_sparks_say_where_the_batch_starts(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    start, end = logged(opened)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    assert reader.latestOffset(start, object()) == end
    assert reader.latestOffset(end, object()) != end


def test_idle_questions_are_spaced_out(opened: Open, store: StoreDouble, waits: list[float]) -> None:
    fill(store, 10)
    reader = opened(idle_poll_ms=250)
    latest = reader.latestOffset()
    reader.partitions(reader.initialOffset(), latest)
    assert reader.latestOffset() == latest
    assert waits == []
    assert reader.latestOffset() == latest
    assert waits == [0.25]
    fill(store, 2)
    following = reader.latestOffset()
    assert following != latest
    reader.partitions(latest, following)
    assert waits == [0.25, 0.25]
    reader.latestOffset()
    assert waits == [0.25, 0.25]


def test_nobody_is_asked_beyond_the_end(opened: Open, store: StoreDouble) -> None:
    fill(store, 10)
    reader = opened(end_stream_cut=cut_text(store.stream.tail()))
    latest = reader.latestOffset()
    reader.partitions(reader.initialOffset(), latest)
    asked = store.requests.total()
    assert reader.latestOffset() == latest
    assert store.requests.total() == asked


def test_only_options_travel_to_tasks(opened: Open, store: StoreDouble) -> None:
    fill(store, 10)
    reader = opened()
    partitions = reader.partitions(reader.initialOffset(), reader.latestOffset())
    travelled = pickle.loads(pickle.dumps(reader))
    rows = [row for part in pickle.loads(pickle.dumps(partitions)) for row in travelled.read(part)]
    assert sum(batch.num_rows for batch in rows) == 10


def test_an_offset_of_another_source_is_refused(opened: Open, store: StoreDouble) -> None:
    with pytest.raises(Exception, match="offset of another source") as raised:
        opened().partitions({"offset": "1"}, {"offset": "2"})
    assert raised.value.specific_code == "foreign_checkpoint"  # type: ignore[attr-defined]
