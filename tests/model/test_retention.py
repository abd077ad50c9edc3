"""Where a stream is truncated: every documented case, and rules that hold in all cases."""

from __future__ import annotations

import itertools

import pytest
from cut_histories import Draw, History, Reader, grow, histories, read_on
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.retention import (
    WORDS,
    Cuts,
    Decision,
    Measures,
    RetentionCase,
    RetentionCut,
    cuts_after_head,
    decide,
    with_cut,
)
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_configuration import RetentionPolicy, RetentionType
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts
from headrace.model.subscribers import lower_bound, upper_bound

LEFT, RIGHT = StreamSegment(0, KeyRange(0.0, 0.5)), StreamSegment(1, KeyRange(0.5, 1.0))
NOW = 100
PLACES = {RetentionCut(at, 2 * at): at for at in range(10, NOW + 1, 10)}
"""A cut every 10 ms, at that offset in both of two segments: at 10 ms 20 bytes, at 100 ms 200."""


def _cut(left: int, right: int) -> PlacedCut:
    return PlacedCut(StreamCut.of("s", "t", {0: left, 1: right}), (LEFT, RIGHT))


def _place(cut: RetentionCut) -> PlacedCut:
    return _cut(PLACES[cut], PLACES[cut])


def _at(time_ms: int) -> RetentionCut:
    return RetentionCut(time_ms, 2 * time_ms)


def _policy(by_time: bool, least: int, most: int | None) -> RetentionPolicy:
    kind = RetentionType.LIMITED_TIME_MS if by_time else RetentionType.LIMITED_SIZE_BYTES
    factor = 1 if by_time else 2  # A ms of this stream is two bytes: both policies then mean the same.
    return RetentionPolicy(kind, least * factor, None if most is None else most * factor)


def _decide(by_time: bool, least: int, most: int | None, read: tuple[int, int] | None) -> Decision:
    """For a stream that was never truncated."""
    bound = _cut(*read) if read else None

    def remaining(cut: RetentionCut | None) -> int:
        return 200 - sum(offset if cut is None else min(offset, PLACES[cut]) for offset in read or ())

    measures = Measures(_place, lambda cut: cut.size_bytes, remaining)
    return decide(_policy(by_time, least, most), tuple(PLACES), NOW, 200, bound, measures)


BOTH = pytest.mark.parametrize("by_time", [True, False], ids=["time", "size"])


@BOTH
@pytest.mark.parametrize(("least", "cut"), [(30, 70), (25, 70), (31, 60), (90, 10), (1, 90)])
def test_without_subscribers_all_but_the_minimum_goes(by_time: bool, least: int, cut: int):
    assert _decide(by_time, least, None, None) == Decision(RetentionCase.NO_SUBSCRIBERS, _at(cut))
    assert _decide(by_time, least, 100, None) == Decision(RetentionCase.NO_SUBSCRIBERS, _at(cut))


@pytest.mark.parametrize(("least", "most", "cut"), [(30, 95, 10), (30, 75, 30), (30, 30, 70), (41, 49, 50)])
def test_without_subscribers_all_but_the_maximum_goes(least: int, most: int, cut: int):
    """By size, above the maximum. Without a cut between the limits the minimum decides."""
    assert _decide(False, least, most, None) == Decision(RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM, _at(cut))
    assert _decide(True, least, most, None).case is RetentionCase.NO_SUBSCRIBERS


@BOTH
@pytest.mark.parametrize("read", [None, (100, 100), (95, 95)])
def test_nothing_goes_when_there_is_no_more_than_the_minimum(by_time: bool, read: tuple[int, int] | None):
    assert _decide(by_time, 91, None, read) == Decision(RetentionCase.NOT_ENOUGH)


@BOTH
@pytest.mark.parametrize("read", [(60, 60), (65, 62), (20, 20), (70, 70)])
@pytest.mark.parametrize("most", [None, 80])
def test_within_limits(by_time: bool, read: tuple[int, int], most: int | None):
    assert _decide(by_time, 30, most, read) == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


