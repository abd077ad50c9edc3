"""Watermarks: who is waited for, the bounds, and the cut behind everything that writers have told of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.segments import KeyRange, StreamSegment, covers_key_space_once, segment_id
from headrace.model.watermarks import Watermark, WatermarkStep, is_at_or_behind, next_watermark_step, upper_bound
from headrace.model.writer_marks import Positions, WriterMark, positions_of, shut_down

FIRST = Epoch.first(2, 0, 0)
SPLIT = scaled_epoch(FIRST, [0], [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)], 1)
MERGED = scaled_epoch(SPLIT, [1, segment_id(1, 3)], [KeyRange(0.25, 1.0)], 2)
EPOCHS = (FIRST, SPLIT, MERGED)
BY_ID = {segment.segment_id: segment for epoch in EPOCHS for segment in epoch.segments}
S2, S3, S4 = segment_id(1, 2), segment_id(1, 3), segment_id(2, 4)


def _positions(offsets: Mapping[int, int]) -> Positions:
    return positions_of({BY_ID[identifier]: offset for identifier, offset in offsets.items()})


def _segments_of_epoch(number: int) -> tuple[StreamSegment, ...]:
    return EPOCHS[number].segments


def _mark(writer: str, time: int, **offsets: int) -> WriterMark:
    return WriterMark(writer, time, _positions({int(name[1:]): offset for name, offset in offsets.items()}))


def _round(
    last: Watermark | None,
    *marks: WriterMark,
    silent: Mapping[str, int] | None = None,
    now_ms: int = 0,
    timeout: int = 0,
) -> WatermarkStep:
    return next_watermark_step(
        last, marks, silent or {}, timeout_ms=timeout, now_ms=now_ms, segments_of_epoch=_segments_of_epoch
    )


@pytest.mark.parametrize(
    ("positions", "cut"),
    [
        ([{0: 5, 1: 7}, {0: 9, 1: 2}], {0: 9, 1: 7}),
        ([{0: 5}], {0: 5, 1: 0}),
        ([{0: 0, 1: 0}], {0: 0, 1: 0}),
        ([{0: 5, 1: 7}, {S2: 3}], {S2: 3, S3: 0, 1: 7}),
        ([{S2: 3, S3: 4}, {0: 99, 1: 7}], {S2: 3, S3: 4, 1: 7}),
        ([{1: 7}, {S4: 1}], {S2: 0, S4: 1}),
        ([{0: 5}, {1: 7}, {S3: 2}, {S4: 1}], {S2: 0, S4: 1}),
    ],
)
def test_the_cut_behind_positions(positions: list[dict[int, int]], cut: dict[int, int]):
    bound = upper_bound(map(_positions, positions), None, _segments_of_epoch)
    assert bound == _positions(cut)
    assert bound == upper_bound(map(_positions, positions[::-1]), None, _segments_of_epoch)


def test_what_a_merge_replaced_stays_replaced_after_a_split():
    """A segment, the merge of it and another one, and a part of the split of that: in any order."""
    first = Epoch.first(2, 0, 0)
    merged = scaled_epoch(first, [0, 1], [KeyRange(0.0, 1.0)], 1)
    split = scaled_epoch(merged, [merged.segments[0].segment_id], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)], 2)
    epochs = (first, merged, split)
    low, high = split.segments
    told = [positions_of({first.segments[0]: 5}), positions_of({merged.segments[0]: 9}), positions_of({high: 3})]
    for order in permutations(told):
        bound = upper_bound(order, None, lambda number: epochs[number].segments)
        assert bound == positions_of({low: 0, high: 3})


def test_only_gaps_of_a_cut_are_filled():
    """A position in a replaced segment stays, although the newest epoch has its successors."""
    first = Epoch.first(4, 0, 0)
    eighths = [KeyRange(number / 8, (number + 1) / 8) for number in range(4)]
    split = scaled_epoch(first, [0, 1], eighths, 1)
    epochs = (first, split)
    bound = upper_bound(
        [positions_of({split.segments[0]: 3}), positions_of({first.segments[1]: 5})],
        None,
        lambda number: epochs[number].segments,
    )
    low, high, *_, third, fourth = split.segments
    assert bound == positions_of({low: 3, high: 0, first.segments[1]: 5, third: 0, fourth: 0})


def test_the_cut_is_behind_the_last_watermark_too():
    last = Watermark(1, 2, _positions({S2: 5, S3: 6, 1: 7}))
    assert upper_bound([_positions({0: 50, 1: 9})], last, _segments_of_epoch) == _positions({S2: 5, S3: 6, 1: 9})


def test_the_first_watermark_needs_no_more_than_marks():
    step = _round(None, _mark("a", 10, s0=5, s1=5), _mark("b", 7, s0=1, s1=9))
    assert step == WatermarkStep(Watermark(7, 10, _positions({0: 5, 1: 9})), (), {})


def test_nothing_without_marks():
    assert _round(None) == WatermarkStep(None, (), {})


def test_a_watermark_waits_for_a_late_writer_until_its_time_out():
    last = Watermark(7, 10, _positions({0: 5, 1: 9}))
    ahead, behind = _mark("a", 11, s0=6, s1=9), _mark("b", 7, s0=1, s1=9)
    first = _round(last, ahead, behind, now_ms=100, timeout=50)
    assert first == WatermarkStep(None, (), {"b": 100})
    assert _round(last, ahead, behind, silent=first.silent_since, now_ms=149, timeout=50) == first
    late = _round(last, ahead, behind, silent=first.silent_since, now_ms=150, timeout=50)
    assert late == WatermarkStep(Watermark(11, 11, _positions({0: 6, 1: 9})), (behind,), {})
    caught_up = _mark("b", 8, s0=1, s1=9)
    assert _round(last, ahead, caught_up, silent=first.silent_since, now_ms=149, timeout=50) == WatermarkStep(
        Watermark(8, 11, _positions({0: 6, 1: 9})), (), {}
    )


def test_a_writer_that_was_shut_down_is_not_waited_for():
    last = Watermark(7, 10, _positions({0: 5, 1: 9}))
    ahead, behind = _mark("a", 11, s0=6, s1=9), shut_down(_mark("b", 7, s0=1, s1=9))
    step = _round(last, ahead, behind, now_ms=100, timeout=50)
    assert step.watermark == Watermark(11, 11, _positions({0: 6, 1: 9}))
    assert step.inactive == (behind,)


def test_its_last_mark_counts_all_the_same():
    last = Watermark(7, 10, _positions({0: 5, 1: 9}))
    step = _round(last, _mark("a", 20, s0=6, s1=9), shut_down(_mark("b", 11, s0=1, s1=12)))
    assert step == WatermarkStep(Watermark(11, 20, _positions({0: 6, 1: 12})), (), {})


def test_without_a_time_out_no_writer_is_waited_for():
    last = Watermark(7, 10, _positions({0: 5, 1: 9}))
    behind = _mark("b", 7, s0=1, s1=9)
    assert _round(last, behind) == WatermarkStep(None, (behind,), {})


@pytest.mark.parametrize(
    ("position", "reached"),
    [
        ({0: 5, 1: 9}, True),
        ({0: 5, 1: 8}, False),
        ({0: 4, S3: 0}, False),
        ({S2: 0, S3: 0, 1: 9}, True),
        ({S2: 0, S4: 0}, True),
    ],
)
def test_whether_a_position_has_reached_a_cut(position: dict[int, int], reached: bool):
    assert is_at_or_behind(_positions(position), _positions({0: 5, 1: 9})) is reached


# Properties, on random histories of streams and random writers.


def _draw_positions(data: st.DataObject, epochs: list[Epoch]) -> Positions:
    """What a writer may know: some segments of one epoch."""
    epoch = data.draw(st.sampled_from(epochs))
    known = data.draw(st.lists(st.sampled_from(epoch.segments), min_size=1, unique=True))
    return positions_of({segment: data.draw(st.integers(0, 100)) for segment in known})


@given(data=st.data())
def test_watermarks_never_go_back_and_cover_the_key_space_once(data: Any, histories: Callable[..., Any]):
    epochs = data.draw(histories())
    last: Watermark | None = None
    for now_ms in range(data.draw(st.integers(1, 5))):
        marks = [
            WriterMark(name, data.draw(st.integers(0, 10)), _draw_positions(data, epochs), data.draw(st.booleans()))
            for name in data.draw(st.lists(st.sampled_from("abc"), unique=True))
        ]
        step = next_watermark_step(
            last,
            marks,
            {},
            timeout_ms=data.draw(st.integers(0, 1)),
            now_ms=now_ms,
            segments_of_epoch=lambda number: epochs[number].segments,
        )
        watermark = step.watermark
        if watermark is None:
            continue
        assert covers_key_space_once([position.segment.key_range for position in watermark.cut])
        assert watermark.lower_time <= watermark.upper_time
        active = [mark for mark in marks if mark not in step.inactive]
        for mark in active:
            assert watermark.lower_time <= mark.time <= watermark.upper_time
            assert is_at_or_behind(watermark.cut, mark.positions)
        if last is not None:
            assert watermark.lower_time > last.lower_time
            assert is_at_or_behind(watermark.cut, last.cut)
        last = watermark


@given(data=st.data())
def test_no_writer_that_is_waited_for_is_forgotten(data: Any):
    last = data.draw(st.one_of(st.none(), st.just(Watermark(5, 6, _positions({0: 0, 1: 0})))))
    marks = [
        WriterMark(name, data.draw(st.integers(0, 10)), _positions({0: 1, 1: 1}), data.draw(st.booleans()))
        for name in "abcd"
    ]
    step = _round(last, *marks, timeout=data.draw(st.integers(0, 2)))
    behind = {mark.writer for mark in marks if last is not None and mark.time <= last.lower_time}
    forgotten = {mark.writer for mark in step.inactive}
    assert forgotten | step.silent_since.keys() == behind
    assert not forgotten & step.silent_since.keys()
    assert (step.watermark is None) == bool(step.silent_since or len(behind) == len(marks))
