"""The key space over time as SVG: x is time, y the key space from 0 at the top to 1.

One rectangle per segment, coloured by its rate per key range, with its numbers in its title and, where there is room,
in a label. All classes are styled by `static/key-space.css`; the picture has no style of its own. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from headrace.cli.outcome import time_text
from headrace.cli.quantities import duration_text, rate_text, size_text
from headrace.codec.places import segment_text
from headrace.console.key_space_layout import Rectangle
from headrace.console.segment_spans import Span, SpanPage

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 30, 66
LABEL_HEIGHT, CHARACTER_WIDTH = 15, 7.0
RATE_STEPS = (1e3, 1e4, 1e5, 1e6, 1e7)
"""Bytes per second, per whole key space: a segment that is as fast as a stream of this rate gets the next colour."""

DASHES = 5
"""Patterns of lines, so that groups can be told apart without colours."""

COLUMNS = 48
"""Links of the time strip: a click on it chooses the time at the begin of the column."""

_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_TICKS_MAX = 7
_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the stream, such as that of a reader group: per segment id, an offset in bytes."""

    kind: str
    """`head`, `watermark` or `group`: chooses the style, and how it is drawn."""
    label: str
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class Links:
    """Where a click leads. Each is a function of what was clicked on; None makes no links, for a picture in a file."""

    segment: Callable[[Span], str]
    moment: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn."""

    name: str
    page: SpanPage
    rectangles: Sequence[Rectangle]
    positions: Sequence[Position] = ()
    key_position: float | None = None
    chosen: int | None = None
    """The id of a segment that is marked."""
    links: Links | None = None


def draw(picture: Picture, *, style: str = "") -> str:
    """The picture as an SVG element; a document of its own with `style`, a style sheet."""
    scale = _Scale(picture.page)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="key-space" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f"aria-label={quoteattr(f'Key space of {picture.name} over time')}>",
        f"<style>{style}</style>" if style else "",
        f'<rect class="paper" x="0" y="0" width="{WIDTH}" height="{HEIGHT}"/>',
        *_key_labels(),
        *(_rectangle(picture, rectangle, scale) for rectangle in picture.rectangles),
        *(_shade(position, picture.page, scale) for position in picture.positions if position.kind == "head"),
        *_changes(picture, scale),
        *_lines(picture, scale),
        *_key_line(picture),
        *_time_axis(picture, scale),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def rate_step(density: float | None) -> str:
    """The class of the colour for a rate per unit of the key space; "unknown" without one."""
    if density is None:
        return "unknown"
    return f"rate-{sum(density >= step for step in RATE_STEPS)}"


def segment_title(span: Span, now_ms: int) -> str:
    """The numbers of a segment in one sentence."""
    rate = span.bytes_per_s(now_ms)
    begin = "before this window" if span.began_ms is None else f"at {time_text(span.began_ms)}"
    end = "open" if span.ended_ms is None else f"sealed at {time_text(span.ended_ms)}"
    size = "size not known" if span.length is None else size_text(span.length)
    return (
        f"{segment_text(span.segment_id)} {size}: keys {span.low:.4g} to {span.high:.4g}, began {begin}, {end}, "
        f"{'rate not known' if rate is None else rate_text(rate)}"
    )


class _Scale:
    def __init__(self, page: SpanPage) -> None:
        self.begin_ms, self.end_ms = page.begin_ms, page.end_ms
        self._width = WIDTH - LEFT - RIGHT

    def x(self, time_ms: float) -> float:
        share = (time_ms - self.begin_ms) / (self.end_ms - self.begin_ms)
        return LEFT + self._width * min(1.0, max(0.0, share))


def _y(key: float) -> float:
    return TOP + key * (HEIGHT - TOP - BOTTOM)


def _rectangle(picture: Picture, rectangle: Rectangle, scale: _Scale) -> str:
    left, right = scale.x(rectangle.begin_ms), scale.x(rectangle.end_ms)
    top, bottom = _y(rectangle.low), _y(rectangle.high)
    gap = _GAP if bottom - top > 4 * _GAP and right - left > 4 * _GAP else 0.0
    box = (
        f'x="{left:.1f}" y="{top:.2f}" width="{max(0.5, right - left - gap):.1f}" '
        f'height="{max(0.2, bottom - top - gap):.2f}"'
    )
    span = rectangle.span
    if span is None:
        title = (
            f"{rectangle.hidden} short-lived segments between {time_text(rectangle.begin_ms)} and "
            f"{time_text(rectangle.end_ms)}"
        )
        return f'<g class="crowd"><title>{escape(title)}</title><rect {box}/></g>'
    title = segment_title(span, picture.page.end_ms)
    step = rate_step(span.density(picture.page.end_ms))
    classes = f"segment {step}"
    if picture.key_position is not None:
        classes += " has-key" if span.low <= picture.key_position < span.high else " no-key"
    if picture.chosen == span.segment_id:
        classes += " chosen"
    drawn = (
        f'<g class="{classes}"><title>{escape(title)}</title><rect {box}/>{_label(span, left, top, right, bottom)}</g>'
    )
    if picture.links is None:
        return drawn
    address, label = quoteattr(picture.links.segment(span)), quoteattr(title)
    return f'<a id="segment-{span.segment_id}" href={address} aria-label={label}>{drawn}</a>'


def _label(span: Span, left: float, top: float, right: float, bottom: float) -> str:
    """The name of the segment, if there is room for it, and its size, if there is room for both."""
    if bottom - top < LABEL_HEIGHT:
        return ""
    room = (right - left - 8) / CHARACTER_WIDTH
    name = segment_text(span.segment_id)
    size = "" if span.length is None else f" {size_text(span.length)}"
    text = f"{name}{size}" if len(name) + len(size) <= room else name
    if len(text) > room:
        return ""
    return f'<text x="{left + 4:.1f}" y="{top + 11.5:.1f}">{escape(text)}</text>'


def _shade(head: Position, page: SpanPage, scale: _Scale) -> str:
    """What was truncated: everything before the head, for each of the ranges of its segments."""
    parts = []
    for low, high, x in _rows(_pieces(head, page, scale)):
        if x > LEFT:
            parts.append(
                f'<rect x="{LEFT}" y="{_y(low):.2f}" width="{x - LEFT:.1f}" height="{_y(high) - _y(low):.2f}"/>'
            )
    if not parts:
        return ""
    return f'<g class="truncated"><title>{escape(head.label)}</title>{"".join(parts)}</g>'


def _pieces(position: Position, page: SpanPage, scale: _Scale) -> Iterator[tuple[float, float, float]]:
    """The vertical parts of a position: key range and x. Segments outside the window are left out."""
    spans = page.by_id()
    for identifier, offset in sorted(position.offsets.items()):
        span = spans.get(identifier)
        if span is None:
            continue
        if offset < 0:  # The end of the segment.
            time_ms: int | None = page.end_ms if span.ended_ms is None else span.ended_ms
        elif offset == 0 and position.kind == "head":  # Nothing was truncated, also if the segment is empty.
            time_ms = span.began_ms
        else:
            time_ms = span.time_of(offset, page.end_ms)
        if time_ms is not None:
            yield span.low, span.high, scale.x(time_ms)


def _rows(pieces: Iterable[tuple[float, float, float]]) -> Iterator[tuple[float, float, float]]:
    """Neighbouring pieces as one, with the earliest x, where a pixel has room for several: of thousands of segments."""
    row: tuple[float, float, float] | None = None
    for low, high, x in sorted(pieces):
        if row is not None and row[1] == low and _y(high) - _y(row[0]) <= 1:
            row = row[0], high, min(row[2], x)
            continue
        if row is not None:
            yield row
        row = low, high, x
    if row is not None:
        yield row


def _changes(picture: Picture, scale: _Scale) -> Iterator[str]:
    """A line where each epoch begins, and above it the word for what happened, if there is room."""
    taken = -1.0
    for change in picture.page.changes:
        if change.time_ms <= picture.page.begin_ms:
            continue
        x = scale.x(change.time_ms)
        kind = "split" if change.splits else "merge" if change.merges else "replaced"
        yield (
            f'<g class="change {kind}"><title>{escape(f"{change.words}, {time_text(change.time_ms)}")}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(change.low) - 3:.1f}" y2="{_y(change.high) + 3:.1f}"/></g>'
        )
        text = f"epoch {change.epoch}: {kind}"
        width = len(text) * CHARACTER_WIDTH
        left = min(max(x - width / 2, LEFT), WIDTH - RIGHT - width)
        if left > taken + 6:
            taken = left + width
            yield f'<text class="epoch" x="{left:.1f}" y="{TOP - 10}">{escape(text)}</text>'


def _lines(picture: Picture, scale: _Scale) -> Iterator[str]:
    """Watermark and groups: where they are in each segment, with their names in a row below the axis."""
    taken, count = LEFT - 14.0, 0
    for position in picture.positions:
        pieces = list(_rows(_pieces(position, picture.page, scale)))
        if position.kind == "head" or not pieces:
            continue
        lines = "".join(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(low) + 1:.1f}" y2="{_y(high) - 1:.1f}"/>'
            for low, high, x in pieces
        )
        classes = f"position {position.kind} dashes-{count % DASHES}"
        count += 1
        yield f'<g class="{classes}"><title>{escape(position.label)}</title>{lines}</g>'
        left, width = taken + 14, 22 + len(position.label) * CHARACTER_WIDTH
        if left + width < WIDTH - RIGHT:
            taken = left + width
            yield (
                f'<g class="{classes}"><line x1="{left:.1f}" x2="{left + 16:.1f}" y1="{HEIGHT - 12}" '
                f'y2="{HEIGHT - 12}"/><text x="{left + 21:.1f}" y="{HEIGHT - 8}">{escape(position.label)}</text></g>'
            )


def _key_line(picture: Picture) -> Iterator[str]:
    if picture.key_position is not None:
        y = _y(picture.key_position)
        yield f'<line class="key" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _key_labels() -> Iterator[str]:
    yield f'<text class="axis" x="4" y="{_y(0) - 10:.1f}">key</text>'
    for key in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield f'<text class="axis" x="{LEFT - 6}" y="{_y(key) + 4:.1f}" text-anchor="end">{key:g}</text>'


def _time_axis(picture: Picture, scale: _Scale) -> Iterator[str]:
    links, y = picture.links, HEIGHT - BOTTOM + 8
    if links is not None:
        step_ms = (scale.end_ms - scale.begin_ms) / COLUMNS
        for index in range(COLUMNS):
            time_ms = round(scale.begin_ms + index * step_ms)
            left, right = scale.x(time_ms), scale.x(scale.begin_ms + (index + 1) * step_ms)
            title, address = f"from {time_text(time_ms)}", quoteattr(links.moment(time_ms))
            yield (
                f'<a class="moment" tabindex="-1" href={address} aria-label={quoteattr(title)}>'
                f'<title>{title}</title><rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="24"/></a>'
            )
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    for time_ms, text in ticks(scale.begin_ms, scale.end_ms):
        x = scale.x(time_ms)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{y + 17}" text-anchor="middle">{escape(text)}</text>'
    if picture.page.is_newest:
        yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{y + 17}" text-anchor="end">now</text>'


def ticks(begin_ms: int, end_ms: int) -> list[tuple[int, str]]:
    """Even times of UTC between two times, at most seven, with their texts; none so near the end that texts touch."""
    length_s = (end_ms - begin_ms) / 1000
    day_steps = math.ceil(length_s / (_TICKS_MAX * 86_400))
    step_s = next((step for step in _TICK_STEPS_S if length_s / step <= _TICKS_MAX), day_steps * 86_400)
    first = math.ceil(begin_ms / 1000 / step_s) * step_s
    edge_ms = (end_ms - begin_ms) * 0.06
    shown = [time_s * 1000 for time_s in range(first, end_ms // 1000 + 1, step_s)]
    form = (
        "%m-%d" if step_s >= 86_400 else "%m-%d %H:%M" if length_s > 86_400 else "%H:%M:%S" if step_s < 60 else "%H:%M"
    )
    return [
        (time_ms, datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form))
        for time_ms in shown
        if begin_ms + edge_ms / 2 <= time_ms <= end_ms - edge_ms
    ]


def legend() -> Iterable[tuple[str, str]]:
    """The classes of the colours with their meaning."""
    bounds = [rate_text(step) for step in RATE_STEPS]
    yield "rate-0", f"below {bounds[0]}"
    for index, bound in enumerate(bounds, 1):
        yield f"rate-{index}", f"from {bound}"
    yield "unknown", "not known"


def window_text(page: SpanPage) -> str:
    """For example "epochs 0 to 4, 1 min 5 s"."""
    epochs = (
        f"epoch {page.last_epoch}"
        if page.first_epoch == page.last_epoch
        else f"epochs {page.first_epoch} to {page.last_epoch}"
    )
    return f"{epochs}, {duration_text((page.end_ms - page.begin_ms) / 1000)}"
