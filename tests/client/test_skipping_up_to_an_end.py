"""A reader that skips what was truncated opens also with an end, and with a start at the ends of segments."""

from __future__ import annotations

import pytest

from headrace.client import (
    Headrace,
    InvalidRequestError,
    ReaderOptions,
    ReadOrder,
    ScalingPolicy,
    StreamCut,
    TruncatedError,
)

EVENT_BYTES = 100
EVENTS = 10
ORDERS = pytest.mark.parametrize("order", list(ReadOrder))


def at(event: int, segment: int = 0) -> StreamCut:
    """The cut before the event of that number in the segment."""
    return StreamCut.of("shop", "t", {segment: event * EVENT_BYTES})


@pytest.fixture
def written(headrace: Headrace) -> Headrace:
    """The stream shop/t has one segment with ten events of 100 bytes."""
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
    _write(headrace, 0)
    return headrace


def _write(headrace: Headrace, first: int) -> None:
    with headrace.writer("shop", "t") as writer:
        for number in range(first, first + EVENTS):
            writer.write(b"%092d" % number)


def _scale(headrace: Headrace) -> int:
    (segment,) = headrace.admin.segments("shop", "t")
    (new,) = headrace.admin.scale_stream("shop", "t", seal=[segment.segment_id], ranges=[(0.0, 1.0)]).segments
    return new.segment_id


def read(
    headrace: Headrace, start: StreamCut, end: StreamCut | None, order: ReadOrder = ReadOrder.ARRIVAL
) -> list[int]:
    """All events up to the end; without one, as many as come at once."""
    options = ReaderOptions(on_truncation="skip", order=order)
    numbers: list[int] = []
    with headrace.reader("shop", "t", start, end, options=options) as reader:
        while not reader.ended and (batch := reader.read_batch(None if end else 5)) is not None:
            numbers += map(int, batch.events)
            if end is None:
                return numbers
        assert reader.ended
    return numbers


@ORDERS
@pytest.mark.parametrize(("head", "end", "expected"), [(4, 8, range(4, 8)), (4, 4, []), (6, 3, []), (9, 10, [9])])
def test_truncated_events_before_an_end_are_skipped(
    written: Headrace, order: ReadOrder, head: int, end: int, expected: list[int]
) -> None:
    written.admin.truncate_stream("shop", "t", at(head))
    assert read(written, at(0), at(end), order) == list(expected)
    with pytest.raises(TruncatedError):
        written.reader("shop", "t", at(0), at(end))


@ORDERS
@pytest.mark.parametrize("head", [0, 3])
def test_truncated_segments_before_an_end_are_skipped(written: Headrace, order: ReadOrder, head: int) -> None:
    """Segments that the start names are deleted, and the end is in a later one."""
    second = _scale(written)
    _write(written, 10)
    third = _scale(written)
    _write(written, 20)
    written.admin.truncate_stream("shop", "t", at(head, second))
    assert read(written, at(2), at(5, third), order) == list(range(10 + head, 25))
    assert read(written, at(2), at(7), order) == []
    assert read(written, at(2), at(8, second), order) == list(range(10 + head, 18))


def test_a_start_at_the_end_of_a_deleted_segment(written: Headrace) -> None:
    second = _scale(written)
    _write(written, 10)
    written.admin.truncate_stream("shop", "t", at(3, second))
    ended = StreamCut.of("shop", "t", {0: -1})
    assert read(written, ended, at(6, second)) == [13, 14, 15]
    assert read(written, ended, None)[0] == 13
    with pytest.raises(TruncatedError):
        written.reader("shop", "t", ended)


def test_an_end_beyond_the_tail_is_refused_also_then(written: Headrace) -> None:
    written.admin.truncate_stream("shop", "t", at(4))
    for start, end in ((at(0), at(EVENTS + 1)), (at(3), at(2)), (at(8), at(7))):
        with pytest.raises(InvalidRequestError):
            read(written, start, end)
