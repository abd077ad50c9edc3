"""The order of cuts and the side of a segment, against a model that looks at the key space slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cut_histories import History, Reader, histories, read_on
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import StreamSegment, segment_id
from headrace.model.stream_cuts import (
    END_OF_SEGMENT,
    CutOrder,
    PlacedCut,
    Side,
    StreamCut,
    compare_cuts,
    later_cut,
    segments_read_to_end,
    side_of,
)
from headrace.model.truncation import is_very_beginning

SIZE = 3
"""Bytes of every segment."""


def _chains(epochs: list[Epoch], slots: int) -> list[list[StreamSegment]]:
    """For each slot of the key space, the segments that owned it, in order."""
    segments = sorted(
        {segment for epoch in epochs for segment in epoch.segments}, key=lambda segment: segment.segment_id
    )
    return [[segment for segment in segments if slot in _slots(segment, slots)] for slot in range(slots)]


def _slots(segment: StreamSegment, slots: int) -> range:
    return range(round(segment.key_range.low * slots), round(segment.key_range.high * slots))


def _position(data: st.DataObject, epochs: list[Epoch]) -> PlacedCut:
    """The segments of an epoch, at any offsets: a valid cut."""
    epoch = data.draw(st.sampled_from(epochs))
    offsets = {segment.segment_id: data.draw(st.integers(0, SIZE)) for segment in epoch.segments}
    return PlacedCut(StreamCut.of("s", "t", offsets), epoch.segments)


def _by_slot(cut: PlacedCut, chains: list[list[StreamSegment]], slots: int) -> list[tuple[int, int]]:
    """For each slot, how many segments came before, and the offset within the present one."""
    found = []
    for slot, chain in enumerate(chains):
        (segment,) = (owner for owner in cut.segments if slot in _slots(owner, slots))
        found.append((chain.index(segment), cut.cut.offsets[segment.segment_id]))
    return found


@given(data=st.data())
@settings(max_examples=150)
def test_the_order_of_cuts_is_that_of_every_slot(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    first, second = _position(data, epochs), _position(data, epochs)
    pairs = list(zip(_by_slot(first, chains, slot_count), _by_slot(second, chains, slot_count), strict=True))
    before, after = any(left < right for left, right in pairs), any(left > right for left, right in pairs)
    expected = CutOrder.EQUAL_OR_AFTER if not before else CutOrder.OVERLAPS if after else CutOrder.BEFORE
    assert compare_cuts(first, second) is expected
    if expected is CutOrder.BEFORE:
        assert compare_cuts(second, first) is CutOrder.EQUAL_OR_AFTER


@given(data=st.data())
@settings(max_examples=150)
def test_a_later_cut_is_the_maximum_in_every_slot(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    first, second = _position(data, epochs), _position(data, epochs)
    pairs = zip(_by_slot(first, chains, slot_count), _by_slot(second, chains, slot_count), strict=True)
    later = later_cut(first, second)
    assert _by_slot(later, chains, slot_count) == [max(pair) for pair in pairs]
    assert (later.cut.scope, later.cut.stream) == ("s", "t")


@given(data=st.data())
@settings(max_examples=150)
def test_the_side_of_a_segment_is_that_of_its_slots(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    cut = _position(data, epochs)
    reached = [index for index, _ in _by_slot(cut, chains, slot_count)]
    for segment in {segment for epoch in epochs for segment in epoch.segments}:
        slot = _slots(segment, slot_count)[0]
        gap = chains[slot].index(segment) - reached[slot]
        assert side_of(segment, cut) is (Side.IN if gap == 0 else Side.BEFORE if gap < 0 else Side.AFTER)
        assert cut.cut.side_by_epoch(segment.segment_id) in (None, side_of(segment, cut))


def test_epochs_tell_the_side_of_older_and_newer_segments():
    cut = StreamCut.of("s", "t", {segment_id(2, 5): 0, segment_id(4, 9): 7})
    sides = [
        cut.side_by_epoch(segment_id(epoch, number)) for epoch, number in ((1, 3), (2, 5), (2, 6), (3, 7), (5, 11))
    ]
    assert sides == [Side.BEFORE, Side.IN, None, None, Side.AFTER]


def test_a_cut_is_placed_on_its_own_segments_only():
    first = Epoch.first(2, 0, 0)
    with pytest.raises(InvalidRequestError, match="not those of its positions"):
        PlacedCut(StreamCut.of("s", "t", {0: 1}), first.segments)
    with pytest.raises(InvalidRequestError, match="do not cover"):
        PlacedCut(StreamCut.of("s", "t", {0: 1}), first.segments[:1])


def test_the_very_beginning_is_told_from_everything_else():
    assert is_very_beginning(StreamCut.of("s", "t", {4: 0, 5: 0}))
    assert not is_very_beginning(StreamCut.of("s", "t", {4: 0, 5: 1}))
    assert not is_very_beginning(StreamCut.of("s", "t", {4: 0, 1 << 32 | 6: 0}))


def _before(history: History, segment: StreamSegment) -> Sequence[StreamSegment]:
    return history.epochs[segment.epoch].predecessors_of(segment)


def _resolved(history: History, offsets: dict[int, int]) -> dict[int, int]:
    everything = {segment.segment_id: segment for epoch in history.epochs for segment in epoch.segments}
    named = [everything[identifier] for identifier in offsets]
    ended = segments_read_to_end(offsets, named, lambda segment: _before(history, segment))
    reached = {identifier: offset for identifier, offset in offsets.items() if offset != END_OF_SEGMENT}
    return reached | {segment.segment_id: history.lengths.get(segment.segment_id, 0) for segment in ended}


@given(histories(), st.data())
def test_any_sealed_end_may_be_written_as_minus_one(history: History, data: st.DataObject):
    reader = Reader.at_head(history)
    read_on(data.draw, reader)
    cut = reader.cut().cut.offsets
    ends = [
        identifier
        for identifier, offset in cut.items()
        if identifier not in history.epochs[-1].by_id and offset == history.lengths.get(identifier, 0)
    ]
    written = {identifier for identifier in ends if data.draw(st.booleans())}
    assert _resolved(history, cut | dict.fromkeys(written, END_OF_SEGMENT)) == cut


@given(histories(), st.data())
def test_segments_not_reached_change_nothing(history: History, data: st.DataObject):
    """A reader may name each segment that follows one of its cut and that it cannot read yet."""
    reader = Reader.at_head(history)
    read_on(data.draw, reader)
    cut = reader.cut().cut.offsets
    later = {
        segment.segment_id: END_OF_SEGMENT
        for epoch in history.epochs
        for segment in epoch.created
        if epoch.replaced and any(before.segment_id in cut for before in _before(history, segment))
    }
    some = {identifier: later[identifier] for identifier in later if data.draw(st.booleans())}
    assert _resolved(history, cut | some) == cut


def _merged() -> tuple[History, StreamSegment, StreamSegment, StreamSegment]:
    history = History.begin(2)
    low, high = history.active
    history.append(0, 3)
    history.append(1, 5)
    history.merge(0)
    return history, low, high, history.active[0]


def test_only_finished_predecessors_of_a_merge_are_reached():
    history, low, high, merged = _merged()
    reading_high = {high.segment_id: 1, merged.segment_id: END_OF_SEGMENT}
    assert _resolved(history, reading_high) == {high.segment_id: 1, low.segment_id: 3}
    reading_both = {low.segment_id: 2, high.segment_id: 1, merged.segment_id: END_OF_SEGMENT}
    assert _resolved(history, reading_both) == {low.segment_id: 2, high.segment_id: 1}
    ended = {low.segment_id: END_OF_SEGMENT, high.segment_id: 1}
    assert _resolved(history, ended) == {low.segment_id: 3, high.segment_id: 1}


def test_a_predecessor_that_is_not_reached_itself_is_not_read():
    """0 splits into 1 and 2, which merge into 3; the cut is in 0 still, or 1 is done and 2 is not."""
    history = History.begin(1)
    (root,) = history.active
    history.split(0)
    low, high = history.active
    history.append(0, 4)
    history.merge(0)
    (last,) = history.active
    assert _resolved(history, {root.segment_id: 0, last.segment_id: END_OF_SEGMENT}) == {root.segment_id: 0}
    reading_high = {high.segment_id: 0, last.segment_id: END_OF_SEGMENT}
    assert _resolved(history, reading_high) == {high.segment_id: 0, low.segment_id: 4}


def test_ends_are_told_next_to_older_segments():
    """The old segments 0 and 1 own other parts of the key space than those that were read to their ends."""
    history = History.begin(3)
    first, second, _ = history.active
    history.split(2)
    _, _, low, high = history.active
    history.append(2, 3)
    history.append(3, 5)
    history.merge(2)
    cut = {first.segment_id: 1, second.segment_id: 0, low.segment_id: END_OF_SEGMENT, high.segment_id: END_OF_SEGMENT}
    assert _resolved(history, cut) == cut | {low.segment_id: 3, high.segment_id: 5}


def test_several_segments_may_wait_each_for_its_own_predecessor():
    """0 and 1 merge, 2 and 3 too. The readers have finished 0 and 2, and wait for 1 and 3."""
    history = History.begin(4)
    segments = [segment.segment_id for segment in history.active]
    for index in range(4):
        history.append(index, 10 + index)
    history.merge(0)
    history.merge(1)
    waiting = [segment.segment_id for segment in history.active]
    assert len(waiting) == 2
    cut = {segments[1]: 5, segments[3]: 6} | dict.fromkeys(waiting, END_OF_SEGMENT)
    assert _resolved(history, cut) == {segments[0]: 10, segments[1]: 5, segments[2]: 12, segments[3]: 6}


def test_older_segments_elsewhere_do_not_hide_an_end():
    history = History.begin(3)
    history.split(1)
    first, low, high, last = history.active
    named = [last, high, low, first]
    offsets = {first.segment_id: 4, low.segment_id: END_OF_SEGMENT, high.segment_id: END_OF_SEGMENT, last.segment_id: 5}
    assert segments_read_to_end(offsets, named, history.epochs[1].predecessors_of) == [low, high]


def test_a_cut_may_hold_ends_but_no_other_negative_offset():
    assert StreamCut.of("s", "t", {0: END_OF_SEGMENT, 1: 5}).offsets == {0: END_OF_SEGMENT, 1: 5}
    with pytest.raises(InvalidRequestError, match="below -1"):
        StreamCut.of("s", "t", {0: -2, 1: 5})


@pytest.mark.parametrize(
    "positions",
    [None, (5,), ((1,),), ((1, 2, 3),), ((),), ((1, "2"),), (("1", 2),), ("12",), ((1, 2.0),), ((1, 2), 3)],
    ids=repr,
)
def test_cut_has_pairs_of_numbers_only(positions: Any):
    with pytest.raises(InvalidRequestError, match="not pairs of a segment id and an offset"):
        StreamCut("s", "t", positions)


@pytest.mark.parametrize("offsets", [None, [(1, 2)], "1"])
def test_cut_is_made_of_a_mapping_only(offsets: Any):
    with pytest.raises(InvalidRequestError, match="not a mapping") as refused:
        StreamCut.of("s", "t", offsets)
    assert refused.value.specific_code == "invalid_stream_cut"


def test_cut_names_each_of_its_segments_once():
    whole = dict.fromkeys(range(SEGMENTS_PER_STREAM_MAX), 0)
    assert StreamCut.of("s", "t", whole).offsets == whole
    for wrong in ((), ((1, 0), (1, 5)), tuple({**whole, SEGMENTS_PER_STREAM_MAX: 0}.items())):
        with pytest.raises(InvalidRequestError, match="it names"):
            StreamCut("s", "t", wrong)


def test_cuts_do_not_depend_on_the_order_of_their_segments():
    segments = Epoch.first(3, 0, 0).segments
    cut = StreamCut.of("s", "t", {2: 5, 0: 6, 1: 7})
    assert cut.positions == ((0, 6), (1, 7), (2, 5))
    assert PlacedCut(cut, segments[::-1]) == PlacedCut(cut, segments)
    assert PlacedCut(cut, segments[::-1]).segments == segments
