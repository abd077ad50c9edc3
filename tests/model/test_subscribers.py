"""How far subscribers have read: bounds over all of them, and which positions they may publish."""

from __future__ import annotations

import math

import pytest
from cut_histories import SAMPLES, History, Reader, histories, place_at, read_on
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import CutOrder, StreamCut, compare_cuts
from headrace.model.subscribers import (
    Subscriber,
    check_subscriber_name,
    lower_bound,
    moved,
    registered_again,
    upper_bound,
)


@given(histories(), st.data())
def test_the_bounds_are_exact_at_every_point(history: History, data: st.DataObject):
    cuts = []
    for _ in range(data.draw(st.integers(1, 4))):
        reader = Reader.at_head(history)
        read_on(data.draw, reader)
        cuts.append(reader.cut())
    low, high = lower_bound(cuts), upper_bound(cuts)
    for point in SAMPLES:
        places = [place_at(cut, point) for cut in cuts]
        assert place_at(low, point) == min(places)
        assert place_at(high, point) == max(places)
    for cut in cuts:
        assert compare_cuts(cut, low) is CutOrder.EQUAL_OR_AFTER
        assert compare_cuts(high, cut) is CutOrder.EQUAL_OR_AFTER
    assert history.size(low) <= min(map(history.size, cuts))
    assert lower_bound([*cuts, history.tail()]) == low


def _steps_of_bounds(segments: int, cuts: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Positions that are looked at and key ranges that are compared for both bounds of so many cuts."""
    steps = 0
    honest_offsets, honest_less = StreamCut.offsets.fget, KeyRange.__lt__  # type: ignore[attr-defined]

    def offsets(cut: StreamCut) -> dict[int, int]:
        nonlocal steps
        steps += len(cut.positions)
        return honest_offsets(cut)  # type: ignore[no-any-return]

    def less(first: KeyRange, second: KeyRange) -> bool:
        nonlocal steps
        steps += 1
        return honest_less(first, second)

    history = History.begin(segments)
    tails = [history.tail()]
    history.split(0)
    tails += [history.tail()] * (cuts - 1)
    with monkeypatch.context() as patched:
        patched.setattr(StreamCut, "offsets", property(offsets))
        patched.setattr(KeyRange, "__lt__", less)
        assert lower_bound(tails) == tails[0]
        assert upper_bound(tails) == tails[-1]
    return steps


@pytest.mark.parametrize(("segments", "cuts"), [(100, 2), (800, 2), (100, 16)])
def test_the_bounds_take_steps_as_there_are_positions(segments: int, cuts: int, monkeypatch: pytest.MonkeyPatch):
    """And for each segment that is chosen as many as its place in their order takes to find."""
    steps = _steps_of_bounds(segments, cuts, monkeypatch)
    assert steps <= 2 * cuts * segments + 8 * segments * math.log2(segments)


@given(histories(), st.data())
def test_a_subscriber_only_moves_on(history: History, data: st.DataObject):
    reader = Reader.at_head(history)
    read_on(data.draw, reader)
    before = reader.cut()
    read_on(data.draw, reader)
    after = reader.cut()
    subscriber = Subscriber("g", 3, before, 0)
    assert moved(subscriber, 3, after, 7) == Subscriber("g", 3, after, 7)
    if compare_cuts(before, after) is CutOrder.BEFORE:
        with pytest.raises(InvalidRequestError) as error:
            moved(Subscriber("g", 3, after, 0), 3, before, 7)
        assert error.value.specific_code == "stream_cut_not_valid"


@pytest.mark.parametrize("generation", [2, 4])
def test_another_generation_is_refused(generation: int):
    cut = History.begin(1).tail()
    with pytest.raises(IllegalStateError) as error:
        moved(Subscriber("g", 3, cut, 0), generation, cut, 7)
    assert (error.value.specific_code, error.value.retry) == ("generation_mismatch", "never")


def test_group_that_registers_again_keeps_its_place():
    history = History.begin(1)
    history.append(0, 9)
    read, start = history.tail(), Reader.at_head(history).cut()
    before = Subscriber("g", 3, read, 5)
    for from_start in (False, True):
        assert registered_again(before, Subscriber("g", 3, start, 9), from_start=from_start) == before
        with pytest.raises(IllegalStateError) as refused:
            registered_again(before, Subscriber("g", 2, start, 9), from_start=from_start)
        assert refused.value.specific_code == "generation_mismatch"
    newer = Subscriber("g", 4, start, 9)
    assert registered_again(before, newer, from_start=False) == Subscriber("g", 4, read, 9)
    assert registered_again(before, newer, from_start=True) == newer


def test_subscriber_has_the_name_of_a_group():
    for name in ("g", "_g", "scope/g", "_scope/g"):
        assert check_subscriber_name(name) == name
    for wrong in ("", "a/", "/g", "a/b/g", "a b", "a b/g", ".."):
        with pytest.raises(InvalidRequestError) as refused:
            check_subscriber_name(wrong)
        assert refused.value.specific_code == "invalid_name"
