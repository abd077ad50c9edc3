"""The lag that a batch logs, also of a query that is epochs behind."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.model.errors import UnavailableError
from headrace.spark.backlogs import WALKS_AT_ONCE_MAX, WALKS_EVERY_S, Backlogs
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.stream_access import Batch, Positions, StreamAccess

FRAME_BYTES = 20


class Stream:
    """One segment. Its controller does not tell what a batch leaves. Walks are made when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tail = 1000
        self.walks: list[Positions | None] = []
        self.problem: Exception | None = None
        self._waiting: list[Callable[[], None]] = []
        self.backlogs = Backlogs(monotonic_s=lambda: self.now_s, submit=self._waiting.append)

    def distance_bytes(self, start: Positions, end: Positions | None) -> int:
        self.walks.append(end)
        if self.problem is not None:
            raise self.problem
        return (self.tail if end is None else end[0]) - start[0]

    def walk(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def behind(self, start: int, stop: int, *, left: int | None = None, end: Positions | None = None) -> int | None:
        part = SegmentRange("s", "t", 0, 0.0, 1.0, start, stop)
        batch = Batch((part,), {0: start}, {0: stop}, reached_end=False, left_bytes=left)
        return self.backlogs.behind("t", cast(StreamAccess, self), batch, end)


def walked(start: int, stop: int) -> Stream:
    """After the first batch, and a walk from its end."""
    stream = Stream()
    assert stream.behind(start, stop) is None, "no batch waits for the walk"
    stream.walk()
    return stream


def test_what_the_controller_tells_needs_no_walk() -> None:
    stream = Stream()
    assert (stream.behind(0, 10, left=7), stream.behind(10, 20, left=0)) == (7, 0)
    stream.walk()
    assert stream.walks == []


def test_one_walk_serves_many_batches() -> None:
    stream = walked(0, 100)
    stream.tail += 50
    assert (stream.behind(100, 300), stream.behind(300, 400)) == (700, 600)
    assert stream.behind(300, 400) == 600, "a batch that is planned again is not read twice"
    stream.now_s += WALKS_EVERY_S
    assert stream.behind(400, 500) == 500, "the next walk is not done"
    stream.walk()
    assert (stream.behind(500, 600), stream.walks) == (450, [None, None])


def test_what_is_read_during_a_walk_is_subtracted() -> None:
    stream = Stream()
    assert (stream.behind(0, 100, end={0: 800}), stream.behind(100, 300, end={0: 800})) == (None, None)
    stream.walk()
    assert (stream.behind(300, 400, end={0: 800}), stream.walks) == (400, [{0: 800}])


@pytest.mark.parametrize(("start", "stop"), [(150, 200), (50, 300), (0, 120)])
def test_other_bytes_than_the_next_ones_make_it_unknown(start: int, stop: int) -> None:
    """They were truncated and skipped, the batch is planned again with another end, or the stream is another one."""
    stream = walked(0, 100)
    assert stream.behind(start, stop) is None
    stream.now_s += WALKS_EVERY_S
    stream.behind(stop, stop + 10)
    stream.walk()
    assert stream.behind(stop + 10, stop + 20) == 1000 - stop - 20


def test_no_lag_is_told_that_is_known_to_be_wrong() -> None:
    stream = walked(0, 800)
    stream.tail += 5000
    assert (stream.behind(800, 900), stream.behind(900, 1000), stream.behind(1000, 1100)) == (100, None, None)


def test_a_reader_near_the_tail_is_not_walked_more_often() -> None:
    stream = walked(0, 100)
    assert (stream.behind(100, 200, left=5), stream.behind(200, 300), stream.behind(300, 400)) == (5, None, None)
    stream.walk()
    assert len(stream.walks) == 1


def test_a_walk_that_fails_is_repeated_later() -> None:
    stream = Stream()
    stream.problem = UnavailableError("away")
    assert stream.behind(0, 100) is None
    stream.walk()
    assert (stream.behind(100, 200), stream.behind(200, 300)) == (None, None)
    stream.walk()
    assert len(stream.walks) == 1
    stream.problem, stream.now_s = None, WALKS_EVERY_S
    stream.behind(300, 400)
    stream.walk()
    assert stream.behind(400, 500) == 500


def test_a_stream_has_no_second_walk_while_one_hangs() -> None:
    stream = Stream()
    assert stream.behind(0, 100) is None
    for batch in range(2, 20, 2):
        stream.now_s += WALKS_EVERY_S
        assert stream.behind(batch * 100, batch * 100 + 100) is None, "bytes were skipped"
    assert len(stream._waiting) == 1
    stream.walk()
    assert stream.behind(1900, 2000) is None, "the walk began before them"
    stream.tail += 5000
    stream.walk()
    assert stream.behind(2000, 2100) == 6000 - 2100


def test_a_walk_that_hangs_holds_up_no_other_stream() -> None:
    answered, walks = threading.Event(), Counter[str]()

    class Access:
        """A stream whose controller answers at once, or not before the end of the test."""

        def __init__(self, name: str) -> None:
            self.name = name

        def distance_bytes(self, start: Positions, _end: Positions | None) -> int:
            walks[self.name] += 1
            if self.name.startswith("hangs"):
                answered.wait(60)
            return 900

    def behind(name: str) -> int | None:
        part = SegmentRange("s", name, 0, 0.0, 1.0, 0, 100)
        batch = Batch((part,), {0: 0}, {0: 100}, reached_end=False, left_bytes=None)
        return backlogs.behind(name, cast(StreamAccess, Access(name)), batch, None)

    def found(name: str) -> bool:
        for _ in range(60_000):
            if behind(name) == 900:
                return True
            time.sleep(0.001)
        return False

    backlogs = Backlogs()
    try:
        for name in ("hangs", "answers"):
            assert behind(name) is None
        assert found("answers")
        many = [f"hangs too {number}" for number in range(2 * WALKS_AT_ONCE_MAX)]
        for name in many:
            assert behind(name) is None
        while sum(walks.values()) - walks["answers"] < WALKS_AT_ONCE_MAX:
            time.sleep(0.001)
        time.sleep(0.05)
        assert sum(walks.values()) - walks["answers"] == WALKS_AT_ONCE_MAX
    finally:
        answered.set()
    assert all(found(name) for name in ["hangs", *many])
    backlogs.close()


def test_streams_that_are_gone_are_forgotten() -> None:
    stream = walked(0, 100)
    stream.backlogs.keep(["other"])
    stream.now_s += 1
    assert stream.behind(100, 200) is None
    stream.walk()
    assert len(stream.walks) == 2


def test_batches_far_behind_log_their_lag(store: StoreDouble, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8))
    store.tells_what_is_left = False
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    batches = MicroBatches(read_options(where))
    offset = None
    with caplog.at_level(logging.INFO, "headrace.spark"):
        for planned in range(1, 10):
            offset = batches.latest(offset, 10 * FRAME_BYTES)
            walk = batches._backlogs._backlogs[STREAM].walk
            while planned == 3 and walk is not None and not walk.is_done:
                time.sleep(0.001)
        batches.close()
    assert f"left_bytes={10 * FRAME_BYTES}" in caplog.text
    assert store.requests["distance"] == 1


def test_a_tail_that_is_away_holds_no_batch_up(store: StoreDouble) -> None:
    """The walk needs the stores of the tail; what is read is in S3."""
    store.stream.append(0.1, bytes(100 * FRAME_BYTES))
    store.stream.append(0.1, bytes(100 * FRAME_BYTES))
    store.tells_what_is_left = False
    store.refuse("distance", 503, times=1000)
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    batches = MicroBatches(read_options(where | {"patience_s": "3600"}))
    offset = batches.latest(None, FRAME_BYTES)
    assert batches.latest(offset, FRAME_BYTES) != offset
    batches.close()
