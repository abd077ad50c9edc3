"""Epochs and scales: numbering, what follows what, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model.epochs import Epoch, front_of_scale, is_same_scale, overlapping, rolled_back_epoch, scaled_epoch
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.log_classes import NUMBER_BLOCK, class_of_number
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, segment_id
from headrace.model.streams import follows

HALVES = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]


def test_the_first_epoch():
    epoch = Epoch.first(2, 7, 99)
    assert epoch == Epoch(0, 99, (StreamSegment(7, HALVES[0]), StreamSegment(8, HALVES[1])))
    assert epoch.created == epoch.segments
    assert epoch.next_segment_number == 9


def test_a_split_and_a_merge():
    first = Epoch.first(2, 0, 0)
    split = scaled_epoch(first, [0], [KeyRange(0.25, 0.5), KeyRange(0.0, 0.25)], 10)
    assert [(segment.segment_id, segment.key_range.low) for segment in split.segments] == [
        (segment_id(1, 2), 0.0),
        (segment_id(1, 3), 0.25),
        (1, 0.5),
    ]
    assert (split.number, split.creation_time_ms, split.replaced) == (1, 10, first.segments[:1])
    merge = scaled_epoch(split, [1, segment_id(1, 3)], [KeyRange(0.25, 1.0)], 10)
    assert [segment.segment_id for segment in merge.segments] == [segment_id(1, 2), segment_id(2, 4)]
    assert merge.creation_time_ms == 11, "times grow even if the clock does not advance"
    assert merge.successors_of(split.segments[1]) == merge.created
    assert merge.predecessors_of(merge.created[0]) == split.segments[1:]


def test_epoch_times_grow_even_if_the_clock_goes_back():
    first = Epoch.first(1, 0, 1_000)
    assert scaled_epoch(first, [0], [KeyRange(0.0, 1.0)], 5).creation_time_ms == 1_001


@given(data=st.data())
def test_the_front_of_a_scale_covers_the_key_space(histories: Histories, data: st.DataObject):
    coming = data.draw(histories().filter(lambda epochs: len(epochs) > 1))[-1]
    sealed = {segment for segment in coming.replaced if data.draw(st.booleans())}
    front = front_of_scale(coming, lambda segment: segment in sealed)
    assert covers_key_space_once([segment.key_range for segment in front])
    assert [segment.key_range for segment in front] == sorted(segment.key_range for segment in front)
    assert {segment for segment in coming.segments if segment not in coming.created} <= set(front)
    for segment in coming.created:
        assert segment not in front or set(coming.predecessors_of(segment)) <= sealed
    assert front_of_scale(coming, lambda _: True) == coming.segments


@given(st.sets(st.integers(0, 15)))
def test_each_part_of_a_scale_goes_on_by_itself(sealed: set[int]):
    """Pairs of segments become one each. Writers use it when both are sealed."""
    pairs = [KeyRange(index / 8, (index + 1) / 8) for index in range(8)]
    old = Epoch.first(16, 0, 0)
    coming = scaled_epoch(old, range(16), pairs, 1)
    expected: list[StreamSegment] = []
    for index, new in enumerate(coming.segments):
        both = (2 * index, 2 * index + 1)
        expected += [new] if sealed.issuperset(both) else [old.segments[each] for each in both]
    assert front_of_scale(coming, lambda segment: segment.segment_id in sealed) == tuple(expected)


def test_a_front_may_have_as_many_segments_as_a_cut():
    old = Epoch.first(SEGMENTS_PER_STREAM_MAX - 1, 0, 0)
    first = old.segments[0].key_range
    halves = [KeyRange(first.low, first.high / 2), KeyRange(first.high / 2, first.high)]
    coming = scaled_epoch(old, [0, 1], [*halves, old.segments[1].key_range], 1)
    front = front_of_scale(coming, lambda segment: segment is old.segments[0])
    assert len(front) == SEGMENTS_PER_STREAM_MAX
    assert front == (*coming.segments[:2], *old.segments[1:])


def test_a_front_with_one_segment_too_many_stays_at_the_old_ones():
    """The first segment is split and sealed, the next two are merged and not sealed."""
    old = Epoch.first(SEGMENTS_PER_STREAM_MAX, 0, 0)
    first, second, third = (segment.key_range for segment in old.segments[:3])
    halves = [KeyRange(first.low, first.high / 2), KeyRange(first.high / 2, first.high)]
    coming = scaled_epoch(old, [0, 1, 2], [*halves, KeyRange(second.low, third.high)], 1)
    assert front_of_scale(coming, lambda segment: segment is old.segments[0]) == old.segments


def test_a_front_that_no_cut_can_name_stays_at_the_old_segments():
    """One half is split at the moment in which the other is merged: both at their finest are too many."""
    many = SEGMENTS_PER_STREAM_MAX * 3 // 5
    low = [KeyRange(n / many / 2, (n + 1) / many / 2) for n in range(many)]
    high = [KeyRange(0.5 + key_range.low, 0.5 + key_range.high) for key_range in low]
    old = [StreamSegment(number, key_range) for number, key_range in enumerate([HALVES[0], *high])]
    new = [
        StreamSegment(segment_id(1, len(old) + number), key_range) for number, key_range in enumerate([*low, HALVES[1]])
    ]
    coming = Epoch(1, 1, tuple(new), tuple(old))
    assert front_of_scale(coming, lambda segment: segment is old[0]) == tuple(old)
    assert front_of_scale(coming, lambda _: True) == tuple(new)


@given(data=st.data())
def test_every_epoch_follows_the_one_before(histories: Histories, data: st.DataObject):
    epochs = data.draw(histories())
    for before, after in itertools.pairwise(epochs):
        assert follows(before, after)
        assert covers_key_space_once([segment.key_range for segment in after.segments])
        assert [segment.key_range for segment in after.segments] == sorted(
            segment.key_range for segment in after.segments
        )
        assert set(after.segments) - set(before.segments) == set(after.created)
        assert set(before.segments) - set(after.segments) == set(after.replaced)
    everything = [segment.segment_id for epoch in epochs for segment in epoch.created]
    assert len(set(everything)) == len(everything)
    seen = [segment.segment_id for epoch in epochs if epoch.duplicate_of is None for segment in epoch.created]
    assert sorted(identifier & 0xFFFFFFFF for identifier in seen) == list(range(min(seen), min(seen) + len(seen)))


@given(data=st.data())
def test_successors_and_predecessors_agree(histories: Histories, data: st.DataObject):
    for epoch in data.draw(histories())[1:]:
        for old in epoch.replaced:
            assert epoch.successors_of(old)
            for new in epoch.successors_of(old):
                assert old in epoch.predecessors_of(new)
        for new in epoch.created:
            assert epoch.predecessors_of(new)
            for old in epoch.predecessors_of(new):
                assert new in epoch.successors_of(old)


@given(data=st.data(), low=st.integers(0, 15), width=st.integers(1, 16))
def test_overlapping_segments_are_those_that_overlap(histories: Histories, data: st.DataObject, low: int, width: int):
    segments = data.draw(histories())[-1].segments
    part = data.draw(st.lists(st.sampled_from(segments), unique=True))
    part.sort(key=lambda segment: segment.key_range)
    key_range = KeyRange(low / 16, min(1.0, (low + width) / 16))
    assert overlapping(part, key_range) == tuple(segment for segment in part if segment.key_range.overlaps(key_range))


@pytest.mark.parametrize(
    ("sealed", "new", "kind", "code"),
    [
        ([5], HALVES[:1], IllegalStateError, "segment_not_active"),
        ([0, 5], HALVES[:1], IllegalStateError, "segment_not_active"),
        ([], [], InvalidRequestError, "invalid_key_ranges"),
        ([0], [], InvalidRequestError, "invalid_key_ranges"),
        ([0], HALVES, InvalidRequestError, "invalid_key_ranges"),
        ([0], HALVES[1:], InvalidRequestError, "invalid_key_ranges"),
        ([0], HALVES[:1] * 2, InvalidRequestError, "invalid_key_ranges"),
        ([0], [KeyRange(0.0, 0.49999999999999994)], InvalidRequestError, "invalid_key_ranges"),
    ],
)
def test_scales_that_do_not_fit(
    sealed: list[int], new: list[KeyRange], kind: type[InvalidRequestError | IllegalStateError], code: str
):
    with pytest.raises(kind) as refused:
        scaled_epoch(Epoch.first(2, 0, 0), sealed, new, 1)
    assert refused.value.specific_code == code


def test_a_stream_has_only_so_many_segments():
    epoch = Epoch.first(SEGMENTS_PER_STREAM_MAX, 0, 0)
    first = epoch.segments[0].key_range
    halves = [KeyRange(first.low, first.high / 2), KeyRange(first.high / 2, first.high)]
    with pytest.raises(InvalidRequestError) as refused:
        scaled_epoch(epoch, [0], halves, 1)
    assert refused.value.specific_code == "too_many_segments"
    assert len(scaled_epoch(epoch, [0], [first], 1).segments) == SEGMENTS_PER_STREAM_MAX


def test_the_same_scale_is_recognised():
    first = Epoch.first(2, 0, 0)
    quarters = [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)]
    planned = scaled_epoch(first, [0], quarters, 1)
    assert is_same_scale(planned, [0], quarters)
    assert is_same_scale(planned, [0, 0], quarters[::-1])
    assert not is_same_scale(planned, [1], quarters)
    assert not is_same_scale(planned, [0, 1], quarters)
    assert not is_same_scale(planned, [0], [KeyRange(0.0, 0.5)])


def test_only_what_an_epoch_replaced_is_known_to_it():
    planned = scaled_epoch(Epoch.first(2, 0, 0), [0], [KeyRange(0.0, 0.5)], 1)
    assert planned.replaced_segment(0).segment_id == 0
    with pytest.raises(NotFoundError):
        planned.replaced_segment(1)
    both = scaled_epoch(Epoch.first(2, 0, 0), [0, 1], [KeyRange(0.0, 1.0)], 1)
    assert [both.replaced_segment(each) for each in (0, 1)] == list(both.replaced)


def test_a_rolled_back_scale_leaves_an_epoch_without_a_change():
    current = scaled_epoch(Epoch.first(2, 0, 0), [0], [KeyRange(0.0, 0.5)], 10)
    planned = scaled_epoch(current, [1], [KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)], 20)
    back = rolled_back_epoch(current, planned)
    assert back == Epoch(2, 20, current.segments, (), 1)
    assert back.changes_nothing
    assert not current.changes_nothing
    assert back.reference_epoch == 1, "its transactions are those of the epoch that it repeats"
    again = rolled_back_epoch(back, scaled_epoch(back, [1], [KeyRange(0.5, 1.0)], 30))
    assert (again.number, again.reference_epoch) == (3, 1)


def test_new_numbers_stay_in_the_class_of_the_last_one():
    """A stream whose log has a class keeps it when a block of numbers ends."""
    last = NUMBER_BLOCK - 1
    epoch = Epoch(0, 0, (StreamSegment(last - 1, HALVES[0]), StreamSegment(last, HALVES[1])))
    scaled = scaled_epoch(epoch, [segment_id(0, last)], [HALVES[1]], 1)
    (created,) = scaled.created
    assert created.number > last
    assert class_of_number(created.number) is class_of_number(last)
    begun = Epoch(0, 0, (StreamSegment(2 * NUMBER_BLOCK, KeyRange(0.0, 1.0)),))
    assert [segment.number for segment in scaled_epoch(begun, [2 * NUMBER_BLOCK], HALVES, 1).created] == [
        2 * NUMBER_BLOCK + 1,
        2 * NUMBER_BLOCK + 2,
    ]
    before = Epoch(0, 0, (StreamSegment(last - 1, KeyRange(0.0, 1.0)),))
    assert [segment.number for segment in scaled_epoch(before, [last - 1], [KeyRange(0.0, 1.0)], 1).created] == [last]
    first, second = scaled_epoch(before, [last - 1], HALVES, 1).created
    assert second.number == first.number + 1
    assert first.number // NUMBER_BLOCK == second.number // NUMBER_BLOCK
    assert class_of_number(first.number) is class_of_number(last)
