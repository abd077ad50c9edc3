"""When a segment stream looks at S3. What it reads from there: `test_readers_in_other_zones.py`."""

from __future__ import annotations

from typing import cast

from headrace import wire
from headrace.client.backoff import Backoff
from headrace.client.reading.segment_stream import (
    STORE_BYTES_BETWEEN_LISTINGS,
    EventBatch,
    EventBatches,
    SegmentStream,
)
from headrace.client.segment_connections import SegmentConnections


def stream() -> SegmentStream[EventBatch]:
    connections = cast(SegmentConnections, None)  # not used without `run`
    return SegmentStream[EventBatch](
        connections,
        7,
        "shop/t/7",
        start=0,
        stop=None,
        window_bytes=1024,
        on_truncation="error",
        backoff=Backoff(1.0),
        assemble=EventBatches,
    )


def reply(*, at_tail: bool) -> wire.SegmentRead:
    return wire.SegmentRead("shop/t/7", 0, at_tail, False, b"", request_id=1)


def test_links_are_due_behind_enough_bytes_from_the_store() -> None:
    read = stream()
    read._before_links = 100
    assert not read._links_are_due(reply(at_tail=False), 99)
    assert read._links_are_due(reply(at_tail=False), 1)


def test_each_visit_of_the_tail_begins_the_count_again() -> None:
    """A reader that is at the tail now and then finds nothing in S3 that is worth a listing."""
    read = stream()
    read._before_links = 100
    for _ in range(3):
        assert not read._links_are_due(reply(at_tail=False), 60)
        assert not read._links_are_due(reply(at_tail=True), 60)
        assert read._before_links == STORE_BYTES_BETWEEN_LISTINGS
        read._before_links = 100


def test_without_links_none_are_due() -> None:
    assert not stream()._links_are_due(reply(at_tail=False), 1 << 40)