@BOTH
@pytest.mark.parametrize("read", [(80, 80), (71, 71), (100, 100), (70, 71)])
def test_below_minimum(by_time: bool, read: tuple[int, int]):
    assert _decide(by_time, 30, 80, read) == Decision(RetentionCase.BELOW_MINIMUM, _at(70))


@pytest.mark.parametrize("read", [(90, 55), (61, 100), (90, 60)])
def test_overlapping_minimum_by_time(read: tuple[int, int]):
    """In one key range the minimum decides, in the other what is unread."""
    assert _decide(True, 30, 80, read) == Decision(RetentionCase.OVERLAPPING_MINIMUM, _at(70), at_bound=True)


@pytest.mark.parametrize(("read", "cut"), [((90, 55), 80), ((61, 100), 70)])
def test_overlapping_minimum_by_size(read: tuple[int, int], cut: int):
    """60 bytes stay. What is unread in one key range counts, so that less stays of the other."""
    assert _decide(False, 30, 80, read) == Decision(RetentionCase.OVERLAPPING_MINIMUM, _at(cut), at_bound=True)


@pytest.mark.parametrize(("by_time", "cut"), [(True, 40), (False, 90)])
def test_a_stuck_key_range_does_not_keep_the_others(by_time: bool, cut: int):
    """One range is read to its end, nothing of the other: what is read goes, but for the minimum."""
    decision = _decide(by_time, 55, None, (100, 0))
    assert decision == Decision(RetentionCase.OVERLAPPING_MINIMUM, _at(cut), at_bound=True)


@BOTH
@pytest.mark.parametrize("read", [(100, 0), (0, 100), (100, 15)])
def test_the_maximum_holds_although_one_key_range_is_read(by_time: bool, read: tuple[int, int]):
    """What is unread in the other is beyond the maximum, by time and by size."""
    decision = _decide(by_time, 10, 40, read)
    assert decision == Decision(RetentionCase.OVERLAPPING_MAXIMUM, _at(60))


@BOTH
@pytest.mark.parametrize("read", [(0, 0), (10, 10), (10, 15)])
def test_above_maximum(by_time: bool, read: tuple[int, int]):
    assert _decide(by_time, 30, 75, read) == Decision(RetentionCase.ABOVE_MAXIMUM, _at(30))


def test_overlapping_maximum_by_size():
    """190 of 200 bytes are unread, at most 150 may stay; one key range has been read beyond the cut that leaves 140."""
    assert _decide(False, 10, 75, (0, 40)) == Decision(RetentionCase.OVERLAPPING_MAXIMUM, _at(30))
    assert _decide(False, 10, 95, (0, 10)) == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


def test_overlapping_maximum_by_time():
    """The oldest cut that is young enough is at 30: one key range has been read beyond it, the other not."""
    assert _decide(True, 30, 75, (10, 50)) == Decision(RetentionCase.OVERLAPPING_MAXIMUM, _at(30))


def test_an_empty_segment_that_was_replaced_has_no_old_event():
    """A reader is still at it. All that it has not read is younger than the maximum."""
    halves = StreamSegment(segment_id(1, 2), KeyRange(0.5, 0.75)), StreamSegment(segment_id(1, 3), KeyRange(0.75, 1.0))
    cuts = RetentionCut(10, 10), RetentionCut(20, 20)
    places = {
        cut: PlacedCut(
            StreamCut.of("s", "t", {0: cut.size_bytes, **{half.segment_id: 0 for half in halves}}), (LEFT, *halves)
        )
        for cut in cuts
    }
    measures = Measures(places.__getitem__, lambda cut: cut.size_bytes, lambda cut: 10)
    decision = decide(_policy(True, 1, 10), cuts, 25, 20, _cut(10, 0), measures)
    assert decision == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)
    assert decide(_policy(True, 1, 10), cuts, 31, 20, _cut(10, 0), measures).cut == cuts[1], "now they are older"


