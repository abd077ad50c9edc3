"""The layout of the key space over time: it covers each moment once, whatever the history is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_histories import histories, history_page, of_many_epochs

from headrace.api.segments import ScaledSegment
from headrace.api.streams import EpochHistory, EpochView, ReplacedSegment
from headrace.console.key_space_layout import Rectangle, hidden_segments, lay_out
from headrace.console.key_space_svg import Links, Picture, Position, draw
from headrace.console.segment_spans import SpanPage, spans_of


def covers_once(rectangles: tuple[Rectangle, ...], page: SpanPage) -> None:
    times = sorted({time for rectangle in rectangles for time in (rectangle.begin_ms, rectangle.end_ms)})
    assert (times[0], times[-1]) == (page.begin_ms, page.end_ms)
    assert len(times) * len(rectangles) < 3_000_000
    for rectangle in rectangles:
        assert rectangle.begin_ms < rectangle.end_ms
        assert rectangle.low < rectangle.high
    for begin_ms, end_ms in itertools.pairwise(times):
        here = sorted(
            (rectangle.low, rectangle.high)
            for rectangle in rectangles
            if rectangle.begin_ms < end_ms and rectangle.end_ms > begin_ms
        )
        reached = 0.0
        for low, high in here:
            assert low == reached
            reached = high
        assert reached == 1.0


@given(histories(), st.integers(1, 40))
@settings(max_examples=100)
def test_rectangles_cover_each_moment_once(history, limit: int):
    page = spans_of(history_page(history, None, limit), {}, history[-1].time_ms + 500)
    covers_once(lay_out(page), page)


@given(histories(), st.data())
@settings(max_examples=100)
def test_older_windows_follow_without_gap(history, data: st.DataObject):
    limit = data.draw(st.integers(2, 6))
    page = spans_of(history_page(history, None, limit), {}, history[-1].time_ms + 500)
    seen = {page.first_epoch, page.last_epoch}
    while (until := page.older_until) is not None:
        older = spans_of(history_page(history, until + 1, limit), {}, 1 << 50, until)
        covers_once(lay_out(older), older)
        assert older.end_ms == page.begin_ms
        assert older.last_epoch == until - 1
        page = older
        seen |= {page.first_epoch, page.last_epoch}
    assert page.first_epoch == 0
    assert seen <= {epoch.epoch for epoch in history}


def test_a_segment_keeps_its_ends_and_its_rate():
    history = of_many_epochs(3, 2, step_ms=1_000)
    page = spans_of(history_page(history, None, 10), {5: 700}, history[-1].time_ms + 2_000)
    spans = page.by_id()
    first = spans[0]
    assert (first.began_ms, first.ended_ms, first.length) == (history[0].time_ms, history[1].time_ms, 1_000)
    assert first.bytes_per_s(page.end_ms) == 1_000
    assert first.density(page.end_ms) == 2_000
    assert first.time_of(500, page.end_ms) == history[0].time_ms + 500
    assert {round(rectangle.end_ms - rectangle.begin_ms) for rectangle in lay_out(page)} == {1_000, 2_000}


@pytest.mark.parametrize(("epochs", "segments"), [(1, 1_000), (8, 1_000), (1_000, 8), (1_000, 1)])
def test_large_histories_have_few_rectangles(epochs: int, segments: int):
    history = of_many_epochs(epochs, segments)
    page = spans_of(history_page(history, None, 1_000), {}, history[-1].time_ms + 500)
    rectangles = lay_out(page)
    assert len(rectangles) <= 3_500
    covers_once(rectangles, page)
    shown = {rectangle.span.segment_id for rectangle in rectangles if rectangle.span is not None}
    assert len(shown) == len(page.spans) or hidden_segments(rectangles) > 0
    assert page.older_until is not None or page.first_epoch == 0


@pytest.mark.parametrize("times", [(5, 5, 5), (5, 5, 6), (9, 5, 2)], ids=["at once", "two at once", "clock set back"])
@pytest.mark.parametrize("until", [None, 1, 2])
def test_epochs_at_one_moment_can_be_drawn(times: tuple[int, int, int], until: int | None):
    segments = [ScaledSegment(epoch << 32 | epoch, 0.0, 1.0) for epoch in range(3)]
    epochs = [EpochView(0, times[0], (), (segments[0],))]
    for number in (1, 2):
        gone = segments[number - 1]
        replaced = ReplacedSegment(gone.segment_id, gone.low, gone.high, 7)
        epochs.insert(0, EpochView(number, times[number], (replaced,), (segments[number],)))
    newest = 2 if until is None else until
    page = spans_of(EpochHistory(tuple(epochs[2 - newest :]), (segments[newest],), None), {}, 4, until)
    links = Links(lambda span: "segment", lambda time_ms: "moment")
    assert 'href="segment"' in draw(Picture("s/t", page, lay_out(page), links=links))


@pytest.mark.parametrize(("offset", "is_shaded"), [(0, False), (7, True)])
def test_only_what_was_truncated_is_pale(offset: int, is_shaded: bool):
    history = EpochHistory((EpochView(0, 5, (), (ScaledSegment(0, 0.0, 1.0),)),), (ScaledSegment(0, 0.0, 1.0),), None)
    page = spans_of(history, {0: offset}, 10)
    head = Position("head", "truncated", {0: offset})
    assert ('class="truncated"' in draw(Picture("s/t", page, lay_out(page), (head,)))) == is_shaded
