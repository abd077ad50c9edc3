"""The layout of the key space over time: one rectangle per segment, and blocks for segments too short-lived to draw.

At each time of the window the rectangles cover the key space [0, 1) once. Pure functions; see `segment_spans.py`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.console.segment_spans import Span, SpanPage

NARROW_SHARE = 0.004
"""Epochs that take less of the window than this share are drawn as one block: about three pixels."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A part of the picture. `span` is the segment, None for a block of `hidden` segments that are too short-lived."""

    begin_ms: int
    end_ms: int
    low: float
    high: float
    span: Span | None
    hidden: int = 0


class _Interval(NamedTuple):
    begin_ms: int
    end_ms: int


def lay_out(page: SpanPage) -> tuple[Rectangle, ...]:
    """The rectangles of a window."""
    crowds = _crowds(page, (page.end_ms - page.begin_ms) * NARROW_SHARE)
    begins = [crowd.begin_ms for crowd in crowds]
    ends = [crowd.end_ms for crowd in crowds]
    passing: list[list[tuple[float, float]]] = [[] for _ in crowds]
    hidden: list[list[float]] = [[] for _ in crowds]
    rectangles: list[Rectangle] = []
    for span in page.spans:
        lifetime = _lifetime(span, page)
        begin_ms, end_ms = lifetime
        for index in range(bisect_right(ends, lifetime.begin_ms), bisect_left(begins, lifetime.end_ms)):
            crowd = crowds[index]
            if lifetime.begin_ms <= crowd.begin_ms and lifetime.end_ms >= crowd.end_ms:
                passing[index].append((span.low, span.high))
                continue
            hidden[index].append(span.low)
            if lifetime.begin_ms >= crowd.begin_ms:
                begin_ms = crowd.end_ms
            if lifetime.end_ms <= crowd.end_ms:
                end_ms = crowd.begin_ms
        if begin_ms < end_ms:
            rectangles.append(Rectangle(begin_ms, end_ms, span.low, span.high, span))
    for crowd, ranges, lows in zip(crowds, passing, hidden, strict=True):
        lows.sort()
        for low, high in _gaps(sorted(ranges)):
            count = bisect_left(lows, high) - bisect_left(lows, low)
            rectangles.append(Rectangle(crowd.begin_ms, crowd.end_ms, low, high, None, count))
    return tuple(rectangles)


def hidden_segments(rectangles: Iterable[Rectangle]) -> int:
    """How many segments have no rectangle of their own, counted once for each block that they are in."""
    return sum(rectangle.hidden for rectangle in rectangles)


def _lifetime(span: Span, page: SpanPage) -> _Interval:
    began = page.begin_ms if span.began_ms is None else max(span.began_ms, page.begin_ms)
    ended = page.end_ms if span.ended_ms is None else min(span.ended_ms, page.end_ms)
    return _Interval(began, ended)


def _crowds(page: SpanPage, narrow_ms: float) -> list[_Interval]:
    """The runs of consecutive epochs that are each shorter than `narrow_ms`."""
    times = sorted({page.begin_ms, page.end_ms, *(change.time_ms for change in page.changes)})
    crowds: list[_Interval] = []
    for begin_ms, end_ms in itertools.pairwise(times):
        if end_ms - begin_ms >= narrow_ms:
            continue
        if crowds and crowds[-1].end_ms == begin_ms:
            crowds[-1] = _Interval(crowds[-1].begin_ms, end_ms)
        else:
            crowds.append(_Interval(begin_ms, end_ms))
    return crowds


def _gaps(ranges: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of [0, 1) that sorted ranges leave free."""
    gaps: list[tuple[float, float]] = []
    reached = 0.0
    for low, high in ranges:
        if low > reached:
            gaps.append((reached, low))
        reached = max(reached, high)
    if reached < 1.0:
        gaps.append((reached, 1.0))
    return gaps