@BOTH
def test_at_the_maximum_is_within_it(by_time: bool):
    assert _decide(by_time, 30, 80, (20, 20)) == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


@BOTH
def test_without_a_cut_between_the_limits_the_minimum_decides(by_time: bool):
    """41 to 49 are to stay: the cut at 50 leaves 50, and no cut leaves that."""
    assert _decide(by_time, 41, 49, (0, 0)) == Decision(RetentionCase.ABOVE_MAXIMUM, _at(50))


def test_every_case_has_its_words():
    assert set(WORDS) == set(RetentionCase)


def _with_cuts(draw: Draw, history: History) -> tuple[dict[RetentionCut, PlacedCut], int]:
    """The stream goes on, with a cut now and then; the cuts, and what time it is."""
    placed: dict[RetentionCut, PlacedCut] = {}
    now_ms = 0
    for _ in range(draw(st.integers(2, 8))):
        for _ in range(draw(st.integers(2, 4))):
            grow(draw, history)
        now_ms += draw(st.integers(1, 20))
        tail = history.tail()
        cut = RetentionCut(now_ms, history.size(tail))
        if not placed or cut.size_bytes > max(cut.size_bytes for cut in placed):
            placed[cut] = tail
    return placed, now_ms + draw(st.integers(0, 20))


POLICIES = st.builds(
    lambda by_time, least, more: RetentionPolicy(
        RetentionType.LIMITED_TIME_MS if by_time else RetentionType.LIMITED_SIZE_BYTES,
        least,
        None if more is None else least + more,
    ),
    st.booleans(),
    st.integers(1, 20) | st.integers(1, 150),
    st.none() | st.integers(0, 20) | st.integers(0, 150),
)


@given(histories(steps_max=6), POLICIES, st.data())
def test_minimum_and_unread_events_are_kept_within_the_maximum(
    history: History, policy: RetentionPolicy, data: st.DataObject
):
    """Also where the stream was truncated before, by hand or at what readers had read who are gone."""
    placed, now_ms = _with_cuts(data.draw, history)
    cuts: Cuts = tuple(placed)
    tail = placed[cuts[-1]]
    truncating = Reader.at_head(history)
    read_on(data.draw, truncating, steps_max=3)
    head = lower_bound([truncating.cut(), tail])
    readers = [Reader.at_head(history) for _ in range(data.draw(st.integers(0, 3)))]
    for reader in readers:
        read_on(data.draw, reader)
    low = upper_bound([lower_bound([*(reader.cut() for reader in readers), tail]), head]) if readers else None
    after = {cut: upper_bound([place, head]) for cut, place in placed.items()}
    cuts, _ = cuts_after_head(cuts, history.size(head))
    if not cuts:
        return
    size, known = cuts[-1].size_bytes, {cut: placed[cut] for cut in cuts}

    def at_bound(cut: RetentionCut | None) -> PlacedCut:
        assert low is not None
        return upper_bound([lower_bound([placed[cut], low]), head]) if cut else low

    measures = Measures(
        placed.__getitem__,
        lambda cut: history.size(after[cut]),
        lambda cut: size - history.size(at_bound(cut)),
    )
    decision = decide(policy, cuts, now_ms, size - history.size(head), low, measures)
    point = at_bound(decision.cut) if decision.at_bound else after[decision.cut] if decision.cut else None
    if low is not None and decision.case in (RetentionCase.WITHIN_LIMITS, RetentionCase.OVERLAPPING_MINIMUM):
        assert policy.maximum is None or _unread(policy, low, known, now_ms, history) <= policy.maximum
    if point is None or point == head:
        return
    if policy.is_by_time:
        assert _is_old_enough(point, head, placed, now_ms - policy.minimum)
    else:
        assert history.size(tail) - history.size(point) >= policy.minimum
    if low is not None and compare_cuts(low, point) is not CutOrder.EQUAL_OR_AFTER:
        assert policy.maximum is not None, "unread events go though there is no maximum"
        assert _unread(policy, low, known, now_ms, history) > policy.maximum


