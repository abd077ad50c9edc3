"""The stream reader without Spark, called in the orders in which Spark 4.0 and 4.1, and 4.2 and later, call it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.model.errors import InvalidRequestError
from headrace.spark.client_access import ClientStreamAccess
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
from pyspark.sql.datasource import InputPartition

from headrace.spark.engines.batch_reader import SegmentRanges
from headrace.spark.engines.stream_reader import HeadraceStreamReader, Offset

FRAME_BYTES = 20
Open = Callable[..., HeadraceStreamReader]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(store: StoreDouble, clock: Clock) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_reader(**options: Any) -> HeadraceStreamReader:
            where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
            given = {name: str(value) for name, value in (where | options).items()}
            checked = read_options(given)
            reader = HeadraceStreamReader(checked, MicroBatches(checked, monotonic_s=clock))
            stack.callback(reader.stop)
            return reader

        yield open_reader


def fill(store: StoreDouble, events: int) -> None:
    for number in range(events):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8))


def planned_bytes(partitions: list[InputPartition]) -> int:
    groups = [partition.ranges for partition in partitions if isinstance(partition, SegmentRanges)]
    assert len(groups) == len(partitions)
    return sum(planned.length_bytes for group in groups for planned in group)


def test_a_fresh_start_asks_for_the_latest_first(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    latest = reader.latestOffset()
    initial = reader.initialOffset()
    assert planned_bytes(reader.partitions(initial, latest)) == 10 * FRAME_BYTES
    following = reader.latestOffset()
    assert planned_bytes(reader.partitions(latest, following)) == 10 * FRAME_BYTES
    assert reader.initialOffset() == initial


@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_without_a_limit_reaches_the_tail(opened: Open, store: StoreDouble, strict: bool) -> None:
    """Also if it has more segments than one request plans. `availableNow` of Spark 4.0 and 4.1 has one batch only."""
    for _ in range(3):
        fill(store, 10)
        store.stream.scale(list(store.stream.active), [(0.0, 0.5), (0.5, 1.0)])
    store.segments_per_cut = 2
    reader = opened(strict_key_order=strict)
    latest = reader.latestOffset()
    partitions = reader.partitions(reader.initialOffset(), latest)
    assert planned_bytes(partitions) == (10 if strict else 30) * FRAME_BYTES
    assert (latest == {"stream_cut": cut_text(store.stream.tail())}) is not strict


def test_a_batch_without_a_limit_ends_if_the_stream_grows(
    opened: Open, store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 10)
    store.segments_per_cut = 2
    next_batch = ClientStreamAccess.next_batch

    def grow_first(*arguments: Any, **named: Any) -> Any:
        found = next_batch(*arguments, **named)
        store.stream.scale(list(store.stream.active), [(0.0, 0.5), (0.5, 1.0)])
        fill(store, 10)
        return found

    for _ in range(2):
        store.stream.scale(list(store.stream.active), [(0.0, 0.5), (0.5, 1.0)])
    monkeypatch.setattr(ClientStreamAccess, "next_batch", grow_first)
    reader = opened()
    latest = reader.latestOffset()
    assert planned_bytes(reader.partitions(reader.initialOffset(), latest)) == 20 * FRAME_BYTES


def test_no_links_are_asked_for_in_vain(opened: Open, store: StoreDouble) -> None:
    fill(store, 10)
    for links in (False, True):
        reader = opened(read_history_from="s3" if links else "segment_store")
        latest = reader.latestOffset()
        (partition,) = reader.partitions(reader.initialOffset(), latest)
        assert isinstance(partition, SegmentRanges)
        assert [planned.listing is not None for planned in partition.ranges] == [links, links]
        assert store.linked_ranges == (2 if links else 0)


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
    assert reader.latestOffset(start) == end
    assert reader.latestOffset(end) != end


def test_an_idle_source_answers_from_memory(opened: Open, store: StoreDouble, clock: Clock) -> None:
    fill(store, 10)
    reader = opened(idle_poll_ms=250)
    latest = reader.latestOffset()
    reader.partitions(reader.initialOffset(), latest)
    assert reader.latestOffset() == latest
    asked = store.requests["next-cut"]
    fill(store, 2)
    clock.now_s = 0.249
    assert reader.latestOffset() == latest
    assert store.requests["next-cut"] == asked
    clock.now_s = 0.25
    assert reader.latestOffset() != latest


def test_a_source_that_reads_is_never_answered_from_memory(opened: Open, store: StoreDouble) -> None:
    fill(store, 100)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    start = reader.initialOffset()
    for _ in range(10):
        end = reader.latestOffset(start)
        assert planned_bytes(reader.partitions(start, end)) == 10 * FRAME_BYTES
        start = end


def test_the_controller_is_not_asked_beyond_the_end(opened: Open, store: StoreDouble) -> None:
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


def test_newer_sparks_give_the_limit(opened: Open, store: StoreDouble) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.2 and later give limits")
    fill(store, 100)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    start = reader.initialOffset()

    def bytes_with(limit: object) -> int:
        return planned_bytes(reader.partitions(start, reader.latestOffset(start, limit)))

    assert reader.getDefaultReadLimit() == limits.ReadMaxBytes(10 * FRAME_BYTES)
    assert bytes_with(reader.getDefaultReadLimit()) == 10 * FRAME_BYTES
    assert bytes_with(limits.ReadMaxBytes(30 * FRAME_BYTES)) == 30 * FRAME_BYTES
    assert bytes_with(limits.ReadAllAvailable()) == 100 * FRAME_BYTES
    with pytest.raises(InvalidRequestError, match="limited in bytes"):
        reader.latestOffset(start, limits.ReadMaxRows(5))
    assert opened().getDefaultReadLimit() == limits.ReadAllAvailable()
    assert isinstance(reader, limits.SupportsTriggerAvailableNow)


def test_newer_sparks_can_freeze_the_end(opened: Open, store: StoreDouble) -> None:
    fill(store, 20)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    reader.prepareForTriggerAvailableNow()
    fill(store, 20)
    first = reader.latestOffset(reader.initialOffset())
    assert reader.reportLatestOffset() == {"stream_cut": cut_text({0: 10 * FRAME_BYTES, 1: 10 * FRAME_BYTES})}
    last = reader.latestOffset(first)
    assert last == reader.reportLatestOffset() == reader.latestOffset(last)


def test_a_given_end_is_not_moved_by_available_now(opened: Open, store: StoreDouble) -> None:
    fill(store, 10)
    end = cut_text(store.stream.tail())
    fill(store, 10)
    reader = opened(end_stream_cut=end)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(reader.initialOffset()) == {"stream_cut": end}


@pytest.mark.parametrize("wants_tokens", [False, True])
def test_a_batch_takes_three_requests_and_its_tasks_none(opened: Open, store: StoreDouble, wants_tokens: bool) -> None:
    store.token_life_s = 600.0 if wants_tokens else None
    for _ in range(3):
        store.stream.scale(list(store.stream.active), [(part / 64, (part + 1) / 64) for part in range(64)])
        for number in range(640):
            store.stream.append(number % 64 / 64, bytes(FRAME_BYTES - 8))
    store.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    reader = opened(max_partition_bytes=2 * FRAME_BYTES)
    start = reader.initialOffset()
    store.requests.clear()
    end = reader.latestOffset(start)
    partitions = reader.partitions(start, end)
    reader.reportLatestOffset()
    assert store.requests.total() <= 3, store.requests
    assert len(partitions) == 3 * 64 * 5, "a task for each two of the ten events of a segment"
    assert len({planned.part.segment_id for partition in partitions for planned in partition.ranges}) == 3 * 64  # type: ignore[attr-defined]
    assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 3 * 640
    assert store.requests["delegation-token"] == int(wants_tokens)
    kinds = set(store.requests) - {"next-cut", "range-plans", "stream-cut", "delegation-token"}
    assert kinds == {"object", "Hello", "ReadSegment"}, "chunks and endpoints are in the plan"


def test_a_batch_of_many_segments_ends_early(opened: Open, store: StoreDouble) -> None:
    for _ in range(6):
        fill(store, 20)
        store.stream.scale(list(store.stream.active), [(0.0, 0.5), (0.5, 1.0)])
    store.segments_per_cut = 2
    reader = opened()
    offset, read = reader.initialOffset(), 0
    for _ in range(6):
        end = reader.latestOffset(offset)
        read += planned_bytes(reader.partitions(offset, end))
        offset = end
    assert read == 120 * FRAME_BYTES
    again = opened()
    assert planned_bytes(again.partitions(reader.initialOffset(), offset)) == 120 * FRAME_BYTES


def test_a_batch_logs_its_lag(opened: Open, store: StoreDouble, caplog: pytest.LogCaptureFixture) -> None:
    fill(store, 100)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES)
    with caplog.at_level(logging.INFO, "headrace.spark"):
        reader.latestOffset(reader.initialOffset())
    assert f"event=spark_batch_planned streams='weather/stations' batch_bytes={10 * FRAME_BYTES}" in caplog.text
    assert f"left_bytes={90 * FRAME_BYTES}" in caplog.text


def test_the_tail_is_reported_with_few_requests(opened: Open, store: StoreDouble, clock: Clock) -> None:
    fill(store, 20)
    reader = opened(approx_bytes_per_trigger=10 * FRAME_BYTES, idle_poll_ms=500)
    reader.latestOffset(reader.initialOffset())
    store.requests.clear()
    tail = {"stream_cut": cut_text(store.stream.tail())}
    assert [reader.reportLatestOffset() for _ in range(10)] == [tail] * 10
    assert store.requests.total() == 1
    fill(store, 2)
    clock.now_s = 0.5
    assert reader.reportLatestOffset() == {"stream_cut": cut_text(store.stream.tail())}
