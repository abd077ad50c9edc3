"""The picture of the key space: its structure as XML, escaped texts, and labels that do not overlap."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_histories import histories, history_page, of_many_epochs

from headrace.api.streams import EpochView
from headrace.console.key_space_layout import lay_out
from headrace.console.key_space_svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Links,
    Picture,
    Position,
    draw,
    rate_step,
    segment_title,
    ticks,
)
from headrace.console.segment_spans import Span, SpanPage, spans_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "\"><script>alert('x')</script>&"


def picture(history: list[EpochView], **more) -> Picture:
    page = spans_of(history_page(history, None, 60), {}, history[-1].time_ms + 60_000)
    return Picture("s/t", page, lay_out(page), **more)


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


@given(histories())
@settings(max_examples=50)
def test_each_rectangle_has_a_title_and_a_link(history: list[EpochView]):
    made = picture(history, links=Links(lambda span: f"/x?a=1&b={span.segment_id}", lambda time_ms: f"/t?{time_ms}"))
    root = parsed(draw(made))
    links = [link for link in root.iter(f"{SVG}a") if link.get("class") != "moment"]
    drawn = [rectangle for rectangle in made.rectangles if rectangle.span is not None]
    assert len(links) == len(drawn)
    for link in links:
        title = link.find(f".//{SVG}title")
        assert title is not None
        assert title.text == link.get("aria-label")
        label = link.find(f".//{SVG}text")
        assert label is None or (label.text or "") in (title.text or "")


@given(histories())
@settings(max_examples=50)
def test_labels_of_epochs_do_not_overlap(history: list[EpochView]):
    root = parsed(draw(picture(history)))
    reached = 0.0
    for label in (text for text in root.iter(f"{SVG}text") if text.get("class") == "epoch"):
        left = float(label.get("x", "0"))
        assert left > reached
        reached = left + 6 * len(label.text or "")
        assert reached <= WIDTH


def test_hostile_names_are_text():
    history = of_many_epochs(2, 2)
    made = picture(history, positions=[Position("group", HOSTILE, {0: 10, 1: 10})])
    drawn = draw(Picture(HOSTILE, made.page, made.rectangles, made.positions))
    assert "<script" not in drawn
    assert HOSTILE in "".join(parsed(drawn).itertext())


def test_positions_are_at_their_time():
    history = of_many_epochs(2, 1, step_ms=60_000)
    made = picture(history, positions=[Position("group", "g", {0: 500})])
    (line,) = re.findall(r'<g class="position group dashes-0"><title>g</title><line x1="([\d.]+)"', draw(made))
    assert float(line) == pytest.approx(LEFT + (WIDTH - LEFT - RIGHT) / 4, abs=0.2)


def test_what_is_before_the_head_is_shaded():
    history = of_many_epochs(2, 1, step_ms=60_000)
    drawn = draw(picture(history, positions=[Position("head", "truncated", {0: 500})]))
    assert 'class="truncated"' in drawn
    assert 'class="truncated"' not in draw(picture(history, positions=[Position("head", "truncated", {0: 0})]))


def test_segments_of_a_key_are_marked():
    drawn = draw(picture(of_many_epochs(3, 4), key_position=0.3))
    assert (drawn.count(" has-key"), drawn.count(" no-key")) == (3, 9)


def test_a_picture_in_a_file_has_its_style():
    drawn = draw(picture(of_many_epochs(2, 2)), style=".key-space { color: red }")
    assert "<style>.key-space { color: red }</style>" in drawn


@pytest.mark.parametrize(
    ("density", "step"), [(None, "unknown"), (0.0, "rate-0"), (999.0, "rate-0"), (1e3, "rate-1"), (1e9, "rate-5")]
)
def test_colours_are_steps_of_the_rate(density: float | None, step: str):
    assert rate_step(density) == step


def test_a_title_says_all_numbers():
    text = segment_title(Span(1 << 32 | 2, 0.25, 0.5, 1_000, 3_000, 4_000), 9_000)
    assert text.startswith("2@1 4.0 kB: keys 0.25 to 0.5, began at 1970-01-01 00:00:01Z, sealed at")
    assert text.endswith("2.0 kB/s")
    assert "rate not known" in segment_title(Span(2, 0.0, 1.0, None, None, None), 9_000)


@given(st.integers(0, 1 << 42), st.integers(1, 1 << 38))
def test_ticks_are_few_and_inside(begin_ms: int, length_ms: int):
    made = ticks(begin_ms, begin_ms + length_ms)
    assert len(made) <= 8
    assert all(begin_ms <= time_ms <= begin_ms + length_ms for time_ms, _ in made)


def test_positions_in_many_segments_have_a_line_for_each_pixel():
    count = 4_000
    spans = tuple(Span(each, each / count, (each + 1) / count, 0, None, 100) for each in range(count))
    page = SpanPage(spans, (), 0, 1_000, None, is_newest=True, first_epoch=0, last_epoch=0)
    position = Position("group", "billing", {each: each % 100 for each in range(count)})
    root = parsed(draw(Picture("s/t", page, lay_out(page), [position])))
    (group, _) = (each for each in root.iter(f"{SVG}g") if "position" in each.get("class", ""))
    lines = [(float(line.get("y1", "")), float(line.get("y2", ""))) for line in group.iter(f"{SVG}line")]
    assert HEIGHT / 4 < len(lines) <= 2 * HEIGHT
    covered = sum(end - begin + 2 for begin, end in lines)
    assert covered == pytest.approx(HEIGHT - TOP - BOTTOM, abs=len(lines) * 0.1)


def test_a_position_of_few_segments_is_drawn_for_each():
    spans = tuple(Span(each, each / 4, (each + 1) / 4, 0, None, 100) for each in range(4))
    page = SpanPage(spans, (), 0, 1_000, None, is_newest=True, first_epoch=0, last_epoch=0)
    position = Position("group", "billing", {each: 10 + 20 * each for each in range(4)})
    root = parsed(draw(Picture("s/t", page, lay_out(page), [position])))
    (group, _) = (each for each in root.iter(f"{SVG}g") if "position" in each.get("class", ""))
    assert len({line.get("x1") for line in group.iter(f"{SVG}line")}) == 4
