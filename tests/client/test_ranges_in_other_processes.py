"""Ranges that are listed here and read by other processes, from S3 and from the segment store."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, serving
from spark_stream_double import StreamDouble

from headrace.client import SegmentRange, connect
from headrace.client.ranges.range_bytes import HistorySource

EVENTS = 600


@pytest.fixture
def store() -> Iterator[StoreDouble]:
    """A stream that was scaled. The first half of each segment is in S3."""
    stream = StreamDouble([(0.0, 0.5), (0.5, 1.0)])
    for number in range(EVENTS):
        stream.append(number % 10 / 10, b"event %d" % number)
        if number == EVENTS // 2:
            stream.scale(list(stream.active), [(0.0, 0.3), (0.3, 1.0)])
    with serving(StoreDouble(stream, run_bytes=500)) as double:
        double.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
        yield double


def read(url: str, part: SegmentRange, history: HistorySource) -> list[bytes]:
    """Runs in another process."""
    with connect(url) as headrace, headrace.range_reader(part, read_history_from=history) as reader:
        return [event.event for event in reader]


def test_other_processes_read_the_ranges(store: StoreDouble) -> None:
    with connect(store.url) as headrace:
        ranges = headrace.segment_ranges(SCOPE, STREAM, bytes_max=1500)
    assert len(ranges) > 4
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(read, [store.url] * len(ranges), ranges, ["s3"] * len(ranges))
    assert sorted(event for events in found for event in events) == sorted(b"event %d" % n for n in range(EVENTS))
    assert store.requests["object"] > 0
    assert store.requests["ReadSegment"] > 0


@pytest.mark.parametrize("history", ["s3", "segment_store"])
def test_where_history_is_read_from(store: StoreDouble, history: HistorySource) -> None:
    with connect(store.url) as headrace:
        ranges = headrace.segment_ranges(SCOPE, STREAM)
    store.refuse("object", 503)
    store.refuse("object", 0)
    store.refuse("ReadSegment", 0)
    found = [event for part in ranges for event in read(store.url, part, history)]
    assert sorted(found) == sorted(b"event %d" % number for number in range(EVENTS))
    assert (store.requests["object"] > 0) == (store.requests["chunks"] > 0) == (history == "s3")