def _is_old_enough(point: PlacedCut, head: PlacedCut, placed: dict[RetentionCut, PlacedCut], until_ms: int) -> bool:
    """Whether a cut of that time is before `point` in no key range, except for bytes that were truncated already."""
    return any(
        cut.time_ms <= until_ms and compare_cuts(upper_bound([place, head]), point) is CutOrder.EQUAL_OR_AFTER
        for cut, place in placed.items()
    )


def _unread(
    policy: RetentionPolicy, point: PlacedCut, placed: dict[RetentionCut, PlacedCut], now_ms: int, history: History
) -> int:
    """The value after `point`: bytes, or the least age of the oldest event that follows from the cuts.

    Empty segments between `point` and a cut have no event.
    """
    if not policy.is_by_time:
        return history.size(list(placed.values())[-1]) - history.size(point)
    before = [
        retention_cut.time_ms
        for retention_cut, cut in placed.items()
        if history.size(cut) > history.size(lower_bound([point, cut]))
    ]
    return now_ms - min(before) if before else 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=60), st.booleans(), st.integers(3, 10))
def test_a_set_is_bounded_and_keeps_its_ends(steps: list[tuple[int, int]], by_time: bool, cuts_max: int):
    cuts: Cuts = ()
    time_ms = size = 0
    for later, more in steps:
        time_ms, size = time_ms + later, size + more
        new = RetentionCut(time_ms, size)
        before = cuts
        cuts, gone = with_cut(cuts, new, by_time=by_time, cuts_max=cuts_max)
        assert len(cuts) <= cuts_max
        assert set(cuts) | set(gone) == {*before, new}
        assert cuts[-1] == new
        assert cuts[0] == (before[0] if before else new)
        assert list(cuts) == sorted(cuts, key=lambda cut: cut.time_ms)


def test_a_thinned_set_has_no_large_gaps():
    cuts: Cuts = ()
    for index in range(1, 1_000):
        cuts, _ = with_cut(cuts, RetentionCut(index, index), by_time=True, cuts_max=128)
    gaps = [after.time_ms - before.time_ms for before, after in itertools.pairwise(cuts)]
    assert max(gaps) <= 3 * 1_000 / 128


@given(st.integers(0, 250))
def test_cuts_behind_the_head_are_no_use(head: int):
    kept, gone = cuts_after_head(tuple(PLACES), head)
    assert (*gone, *kept) == tuple(PLACES)
    assert all(cut.size_bytes > head for cut in kept)
    assert all(cut.size_bytes <= head for cut in gone)


# Limits, to the byte and the millisecond


def _never(*_: object) -> int:
    raise AssertionError("it is measured although it does not matter")


def _never_placed(_: RetentionCut) -> PlacedCut:
    raise AssertionError("it is placed although it does not matter")


UNMEASURED = Measures(_never_placed, _never, _never)
CUTS = tuple(PLACES)


def test_a_small_stream_is_not_measured():
    assert decide(_policy(False, 50, None), CUTS, NOW, 99, _cut(90, 90), UNMEASURED) == Decision(
        RetentionCase.NOT_ENOUGH
    )
    assert _decide(False, 100, None, (0, 0)) == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


def test_unread_events_of_the_minimum_are_measured_alone():
    measures = Measures(_never_placed, _never, lambda cut: 60 if cut is None else _never())
    decision = decide(_policy(False, 30, None), CUTS, NOW, 200, _cut(70, 70), measures)
    assert decision == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


