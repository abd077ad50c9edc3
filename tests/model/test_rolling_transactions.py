"""Rolling transactions: the duplicates through which a commit passes whose transactions are of an older epoch."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from stream_histories import Histories

from headrace.model.epochs import Epoch, front_of_epochs, scaled_epoch
from headrace.model.segments import KeyRange, covers_key_space_once, segment_id
from headrace.model.stream_cut_ranges import segments_between
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import follows, repeats
from headrace.model.transactions import must_roll, roll_of, scale_after_roll

FIRST = Epoch.first(1, 3, 1_000)
SPLIT = scaled_epoch(FIRST, [3], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)], 2_000)


def test_duplicates_have_old_numbers_and_new_ids():
    roll = roll_of(SPLIT, FIRST, 3_000)
    assert [segment.segment_id for segment in roll.passed.segments] == [segment_id(2, 3)]
    assert [segment.segment_id for segment in roll.following.segments] == [segment_id(3, 4), segment_id(3, 5)]
    assert (roll.passed.reference_epoch, roll.following.reference_epoch) == (0, 1)
    assert (roll.passed.creation_time_ms, roll.following.creation_time_ms) == (3_000, 3_001)
    assert roll.passed.replaced == SPLIT.segments
    assert roll.following.replaced == roll.passed.segments


def test_a_duplicate_has_the_reference_epoch_of_its_original():
    roll = roll_of(SPLIT, FIRST, 3_000)
    again = roll_of(roll.following, FIRST, 0)
    assert must_roll(SPLIT, 0)
    assert must_roll(roll.following, 0)
    assert not must_roll(roll.following, 1)
    assert (again.passed.reference_epoch, again.following.reference_epoch) == (0, 1)
    assert again.passed.creation_time_ms == roll.following.creation_time_ms + 1, "times grow even if the clock is late"
    scale = scaled_epoch(again.following, [again.following.segments[0].segment_id], [KeyRange(0.0, 0.5)], 9_000)
    assert scale.reference_epoch == scale.number
    assert [segment.number for segment in scale.created] == [6], "numbers go on after the highest"


def _history(histories: Histories, data: st.DataObject) -> tuple[list[Epoch], Epoch]:
    """A history of scales and rolls, and one of its epochs whose transactions cannot be merged as they are."""
    epochs = data.draw(
        histories().filter(lambda found: any(must_roll(found[-1], epoch.reference_epoch) for epoch in found))
    )
    older = [epoch for epoch in epochs if must_roll(epochs[-1], epoch.reference_epoch)]
    return epochs, data.draw(st.sampled_from(older))


@given(data=st.data())
def test_every_roll_is_two_right_changes_of_epoch(histories: Histories, data: st.DataObject):
    epochs, original = _history(histories, data)
    roll = roll_of(epochs[-1], original, data.draw(st.integers(0, 2_000)))
    assert follows(roll.passed, roll.following)
    assert repeats(epochs[-1], roll.following)
    assert follows(epochs[-1], roll.passed)


@given(data=st.data())
def test_a_cut_at_the_tail_amid_a_roll_is_one_of_the_stream(histories: Histories, data: st.DataObject):
    """Whichever of the replaced segments are sealed, the newest that may hold events make a valid cut."""
    epochs, original = _history(histories, data)
    active = epochs[-1]
    roll = roll_of(active, original, 0)
    sealed = {segment for segment in active.segments if data.draw(st.booleans())}
    coming = [roll.passed, roll.following]
    front = front_of_epochs(coming, lambda segment: segment in sealed)
    assert covers_key_space_once([segment.key_range for segment in front])
    assert list(front) == sorted(front, key=lambda segment: segment.key_range)
    assert {segment for segment in active.segments if segment not in sealed} <= set(front)
    assert not set(roll.passed.segments) & set(front), "what is passed is complete before anybody sees it"
    head = StreamCut.of("s", "t", {segment.segment_id: 0 for segment in epochs[0].segments})
    tail = StreamCut.of("s", "t", {segment.segment_id: 1 for segment in front})
    walked = epochs + [epoch for epoch in coming if epoch.number <= tail.last_epoch]
    assert segments_between(head, tail, walked, lambda ids: dict.fromkeys(ids, 1))


def _renumbered(epoch: Epoch, number: int) -> Epoch:
    """The epoch as if it had another number, with the segments that it then would have."""
    segments = (replace(each, segment_id=segment_id(number, each.number)) for each in epoch.segments)
    return replace(epoch, number=number, segments=tuple(segments))


def test_epochs_that_are_no_step_of_a_roll_are_refused():
    roll = roll_of(SPLIT, FIRST, 3_000)
    passed, following = roll.passed, roll.following
    assert follows(SPLIT, passed)
    assert follows(SPLIT, replace(passed, duplicate_of=SPLIT.number))
    for wrong in (
        _renumbered(passed, SPLIT.number + 2),
        replace(passed, duplicate_of=passed.number),
        replace(passed, creation_time_ms=SPLIT.creation_time_ms),
        replace(passed, replaced=(*passed.replaced, *FIRST.segments)),
        replace(passed, replaced=passed.replaced[:1]),
    ):
        assert not follows(SPLIT, wrong)
    assert repeats(SPLIT, following)
    for wrong in (
        _renumbered(following, SPLIT.number + 3),
        replace(following, duplicate_of=FIRST.number),
        replace(following, creation_time_ms=SPLIT.creation_time_ms + 1),
        replace(following, segments=(SPLIT.segments[0], following.segments[1])),
        replace(following, segments=following.segments[:1]),
    ):
        assert not repeats(SPLIT, wrong)


def test_a_planned_scale_follows_the_roll():
    """It replaces the same numbers by the same ranges, with the next numbers."""
    planned = scaled_epoch(SPLIT, [segment_id(1, 5)], [KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)], 2_500)
    roll = roll_of(SPLIT, FIRST, 3_000)
    moved = scale_after_roll(planned, roll)
    assert moved.number == 4
    assert moved.replaced == roll.following.segments[1:]
    assert moved.segments[0] == roll.following.segments[0]
    assert [(segment.segment_id, segment.key_range) for segment in moved.created] == [
        (segment_id(4, 6), KeyRange(0.5, 0.75)),
        (segment_id(4, 7), KeyRange(0.75, 1.0)),
    ]
    assert moved.creation_time_ms == roll.following.creation_time_ms + 1, "times grow although it was planned before"
    late = scale_after_roll(replace(planned, creation_time_ms=9_000), roll)
    assert late.creation_time_ms == 9_000
