"""Bytes that were truncated before they were read: named exactly, or skipped and logged, in planning and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.client.ranges.range_bytes import Listing
from headrace.model.errors import NotFoundError, TruncatedError
from headrace.spark import task_reads
from headrace.spark.client_access import ClientStreamAccess
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.task_reads import read_partition

FRAME_BYTES = 20


@pytest.fixture
def filled(store: StoreDouble) -> StoreDouble:
    """50 events in each of two segments."""
    for number in range(100):
        store.stream.append(number % 2 / 2, b"%012d" % number)
    return store


class Query:
    def __init__(self, store: StoreDouble, **options: str) -> None:
        where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
        self.options: ReadOptions = read_options(where | {"patience_s": "1", "idle_poll_ms": "1"} | options)
        self.batches = MicroBatches(self.options, monotonic_s=iter(range(10**6)).__next__)

    def read(self, start: str, end: str) -> list[tuple[int, int]]:
        """The rows between two logged offsets, by segment and offset."""
        rows: list[tuple[int, int]] = []
        for partition in self.batches.partitions(start, end):
            for batch in read_partition(self.options, partition):
                rows += zip(batch.column("segment_id").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        return sorted(rows)


@pytest.fixture
def skipping(filled: StoreDouble) -> Iterator[Query]:
    query = Query(filled, on_truncation="skip")
    yield query
    query.batches.close()


@pytest.fixture
def failing(filled: StoreDouble) -> Iterator[Query]:
    query = Query(filled)
    yield query
    query.batches.close()


def rows(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(segment, offset) for segment, start, end in ranges for offset in range(start, end, FRAME_BYTES)]


def test_failing_names_what_is_lost_and_the_new_head(failing: Query, filled: StoreDouble) -> None:
    start = failing.batches.initial()
    head = {0: 3 * FRAME_BYTES, 1: 5 * FRAME_BYTES}
    filled.stream.truncate(head)
    with pytest.raises(TruncatedError) as raised:
        failing.batches.latest(start, None)
    for part in ("0: 60 from 0, 1: 100 from 0", cut_text(head), "on_truncation=skip"):
        assert part in raised.value.message


def test_skipping_continues_at_the_head_and_logs_it(
    skipping: Query, filled: StoreDouble, caplog: pytest.LogCaptureFixture
) -> None:
    start = skipping.batches.initial()
    filled.stream.truncate({0: 3 * FRAME_BYTES, 1: 5 * FRAME_BYTES})
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        end = skipping.batches.latest(start, None)
    assert skipping.read(start, end) == rows((0, 60, 1000), (1, 100, 1000))
    assert "event=spark_bytes_skipped" in caplog.text
    assert "lost_bytes=160" in caplog.text


def test_a_logged_batch_that_was_truncated_is_freed(skipping: Query, filled: StoreDouble) -> None:
    start = skipping.batches.initial()
    end = skipping.batches.latest(start, 40 * FRAME_BYTES)
    filled.stream.truncate({0: 30 * FRAME_BYTES, 1: 5 * FRAME_BYTES})
    again = Query(filled, on_truncation="skip")
    assert again.read(start, end) == rows((1, 100, 400))
    following = again.batches.latest(end, None)
    assert again.read(end, following) == rows((0, 600, 1000), (1, 400, 1000))
    again.batches.close()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_a_task_skips_what_was_truncated_after_planning(
    skipping: Query, filled: StoreDouble, monkeypatch: pytest.MonkeyPatch, small: bool, stored: bool
) -> None:
    monkeypatch.setattr(task_reads, "SMALL_RANGE_BYTES", 10**6 if small else 0)
    filled.stored = lambda segment: 0
    start = skipping.batches.initial()
    end = skipping.batches.latest(start, None)
    (partition,) = skipping.batches.partitions(start, end)
    filled.stream.truncate({0: 700, 1: 1000})
    if stored:
        filled.stored = lambda segment: len(segment.data)
    found = [
        (segment, offset)
        for batch in read_partition(skipping.options, partition)
        for segment, offset in zip(*(batch.column(name).to_pylist() for name in ("segment_id", "offset")), strict=True)
    ]
    assert sorted(found) == rows((0, 700, 1000))


def test_a_failing_task_says_how_to_go_on(failing: Query, filled: StoreDouble) -> None:
    filled.stored = lambda segment: 0
    start = failing.batches.initial()
    (partition,) = failing.batches.partitions(start, failing.batches.latest(start, None))
    filled.stream.truncate({0: 700, 1: 1000})
    with pytest.raises(TruncatedError, match=r"700 bytes of segment 0 from offset 0 on.*on_truncation=skip") as raised:
        list(read_partition(failing.options, partition))
    assert f"The head is now at {cut_text(filled.stream.head())}" in raised.value.message


@pytest.mark.parametrize("again", [False, True])
def test_skipping_plans_again_what_is_truncated_meanwhile(
    skipping: Query, filled: StoreDouble, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Retention comes between the request for the cuts and that for the pieces, also of a batch that is repeated."""
    start = skipping.batches.initial()
    end = skipping.batches.latest(start, None)
    query = Query(filled, on_truncation="skip") if again else skipping
    planned = ClientStreamAccess.planned

    def truncated_first(*arguments: Any) -> Any:
        monkeypatch.setattr(ClientStreamAccess, "planned", planned)
        filled.stream.truncate({0: 60, 1: 100})
        return planned(*arguments)

    monkeypatch.setattr(ClientStreamAccess, "planned", truncated_first)
    assert query.read(start, end) == rows((0, 60, 1000), (1, 100, 1000))
    query.batches.close()


