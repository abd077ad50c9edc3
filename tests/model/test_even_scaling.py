"""Scales to equal segments: the key space stays covered, and what is right already is kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.scaling import BOUND_TOLERANCE, even_plan, joined_range, split_at, split_range
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, equal_ranges
from headrace.model.streams import follows

BOUNDS = st.one_of(
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.integers(2, 12).flatmap(lambda count: st.integers(1, count - 1).map(lambda index: index / count)),
)


@st.composite
def epochs(draw: st.DrawFn, parts: int = 1) -> Epoch:
    """Segments of any widths, some of them equal parts, numbered out of order. Most bounds are those of `parts`."""
    bounds = draw(st.sets(BOUNDS, max_size=12 if parts == 1 else 2))
    if parts > 1:
        bounds |= draw(st.sets(st.sampled_from([index / parts for index in range(1, parts)])))
    ranges = [KeyRange(low, high) for low, high in itertools.pairwise(sorted({0.0, 1.0, *bounds}))]
    numbers = draw(st.permutations(range(len(ranges))))
    return Epoch(3, 1_000, tuple(StreamSegment(number, part) for number, part in zip(numbers, ranges, strict=True)))


def ranges_of(epoch: Epoch) -> dict[int, KeyRange]:
    return {segment.segment_id: segment.key_range for segment in epoch.segments}


def after(epoch: Epoch, count: int) -> Epoch:
    """The epoch that the plan leads to in one request, as the controller accepts it."""
    plan = even_plan(ranges_of(epoch), count)
    return epoch if plan is None else scaled_epoch(epoch, plan.sealed, plan.new_ranges, 2_000)


@given(epoch=epochs(), count=st.integers(1, 40))
def test_one_request_leads_to_equal_segments(epoch: Epoch, count: int):
    following = after(epoch, count)
    ranges = [segment.key_range for segment in following.segments]
    assert len(ranges) == count
    assert covers_key_space_once(ranges)
    assert following is epoch or follows(epoch, following)
    for found, wanted in zip(ranges, equal_ranges(count), strict=True):
        assert abs(found.low - wanted.low) <= BOUND_TOLERANCE
        assert abs(found.high - wanted.high) <= BOUND_TOLERANCE


@given(count=st.integers(1, 40), data=st.data())
def test_a_segment_is_replaced_only_if_it_is_no_equal_part(count: int, data: st.DataObject):
    epoch = data.draw(epochs(count))
    plan = even_plan(ranges_of(epoch), count)
    sealed = set() if plan is None else set(plan.sealed)
    for segment in epoch.segments:
        is_part = any(
            abs(segment.key_range.low - part.low) <= BOUND_TOLERANCE / 2
            and abs(segment.key_range.high - part.high) <= BOUND_TOLERANCE / 2
            for part in equal_ranges(count)
        )
        if is_part and _has_no_near_twin(epoch, segment):
            assert segment.segment_id not in sealed
    if plan is not None:
        assert not set(plan.new_ranges) & {epoch.by_id[identifier].key_range for identifier in plan.sealed}


def _has_no_near_twin(epoch: Epoch, segment: StreamSegment) -> bool:
    """Whether no other bound is so near to those of the segment that it may be taken instead."""
    bounds = {bound for owner in epoch.segments for bound in (owner.key_range.low, owner.key_range.high)}
    others = bounds - {segment.key_range.low, segment.key_range.high}
    return all(
        abs(other - bound) > 2 * BOUND_TOLERANCE
        for other in others
        for bound in (segment.key_range.low, segment.key_range.high)
    )


@given(epoch=epochs(), count=st.integers(1, 40))
def test_a_second_scale_to_the_same_number_changes_nothing(epoch: Epoch, count: int):
    assert even_plan(ranges_of(after(epoch, count)), count) is None


def test_a_split_replaces_the_large_segment_only():
    epoch = Epoch(0, 1, tuple(StreamSegment(n, r) for n, r in enumerate([*equal_ranges(4)[:2], KeyRange(0.5, 1.0)])))
    plan = even_plan(ranges_of(epoch), 4)
    assert plan is not None
    assert (plan.sealed, plan.new_ranges) == ((2,), (KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)))


def test_a_split_and_a_merge_of_the_same_keys_are_one_step():
    plan = even_plan(ranges_of(Epoch.first(3, 0, 1)), 2)
    assert plan is not None
    assert (plan.sealed, plan.new_ranges) == ((0, 1, 2), equal_ranges(2))


@pytest.mark.parametrize("parts", [3, 6, 7, 9])
def test_rounding_of_splits_replaces_nothing(parts: int):
    """Equal parts that came from splits have other last bits than i / n."""
    ranges = [piece for part in equal_ranges(parts) for piece in split_range(part, parts)]
    assert even_plan(dict(enumerate(ranges)), parts * parts) is None


@pytest.mark.parametrize("count", [0, -1, SEGMENTS_PER_STREAM_MAX + 1])
def test_a_number_out_of_range_is_refused(count: int):
    with pytest.raises(InvalidRequestError, match="segments") as refused:
        even_plan(ranges_of(Epoch.first(2, 0, 1)), count)
    assert refused.value.specific_code == "too_many_segments"


def test_the_most_segments_need_one_step():
    full = Epoch.first(SEGMENTS_PER_STREAM_MAX, 0, 1)
    assert len(after(full, SEGMENTS_PER_STREAM_MAX - 1).segments) == SEGMENTS_PER_STREAM_MAX - 1
    assert len(after(Epoch.first(1, 0, 1), SEGMENTS_PER_STREAM_MAX).segments) == SEGMENTS_PER_STREAM_MAX


def test_a_range_is_split_at_keys():
    whole = KeyRange(0.25, 0.5)
    assert split_at(whole, [0.4, 0.3]) == (KeyRange(0.25, 0.3), KeyRange(0.3, 0.4), KeyRange(0.4, 0.5))
    for keys in ([0.25], [0.5], [0.6], [float("nan")], [0.3, 0.3], [0.3, 0.6]):
        with pytest.raises(InvalidRequestError) as refused:
            split_at(whole, keys)
        assert refused.value.specific_code == "invalid_key_ranges"


def test_neighbours_are_joined():
    segments = {1: KeyRange(0.5, 1.0), 2: KeyRange(0.25, 0.5), 3: KeyRange(0.0, 0.25)}
    assert joined_range(segments) == KeyRange(0.0, 1.0)
    with pytest.raises(InvalidRequestError, match=r"from 0\.25 to 0\.75"):
        joined_range({1: KeyRange(0.0, 0.1), 2: KeyRange(0.1, 0.25), 3: KeyRange(0.75, 1.0)})
    del segments[2]
    with pytest.raises(InvalidRequestError, match=r"from 0\.25 to 0\.5") as refused:
        joined_range(segments)
    assert (refused.value.specific_code, refused.value.details) == ("not_adjacent", {"segments": [3, 1]})
