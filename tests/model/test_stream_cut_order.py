"""The order of cuts and the side of a segment, against a model that looks at the key space slot by slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.segments import StreamSegment
from headrace.model.stream_cut_order import CutOrder, PlacedCut, Side, compare_cuts, later_cut, side_of
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import is_very_beginning

SIZE = 3
"""Bytes of every segment."""


def _chains(epochs: list[Epoch], slots: int) -> list[list[StreamSegment]]:
    """For each slot of the key space, the segments that owned it, in order."""
    segments = sorted({one for epoch in epochs for one in epoch.segments}, key=lambda one: one.segment_id)
    return [[one for one in segments if slot in _slots(one, slots)] for slot in range(slots)]


def _slots(segment: StreamSegment, slots: int) -> range:
    return range(round(segment.key_range.low * slots), round(segment.key_range.high * slots))


def _position(data: st.DataObject, epochs: list[Epoch]) -> PlacedCut:
    """The segments of an epoch, at any offsets: a valid cut."""
    epoch = data.draw(st.sampled_from(epochs))
    offsets = {one.segment_id: data.draw(st.integers(0, SIZE)) for one in epoch.segments}
    return PlacedCut(StreamCut.of("s", "t", offsets), epoch.segments)


def _by_slot(cut: PlacedCut, chains: list[list[StreamSegment]], slots: int) -> list[tuple[int, int]]:
    """For each slot, how many segments came before, and the offset within the present one."""
    found = []
    for slot, chain in enumerate(chains):
        (segment,) = (one for one in cut.segments if slot in _slots(one, slots))
        found.append((chain.index(segment), cut.cut.offsets[segment.segment_id]))
    return found


@given(data=st.data())
@settings(max_examples=150)
def test_the_order_of_cuts_is_that_of_every_slot(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    one, other = _position(data, epochs), _position(data, epochs)
    pairs = list(zip(_by_slot(one, chains, slot_count), _by_slot(other, chains, slot_count), strict=True))
    before, after = any(left < right for left, right in pairs), any(left > right for left, right in pairs)
    expected = CutOrder.EQUAL_OR_AFTER if not before else CutOrder.OVERLAPS if after else CutOrder.BEFORE
    assert compare_cuts(one, other) is expected
    if expected is CutOrder.BEFORE:
        assert compare_cuts(other, one) is CutOrder.EQUAL_OR_AFTER


@given(data=st.data())
@settings(max_examples=150)
def test_a_later_cut_is_the_maximum_in_every_slot(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    one, other = _position(data, epochs), _position(data, epochs)
    pairs = zip(_by_slot(one, chains, slot_count), _by_slot(other, chains, slot_count), strict=True)
    assert _by_slot(later_cut(one, other), chains, slot_count) == [max(pair) for pair in pairs]


@given(data=st.data())
@settings(max_examples=150)
def test_the_side_of_a_segment_is_that_of_its_slots(histories: Histories, slot_count: int, data: st.DataObject):
    epochs = data.draw(histories(scales_max=4))
    chains = _chains(epochs, slot_count)
    cut = _position(data, epochs)
    reached = [index for index, _ in _by_slot(cut, chains, slot_count)]
    for segment in {one for epoch in epochs for one in epoch.segments}:
        slot = _slots(segment, slot_count)[0]
        gap = chains[slot].index(segment) - reached[slot]
        assert side_of(segment, cut) is (Side.IN if gap == 0 else Side.BEFORE if gap < 0 else Side.AFTER)


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
