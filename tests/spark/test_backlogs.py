"""The lag that a batch logs, also of a query that is epochs behind."""

from __future__ import annotations

import logging
from typing import cast

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.client.segment_ranges import SegmentRange
from headrace.model.errors import UnavailableError
from headrace.spark.backlogs import WALKS_EVERY_S, Backlogs
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.stream_access import Batch, Positions, StreamAccess

FRAME_BYTES = 20


class Stream:
    """A stream of one segment, whose controller does not tell what a batch leaves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tail = 1000
        self.walks: list[Positions | None] = []
        self.problem: Exception | None = None
        self.backlogs = Backlogs(monotonic_s=lambda: self.now_s)

    def distance_bytes(self, start: Positions, end: Positions | None) -> int:
        self.walks.append(end)
        if self.problem is not None:
            raise self.problem
        return (self.tail if end is None else end[0]) - start[0]

    def behind(self, start: int, stop: int, *, left: int | None = None, end: Positions | None = None) -> int | None:
        part = SegmentRange("s", "t", 0, 0.0, 1.0, start, stop)
        batch = Batch((part,), {0: start}, {0: stop}, reached_end=False, left_bytes=left)
        return self.backlogs.behind("t", cast(StreamAccess, self), batch, end)


def test_what_the_controller_tells_needs_no_walk() -> None:
    stream = Stream()
    assert (stream.behind(0, 10, left=7), stream.behind(10, 20, left=0), stream.walks) == (7, 0, [])


def test_one_walk_serves_many_batches() -> None:
    stream = Stream()
    assert stream.behind(0, 100) == 900
    stream.tail += 50
    assert (stream.behind(100, 300), stream.behind(300, 400)) == (700, 600)
    assert stream.behind(300, 400) == 600, "a batch that is planned again is not read twice"
    assert stream.walks == [None]
    stream.now_s += WALKS_EVERY_S
    assert (stream.behind(400, 500), len(stream.walks)) == (550, 2)
    assert (stream.behind(500, 600, end={0: 800}), stream.walks) == (450, [None, None])


def test_no_lag_is_told_that_is_known_to_be_wrong() -> None:
    stream = Stream()
    assert stream.behind(0, 900) == 100
    stream.tail += 5000
    assert (stream.behind(900, 1000), stream.behind(1000, 1100)) == (None, None)
    stream.now_s += WALKS_EVERY_S
    assert stream.behind(1100, 1200, end={0: 2000}) == 800


def test_the_reader_that_catches_up_and_falls_back_is_walked_again() -> None:
    stream = Stream()
    assert (stream.behind(0, 100), stream.behind(100, 200, left=5), stream.behind(200, 300)) == (900, 5, 700)
    assert len(stream.walks) == 2


def test_a_walk_that_fails_is_not_repeated_at_once() -> None:
    stream = Stream()
    stream.problem = UnavailableError("away")
    assert (stream.behind(0, 100), stream.behind(100, 200), len(stream.walks)) == (None, None, 1)
    stream.problem, stream.now_s = None, WALKS_EVERY_S
    assert stream.behind(200, 300) == 700


def test_batches_far_behind_log_their_lag(store: StoreDouble, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8))
    store.tells_what_is_left = False
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    batches = MicroBatches(read_options(where))
    with caplog.at_level(logging.INFO, "headrace.spark"):
        first = batches.latest(None, 10 * FRAME_BYTES)
        batches.latest(first, 30 * FRAME_BYTES)
    batches.close()
    assert f"left_bytes={90 * FRAME_BYTES}" in caplog.text
    assert f"left_bytes={60 * FRAME_BYTES}" in caplog.text
    assert store.requests["distance"] == 1
