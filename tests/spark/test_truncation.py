"""Bytes that were truncated before they were read: named exactly, or skipped and logged, in planning and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.model.errors import TruncatedError
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
        self.options: ReadOptions = read_options(where | {"patience_s": "1"} | options)
        self.batches = MicroBatches(self.options)

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
    with pytest.raises(TruncatedError, match=r"1000 bytes of segment 0 from offset 0 on.*on_truncation=skip"):
        list(read_partition(failing.options, partition))


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


def test_failing_between_two_requests_says_how_to_go_on(failing: Query, filled: StoreDouble) -> None:
    start = failing.batches.initial()
    end = failing.batches.latest(start, None)
    filled.stream.truncate({0: 60, 1: 100})
    with pytest.raises(TruncatedError, match="on_truncation=skip"):
        failing.batches.partitions(start, end)
