"""Truncations of a stream at the positions of a reader, against a model that looks at the whole history."""

from __future__ import annotations

import pytest
from cut_histories import SAMPLES, History, Reader, grow, histories, read_on
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.epochs import overlapping
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_cuts import PlacedCut, Side, StreamCut, side_of
from headrace.model.truncation import (
    Truncation,
    bytes_cut_off,
    bytes_that_go,
    is_very_beginning,
    running_truncation,
    segments_left,
    segments_that_go,
    superimposed,
    very_beginning,
)


def _first_epoch(history: History, cut: PlacedCut) -> int:
    """The newest epoch in which no segment is after the cut."""
    return max(
        epoch.number
        for epoch in history.epochs
        if all(side_of(segment, cut) is not Side.AFTER for segment in epoch.segments)
    )


def _truncated(history: History, target: PlacedCut, before: Truncation | None) -> tuple[Truncation, list[int]]:
    """The new head, and the segments that are deleted for it; the bytes are counted with the epochs."""
    running = running_truncation(target, _first_epoch(history, target), before)
    assert not running.is_recorded
    assert not running.by_retention
    assert running.next_epoch == running.epochs.start, "the count begins with the first epoch"
    gone = [
        segment.segment_id for number in running.epochs for segment in segments_that_go(running, history.epochs[number])
    ]
    size = before.size_bytes if before else 0
    size += bytes_that_go(
        running, {identifier: history.lengths.get(identifier, 0) for identifier in gone}
    ) + bytes_cut_off(running)
    recorded = running.truncation
    return Truncation(recorded.head, recorded.first_epoch, size), gone


@given(histories(), st.data())
def test_each_segment_goes_once_and_each_byte_is_counted(history: History, data: st.DataObject):
    """The head may be in old segments and in new ones, so that an epoch has segments on both of its sides."""
    reader = Reader.at_head(history)
    truncation: Truncation | None = None
    removed: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):
        read_on(data.draw, reader)
        truncation, gone = _truncated(history, reader.cut(), truncation)
        removed += gone
        assert truncation.head == reader.cut()
        assert truncation.first_epoch == _first_epoch(history, reader.cut())
        assert truncation.size_bytes == history.size(reader.cut())
        for _ in range(data.draw(st.integers(0, 3))):
            grow(data.draw, history)
    everything = {segment.segment_id: segment for epoch in history.epochs for segment in epoch.segments}
    left = {segment.segment_id for segment in segments_left(everything.values(), truncation)}
    assert sorted(removed) == sorted(everything.keys() - left)
    assert left == {segment.segment_id for segment in everything.values() if not _is_before(segment, reader.cut())}


def _is_before(segment: StreamSegment, cut: PlacedCut) -> bool:
    return all(segment.epoch < at_head.epoch for at_head in overlapping(cut.segments, segment.key_range))


@given(histories(), st.data())
def test_readers_of_an_epoch_start_at_the_head_or_behind_it(history: History, data: st.DataObject):
    """At each point of the key space: the segment of the epoch, unless the head is in a newer one."""
    reader = Reader.at_head(history)
    read_on(data.draw, reader)
    head = reader.cut()
    truncation = Truncation(head, _first_epoch(history, head), 0)
    for epoch in history.epochs:
        found = superimposed(epoch.segments, truncation)
        assert list(found) == sorted(found, key=lambda shown_segment: shown_segment.key_range)
        assert found == {shown_segment: head.cut.offsets.get(shown_segment.segment_id) for shown_segment in found}
        for point in SAMPLES:
            shown = [
                shown_segment
                for shown_segment in found
                if shown_segment.key_range.low <= point < shown_segment.key_range.high
            ]
            (segment,) = overlapping(epoch.segments, KeyRange(point, point + 1 / 1024))
            (at_head,) = overlapping(head.segments, KeyRange(point, point + 1 / 1024))
            assert (at_head if segment.epoch < at_head.epoch else segment) in shown


@given(histories(), st.data())
def test_a_cut_is_moved_back_to_ends_that_are_known(history: History, data: st.DataObject):
    """As after a loss of bytes that a reader had read. Offsets within the segments stay."""
    reader = Reader.at_head(history)
    read_on(data.draw, reader)
    cut = reader.cut()
    lengths = {identifier: data.draw(st.integers(0, 60)) for identifier in cut.cut.offsets if data.draw(st.booleans())}
    moved = cut.within(lengths)
    assert (moved.cut.scope, moved.cut.stream, moved.segments) == (cut.cut.scope, cut.cut.stream, cut.segments)
    assert moved.cut.offsets == {
        identifier: lengths[identifier] if identifier in lengths and lengths[identifier] < offset else offset
        for identifier, offset in cut.cut.offsets.items()
    }


@pytest.mark.parametrize(
    ("offsets", "is_first"),
    [
        ({segment_id(0, 0): 0, segment_id(0, 1): 0}, True),
        ({segment_id(0, 0): 0, segment_id(0, 1): 1}, False),
        ({segment_id(0, 0): 1, segment_id(0, 1): 1}, False),
        ({segment_id(0, 0): 0, segment_id(1, 2): 0}, False),
        ({segment_id(1, 2): 0, segment_id(1, 3): 0}, False),
    ],
)
def test_bytes_are_before_a_cut_by_its_offsets_and_epochs(offsets: dict[int, int], is_first: bool):
    """In a later epoch, the segments that were replaced are before the cut."""
    assert is_very_beginning(StreamCut.of("s", "t", offsets)) is is_first


def test_stream_without_a_truncation_begins_at_its_first_bytes():
    history = History.begin(3)
    for index in range(3):
        history.append(index, 10)
    history.split(0)
    first = very_beginning("s", "t", history.epochs[0])
    assert first == StreamCut.of(
        "s", "t", dict.fromkeys((segment.segment_id for segment in history.epochs[0].segments), 0)
    )
    assert is_very_beginning(first)
    assert segments_left(history.active, None) == list(history.active)


def test_segments_before_the_old_head_do_not_go_again():
    """The head may be behind a replaced segment whose epoch is newer than that of another segment at the head."""
    history = History.begin(2)
    for index in range(2):
        history.append(index, 10)
    history.split(0)
    history.split(2)
    first, second = history.epochs[0].segments
    halves = history.active[2:]
    cut = history.cut({first: 4, **dict.fromkeys(halves, 0)})
    truncation, gone = _truncated(history, cut, None)
    assert (gone, truncation.first_epoch, truncation.size_bytes) == ([second.segment_id], 0, 14)
    again, gone = _truncated(history, history.tail(), truncation)
    assert (gone, again.size_bytes) == ([first.segment_id], 20)


@pytest.mark.parametrize("by_retention", [False, True])
def test_truncation_knows_who_requested_it(*, by_retention: bool):
    target = History.begin(1).tail()
    assert running_truncation(target, 0, None, by_retention=by_retention).by_retention is by_retention
