"""A position at which nothing is written yet is refused where it is given: events up to it would be skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from real_cluster import WorkingQueue

from headrace.client import (
    CorruptError,
    GroupStream,
    Headrace,
    InvalidRequestError,
    ReaderGroupConfiguration,
    RetentionMode,
    ScalingPolicy,
    StreamCut,
)

EVENT = b"x" * 92
EVENT_BYTES = 100
EVENTS = 5
END = EVENTS * EVENT_BYTES


@pytest.fixture
def written(headrace: Headrace) -> Headrace:
    """The stream shop/t has one segment with five events of 100 bytes."""
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "t") as writer:
        for _ in range(EVENTS):
            writer.write(EVENT)
    return headrace


def cut(offset: int) -> StreamCut:
    return StreamCut.of("shop", "t", {0: offset})


def _read(headrace: Headrace, start: StreamCut, end: StreamCut | None = None) -> None:
    with headrace.reader("shop", "t", start, end):
        pass


def _create_group(headrace: Headrace, start: StreamCut, end: StreamCut | None = None) -> None:
    configuration = ReaderGroupConfiguration((GroupStream("shop", "t", start, end),))
    headrace.admin.reader_groups.create("shop", "g", configuration, wait=False)


def _update_group(headrace: Headrace, start: StreamCut) -> None:
    known = headrace.admin.reader_groups.create("shop", "g", ReaderGroupConfiguration((GroupStream("shop", "t"),)))
    configuration = ReaderGroupConfiguration((GroupStream("shop", "t", start),))
    headrace.admin.reader_groups.update(known, configuration, wait=False)


def _reset_group(headrace: Headrace, to: StreamCut) -> None:
    headrace.admin.reader_groups.create("shop", "g", ReaderGroupConfiguration((GroupStream("shop", "t"),)))
    with headrace.reader_group("shop", "g") as group:
        group.reset([to])


def _register(headrace: Headrace, start: StreamCut) -> None:
    headrace.admin.subscribers.register("shop", "t", "s", start=start)


def _publish(headrace: Headrace, to: StreamCut) -> None:
    headrace.admin.subscribers.register("shop", "t", "s")
    headrace.admin.subscribers.publish("shop", "t", "s", to)


def _publish_as_group(headrace: Headrace, to: StreamCut) -> None:
    configuration = ReaderGroupConfiguration((GroupStream("shop", "t"),), retention=RetentionMode.MANUAL)
    headrace.admin.reader_groups.create("shop", "g", configuration)
    with headrace.reader_group("shop", "g") as group:
        group.publish([to])


TAKERS: dict[str, Callable[[Headrace, StreamCut], Any]] = {
    "a reader": _read,
    "a reader up to a later cut": lambda headrace, start: _read(headrace, start, cut(END + 300)),
    "the end of a reader": lambda headrace, end: _read(headrace, cut(0), end),
    "ranges": lambda headrace, start: headrace.segment_ranges("shop", "t", start),
    "the end of ranges": lambda headrace, end: headrace.segment_ranges("shop", "t", cut(0), end),
    "the next cut": lambda headrace, start: headrace.admin.next_cut("shop", "t", start),
    "a distance": lambda headrace, start: headrace.admin.stream_cut_distance("shop", "t", start),
    "a truncation": lambda headrace, to: headrace.admin.truncate_stream("shop", "t", to),
    "a check": lambda headrace, at: headrace.admin.check_stream_cut("shop", "t", at),
    "a group": _create_group,
    "the end of a group": lambda headrace, end: _create_group(headrace, cut(0), end),
    "the update of a group": _update_group,
    "the reset of a group": _reset_group,
    "a subscriber": _register,
    "a published position": _publish,
    "a published position of a group": _publish_as_group,
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("offset", [END + EVENT_BYTES, END + 1])
def test_a_position_beyond_the_tail_is_refused(
    written: Headrace, request_queue: WorkingQueue, taker: str, offset: int
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        TAKERS[taker](written, cut(offset))
    assert refused.value.specific_code in ("invalid_stream_cut", "stream_cut_not_valid")


@pytest.mark.parametrize("taker", [taker for taker in TAKERS if "later" not in taker])
def test_the_tail_itself_is_accepted(written: Headrace, request_queue: WorkingQueue, taker: str) -> None:
    TAKERS[taker](written, cut(END))


@pytest.mark.parametrize("taker", ["a reader", "the end of a reader", "a group", "the end of a group"])
def test_a_cut_inside_the_first_event_is_refused(written: Headrace, request_queue: WorkingQueue, taker: str) -> None:
    with pytest.raises(InvalidRequestError, match="inside the first event"):
        TAKERS[taker](written, cut(3))


@pytest.mark.parametrize("offset", [EVENT_BYTES + 1, END - EVENT_BYTES + 50, END - 20, END - 5, END - 1])
def test_the_first_read_inside_an_event_says_so(written: Headrace, offset: int) -> None:
    with written.reader("shop", "t", cut(offset)) as reader, pytest.raises(CorruptError, match="between two"):
        reader.read_batch()


def test_a_refused_publication_moves_nothing(written: Headrace) -> None:
    with pytest.raises(InvalidRequestError):
        _publish(written, cut(END + 8))
    assert written.admin.subscribers.get("shop", "t", "s").offsets == {0: 0}