def test_subscribers_behind_no_old_cut_are_not_measured():
    measures = Measures(_place, _never, _never)
    decision = decide(_policy(True, 30, 60), CUTS, NOW, 200, _cut(30, 30), measures)
    assert decision == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


def test_one_unread_byte_beyond_the_maximum_goes():
    assert _decide(True, 30, 60, (30, 29)) == Decision(RetentionCase.ABOVE_MAXIMUM, _at(40))
    assert _decide(False, 30, 60, (40, 39)) == Decision(RetentionCase.ABOVE_MAXIMUM, _at(40))
    assert _decide(False, 30, 60, (40, 40)) == Decision(RetentionCase.WITHIN_LIMITS, at_bound=True)


def _after_truncation(least: int, most: int | None) -> Decision:
    """In bytes, without subscribers: the head is at 60 in one of the two segments, after six of the cuts there.

    A truncation at the cuts of 10, 20, 30, 40, 50 and 60 ms leaves 130, 120, 110, 100, 90 and 80 bytes.
    """
    measures = Measures(_place, lambda cut: PLACES[cut] + max(PLACES[cut], 60), _never)
    policy = RetentionPolicy(RetentionType.LIMITED_SIZE_BYTES, least, most)
    return decide(policy, CUTS, NOW, 140, None, measures)


@pytest.mark.parametrize(("most", "cut"), [(130, 10), (120, 20), (115, 30), (110, 30), (105, 40), (100, 40), (99, 50)])
def test_what_is_truncated_already_counts_for_the_maximum(most: int, cut: int):
    assert _after_truncation(10, most) == Decision(RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM, _at(cut))


@pytest.mark.parametrize(("least", "cut"), [(130, 10), (121, 10), (101, 30), (100, 40), (81, 50), (80, 60), (79, 60)])
def test_what_is_truncated_already_counts_for_the_minimum(least: int, cut: int):
    assert _after_truncation(least, None) == Decision(RetentionCase.NO_SUBSCRIBERS, _at(cut))


def test_at_the_maximum_the_minimum_decides():
    assert _after_truncation(80, 140) == Decision(RetentionCase.NO_SUBSCRIBERS, _at(60))
    assert _after_truncation(80, 139) == Decision(RetentionCase.NO_SUBSCRIBERS_ABOVE_MAXIMUM, _at(10))


def test_without_a_cut_that_leaves_the_minimum_nothing_goes():
    measures = Measures(_place, lambda cut: cut.size_bytes, _never)
    newest = CUTS[-1:]
    decision = decide(_policy(False, 30, 75), newest, NOW, 200, None, measures)
    assert decision == Decision(RetentionCase.NOT_ENOUGH)


@pytest.mark.parametrize(("cuts", "read"), [((100,), 0), ((20, 100), 20), ((10, 100), 20)])
def test_without_a_useful_cut_the_subscribers_decide(cuts: tuple[int, ...], read: int):
    """More is unread than the maximum. No cut leaves less than what is unread and still the minimum."""
    measures = Measures(
        _place, lambda cut: cut.size_bytes, lambda cut: 200 - 2 * min(read, NOW if cut is None else PLACES[cut])
    )
    found = tuple(_at(each) for each in cuts)
    decision = decide(_policy(False, 50, 75), found, NOW, 200, _cut(read, read), measures)
    assert decision == Decision(RetentionCase.ABOVE_MAXIMUM, at_bound=True)


@pytest.mark.parametrize(("by_time", "gone"), [(True, 1), (False, 2)])
def test_the_cut_with_the_closest_neighbours_goes(by_time: bool, gone: int):
    cuts = (RetentionCut(0, 0), RetentionCut(5, 50), RetentionCut(6, 60))
    new = RetentionCut(20, 100)
    kept, removed = with_cut(cuts, new, by_time=by_time, cuts_max=3)
    assert removed == ((*cuts, new)[gone],)
    assert kept == tuple(cut for cut in (*cuts, new) if cut not in removed)
