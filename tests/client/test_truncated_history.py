"""Bytes that were truncated are not read any more, also while S3 still has the object with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from linked_objects import LinkedObjects
from real_cluster import RealCluster

from headrace.api.plans import RangeToPlan
from headrace.client import Headrace, ScalingPolicy, SegmentRange, StreamCut, TruncatedError
from headrace.client.ranges import range_reader

EVENT_BYTES = 100
EVENTS = 10
END = EVENTS * EVENT_BYTES
HEAD = 4 * EVENT_BYTES
WHOLE = SegmentRange("shop", "t", 0, 0.0, 1.0, 0, END)


def _truncate_stream(headrace: Headrace) -> None:
    headrace.admin.truncate_stream("shop", "t", StreamCut.of("shop", "t", {0: HEAD}))


def _truncate_entries(headrace: Headrace) -> None:
    with headrace.revisioned_stream("shop", "t") as entries:
        entries.truncate(HEAD)


def _truncate_bytes(headrace: Headrace) -> None:
    with headrace.byte_stream("shop", "t") as stream:
        stream.truncate_data_before(HEAD)


@pytest.fixture
def stored(headrace: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """The stream shop/t has one segment with ten events of 100 bytes, all of them in one object of S3."""
    monkeypatch.setattr(range_reader, "ObjectReads", LinkedObjects)
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "t") as writer:
        for number in range(EVENTS):
            writer.write(b"%092d" % number)
    real.stop_store()
    real.start_store()
    history = headrace.admin.chunks("shop", "t", 0, from_offset=0, to_offset=END)
    assert [(chunk.offset, chunk.length) for chunk in history.chunks] == [(0, END)]
    return headrace


def numbers(headrace: Headrace, part: SegmentRange) -> list[int]:
    with headrace.range_reader(part) as reader:
        return [int(event.event) for event in reader]


def part_from(start: int) -> SegmentRange:
    return SegmentRange("shop", "t", 0, 0.0, 1.0, start, END)


@pytest.mark.parametrize("truncate", [_truncate_stream, _truncate_entries, _truncate_bytes])
def test_truncated_bytes_have_no_links(stored: Headrace, truncate: Callable[[Headrace], None]) -> None:
    assert numbers(stored, WHOLE) == list(range(EVENTS))
    truncate(stored)
    for start in (0, EVENT_BYTES, HEAD - 1):
        with pytest.raises(TruncatedError) as refused:
            stored.admin.chunks("shop", "t", 0, from_offset=start, to_offset=END)
        assert refused.value.details["startOffset"] == HEAD
        with pytest.raises(TruncatedError):
            stored.admin.range_plans("shop", "t", [RangeToPlan(0, start, END)])
    left = stored.admin.chunks("shop", "t", 0, from_offset=HEAD, to_offset=END)
    assert [(chunk.offset, chunk.length) for chunk in left.chunks] == [(HEAD, END - HEAD)]
    (plan,) = stored.admin.range_plans("shop", "t", [RangeToPlan(0, HEAD, END)])
    assert [chunk.length for chunk in plan.pieces[0].chunks] == [END - HEAD]


@pytest.mark.parametrize("truncate", [_truncate_stream, _truncate_entries, _truncate_bytes])
def test_range_readers_refuse_truncated_bytes(stored: Headrace, truncate: Callable[[Headrace], None]) -> None:
    truncate(stored)
    for start in (0, EVENT_BYTES):
        with pytest.raises(TruncatedError):
            numbers(stored, part_from(start))
    assert numbers(stored, part_from(HEAD)) == list(range(4, EVENTS))


def test_ranges_of_deleted_segments_are_refused(stored: Headrace) -> None:
    (new, *_) = stored.admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 1.0)]).segments
    stored.admin.truncate_stream("shop", "t", StreamCut.of("shop", "t", {new.segment_id: 0}))
    with pytest.raises(TruncatedError):
        numbers(stored, WHOLE)


def _scale_and_truncate(headrace: Headrace) -> StreamCut:
    """Replaces the segment, truncates the stream at the new one, writes one event; returns where the old one ends."""
    end = headrace.admin.stream_cut("shop", "t")
    assert end.offsets == {0: END}
    (new,) = headrace.admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 1.0)]).segments
    headrace.admin.truncate_stream("shop", "t", StreamCut.of("shop", "t", {new.segment_id: 0}))
    with headrace.writer("shop/t") as writer:
        writer.write(b"after")
    return end


def test_a_reader_goes_on_at_the_end_of_what_is_truncated(stored: Headrace) -> None:
    end = _scale_and_truncate(stored)
    for until in (None, "latest"):
        with stored.reader("shop/t", start=end, end=until) as reader:
            assert next(iter(reader)).event == b"after"
    for start in (0, END - EVENT_BYTES):
        with (
            pytest.raises(TruncatedError),
            stored.reader("shop/t", start=StreamCut.of("shop", "t", {0: start})) as reader,
        ):
            next(iter(reader))


def test_a_group_goes_on_at_the_end_of_what_is_truncated(stored: Headrace) -> None:
    stored.admin.reader_groups.create("shop/billing", streams=["t"])
    with stored.reader_group("shop/billing") as group:
        with group.reader("first") as reader:
            assert [int(read.event) for _, read in zip(range(EVENTS), reader, strict=False)] == list(range(EVENTS))
            assert reader.read_batch(timeout_s=0.2) is None
        _scale_and_truncate(stored)
        with group.reader("second") as reader:
            assert next(iter(reader)).event == b"after"
        assert group.lag().bytes_unread <= len(b"after") + 8


def test_a_reader_of_a_group_says_how_it_goes_on(stored: Headrace) -> None:
    stored.admin.reader_groups.create("shop/billing", streams=["t"])
    with stored.reader_group("shop/billing") as group:
        _scale_and_truncate(stored)
        with group.reader("first") as reader, pytest.raises(TruncatedError) as refused:
            next(iter(reader))
        assert "headrace group reset shop/billing --to earliest" in refused.value.message
        group.reset("earliest")
        with group.reader("second") as reader:
            assert next(iter(reader)).event == b"after"