@pytest.mark.parametrize("again", [False, True])
def test_failing_between_two_requests_names_what_is_lost(
    filled: StoreDouble, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    query = Query(filled)
    start = query.batches.initial()
    end = query.batches.latest(start, None)
    if again:
        query.batches.close()
        query = Query(filled)
    planned = ClientStreamAccess.planned

    def truncated_first(*arguments: Any) -> Any:
        filled.stream.truncate({0: 60, 1: 100})
        return planned(*arguments)

    monkeypatch.setattr(ClientStreamAccess, "planned", truncated_first)
    with pytest.raises(TruncatedError) as raised:
        query.batches.partitions(start, end)
    for part in ("0: 60 from 0, 1: 100 from 0", cut_text({0: 60, 1: 100}), "on_truncation=skip"):
        assert part in raised.value.message
    query.batches.close()


@pytest.mark.parametrize("on_truncation", ["fail", "skip"])
def test_an_end_that_was_truncated_is_nothing_to_do(
    filled: StoreDouble, caplog: pytest.LogCaptureFixture, on_truncation: str
) -> None:
    checkpoint = cut_text(filled.stream.tail())
    query = Query(filled, end_stream_cut=cut_text({0: 100, 1: 100}), on_truncation=on_truncation)
    filled.stream.truncate({0: 200, 1: 200})
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert [query.batches.latest(checkpoint, None) for _ in range(3)] == [checkpoint] * 3
    assert "spark_bytes_skipped" not in caplog.text
    assert filled.requests["next-cut"] == 2, "the end and the checkpoint are compared once"
    query.batches.close()


@pytest.mark.parametrize("on_truncation", ["fail", "skip"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_task_of_a_deleted_stream_says_so(filled: StoreDouble, on_truncation: str, stored: bool) -> None:
    query = Query(filled, on_truncation=on_truncation)
    start = query.batches.initial()
    (partition,) = query.batches.partitions(start, query.batches.latest(start, None))
    query.batches.close()
    del filled.streams[STREAM]
    without_links = tuple(replace(planned, listing=Listing((), 0) if not stored else None) for planned in partition)
    with pytest.raises(
        NotFoundError, match=r"stream weather/stations was deleted after the batch was planned"
    ) as raised:
        list(read_partition(query.options, without_links))
    assert "on_truncation" not in raised.value.message
