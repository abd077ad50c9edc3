"""The report of a stream: its measures, and one HTML page without scripts and without anything from elsewhere.

Every name and value from outside is escaped, because streams, readers and JSON fields are named by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark import read_batch
from headrace.spark.jobs.json_records import classified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.client.headrace import Headrace


# What a report says about a stream: bytes per segment and interval, and how far its readers are behind.
#
# A stream stores neither routing keys nor times with its events. The bytes of an interval are those between the stream
# cuts at its two times, and the skew is that between the key ranges of segments.

INTERVALS_MAX = 200
"""Each costs a search in every segment."""


@dataclass(frozen=True, slots=True)
class SegmentMeasure:
    """A segment, and the bytes that were written to it in each interval."""

    segment_id: int
    low: float
    high: float
    bytes_written: tuple[int, ...]
    is_active: bool

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_written)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber or a reader group is behind the tail; None: not known for this kind of reader."""

    kind: str
    name: str
    bytes_unread: int
    events_unread: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StreamMeasures:
    """The measures of a stream between the first and the last of `times`; an interval is between two of them."""

    scope: str
    stream: str
    times: tuple[datetime, ...]
    segments: tuple[SegmentMeasure, ...]
    lags: tuple[Lag, ...] = ()
    unmeasured: tuple[str, ...] = field(default=())
    """Readers whose lag could not be determined, with the reason."""

    @property
    def interval_s(self) -> tuple[float, ...]:
        return tuple((end - start).total_seconds() for start, end in pairwise(self.times))

    @property
    def bytes_written(self) -> tuple[int, ...]:
        """Bytes of all segments, per interval."""
        return tuple(
            sum(segment.bytes_written[number] for segment in self.segments) for number in range(len(self.times) - 1)
        )

    @property
    def skew(self) -> float | None:
        """How many times the mean the busiest active key range gets, for its width; None without any bytes."""
        active = [segment for segment in self.segments if segment.is_active]
        total, width = sum(each.total_bytes for each in active), sum(each.high - each.low for each in active)
        if not total or not width:
            return None
        return max(each.total_bytes / (each.high - each.low) for each in active) / (total / width)


def interval_times(start: datetime, end: datetime, intervals: int) -> tuple[datetime, ...]:
    """The borders of equal intervals.

    Raises:
        InvalidRequestError: the end is not after the start, a time has no time zone, or there are too many intervals.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise InvalidRequestError("the times of a report need a time zone, as in 2026-11-23T10:00:00Z")
    if end <= start:
        raise InvalidRequestError(f"the report would end at {end}, which is not after its start, {start}")
    if not 1 <= intervals <= INTERVALS_MAX:
        raise InvalidRequestError(f"{intervals} intervals: give 1 to {INTERVALS_MAX}")
    return tuple(start + (end - start) * number / intervals for number in range(intervals + 1))


def measure_stream(headrace: Headrace, scope: str, stream: str, times: Sequence[datetime]) -> StreamMeasures:
    """Measure a stream between times.

    Raises:
        HeadraceError: as `Headrace.stream_cut_at` and `segments_between`.
    """
    cuts = [headrace.stream_cut_at(scope, stream, time) for time in times]
    active = headrace.admin.stream_cut(scope, stream, at="latest").offsets.keys()
    ranges: dict[int, tuple[float, float]] = {}
    written: dict[int, list[int]] = {}
    for number, (start, end) in enumerate(pairwise(cuts)):
        for part in headrace.admin.segments_between(scope, stream, start, end).ranges:
            ranges[part.segment_id] = (part.low, part.high)
            counts = written.setdefault(part.segment_id, [0] * (len(times) - 1))
            counts[number] = part.end_offset - part.start_offset
    segments = tuple(
        SegmentMeasure(segment_id, *ranges[segment_id], tuple(counts), segment_id in active)
        for segment_id, counts in sorted(written.items())
    )
    lags, unmeasured = _measured_lags(headrace, scope, stream)
    return StreamMeasures(scope, stream, tuple(times), segments, tuple(lags), tuple(unmeasured))


def _measured_lags(headrace: Headrace, scope: str, stream: str) -> tuple[list[Lag], list[str]]:
    """A reader that cannot be measured, for example because its position was truncated, must not prevent a report."""
    lags: list[Lag] = []
    unmeasured: list[str] = []
    for subscriber in headrace.admin.subscribers.list(scope, stream):
        try:
            position = StreamCut.of(scope, stream, subscriber.offsets)
            unread = headrace.admin.stream_cut_distance(scope, stream, position)
            lags.append(Lag("subscriber", subscriber.subscriber, unread))
        except HeadraceError as error:
            unmeasured.append(f"subscriber {subscriber.subscriber}: {error.message}")
    for name in headrace.admin.reader_groups.list(scope):
        try:
            with headrace.reader_group(scope, name, initialize=False) as group:
                lag = group.lag()
        except HeadraceError as error:
            unmeasured.append(f"reader group {name}: {error.message}")
            continue
        if (unread_bytes := lag.bytes_by_stream.get(f"{scope}/{stream}")) is not None:
            events = sum(segment.events_unread for segment in lag.segments if segment.segment.stream == stream)
            lags.append(Lag("reader group", name, unread_bytes, events, lag.seconds))
    return lags, unmeasured


_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:.5rem 0}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #d8dee4}
th:first-child,td:first-child{text-align:left}.rates td,.rates th{padding:.2rem .3rem;font-size:12px}
svg{display:block;width:100%;height:3.5rem}.note{color:#57606a}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}.note{color:#8b949e}}
"""
_KEY_SPACE_WIDTH = 1000
_HUE = 212
_SHARES_BARS_REM = 20


@dataclass(frozen=True, slots=True)
class FieldShares:
    """The most frequent values of a JSON field, with their numbers of events, out of all `events` of the report."""

    field: str
    counts: tuple[tuple[str | None, int], ...]
    events: int
    quarantined: int = 0


def report_html(measures: StreamMeasures, shares: FieldShares | None = None) -> str:
    """The page."""
    title = escape(f"{measures.scope}/{measures.stream}")
    parts = [
        f"<h1>Stream {title}</h1>",
        f'<p class="note">{_time(measures.times[0])} to {_time(measures.times[-1])}</p>',
        _summary(measures),
        "<h2>Rates by segment</h2>",
        _rates(measures),
        "<h2>Key space</h2>",
        _key_space(measures),
        "<h2>Readers</h2>",
        _lags(measures.lags, measures.unmeasured),
    ]
    if shares is not None:
        parts += [f"<h2>Values of {escape(shares.field)}</h2>", _shares(shares)]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def rate_text(bytes_per_s: float) -> str:
    """A rate with a unit, for example 1.5 MB/s."""
    return f"{size_text(bytes_per_s)}/s"


def size_text(size_bytes: float) -> str:
    """A size with a decimal unit and at most three digits or a tenth."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def _summary(measures: StreamMeasures) -> str:
    total, seconds = sum(measures.bytes_written), sum(measures.interval_s)
    skew = "no bytes" if measures.skew is None else f"{measures.skew:.2f} times the mean"
    rows = [
        ("Written", size_text(total)),
        ("Mean rate", rate_text(total / seconds)),
        ("Active segments with data", str(sum(segment.is_active for segment in measures.segments))),
        ("Busiest active key range, for its width", skew),
    ]
    return _table([], ((escape(name), escape(value)) for name, value in rows))


def _rates(measures: StreamMeasures) -> str:
    """One row per segment, one column per interval; the darker a cell, the higher the rate."""
    if not measures.segments:
        return '<p class="note">Nothing was written.</p>'
    highest = max(
        count / seconds
        for segment in measures.segments
        for count, seconds in zip(segment.bytes_written, measures.interval_s, strict=True)
    )
    head = "".join(f"<th>{time:%m-%d %H:%M}</th>" for time in measures.times[:-1])
    lines = [f"<tr><th>segment</th>{head}</tr>"]
    for segment in measures.segments:
        cells = "".join(
            _cell(count / seconds, highest)
            for count, seconds in zip(segment.bytes_written, measures.interval_s, strict=True)
        )
        sealed = "" if segment.is_active else " (sealed)"
        lines.append(f"<tr><td>{_segment_name(segment.segment_id)}{sealed}</td>{cells}</tr>")
    totals = (count / seconds for count, seconds in zip(measures.bytes_written, measures.interval_s, strict=True))
    lines.append("<tr><td>all</td>" + "".join(f"<td>{rate_text(rate)}</td>" for rate in totals) + "</tr>")
    return f'<div style="overflow-x:auto"><table class="rates">{"".join(lines)}</table></div>'


def _cell(rate: float, highest: float) -> str:
    share = rate / highest if highest else 0.0
    return f'<td style="background:hsl({_HUE} 90% 50% / {share * 0.6:.2f})">{rate_text(rate)}</td>'


def _key_space(measures: StreamMeasures) -> str:
    """The active segments as a bar from key 0 to 1, darker where more bytes arrive for the width."""
    active = sorted((segment for segment in measures.segments if segment.is_active), key=lambda segment: segment.low)
    densities = [each.total_bytes / (each.high - each.low) for each in active]
    highest = max(densities, default=0.0) or 1.0
    bars = "".join(_bar(segment, density / highest) for segment, density in zip(active, densities, strict=True))
    note = "A dark bar is a busy key range. If it is wide, a scale divides its load."
    return (
        f'<svg viewBox="0 0 {_KEY_SPACE_WIDTH} 40" preserveAspectRatio="none" role="img">{bars}</svg>'
        f'<p class="note">{note}</p>'
    )


def _bar(segment: SegmentMeasure, share: float) -> str:
    left, width = segment.low * _KEY_SPACE_WIDTH, (segment.high - segment.low) * _KEY_SPACE_WIDTH
    told = f"{_segment_name(segment.segment_id)}: {segment.low:.4f} to {segment.high:.4f}"
    told += f", {size_text(segment.total_bytes)}"
    return (
        f'<rect x="{left:.2f}" y="0" width="{width:.2f}" height="40" fill="hsl({_HUE} 90% 45%)"'
        f' fill-opacity="{0.08 + 0.92 * share:.2f}" stroke="#888"><title>{told}</title></rect>'
    )


def _lags(lags: Sequence[Lag], unmeasured: Sequence[str]) -> str:
    if not lags and not unmeasured:
        return '<p class="note">There are no subscribers and no reader groups of this stream.</p>'
    rows = (
        (
            f"{escape(lag.kind)} {escape(lag.name)}",
            size_text(lag.bytes_unread),
            "" if lag.events_unread is None else f"{lag.events_unread:,}",
            "" if lag.seconds is None else f"{lag.seconds:.0f} s",
        )
        for lag in lags
    )
    notes = "".join(f'<p class="note">Not measured: {escape(text)}</p>' for text in unmeasured)
    return _table(["reader", "unread", "events", "time"], rows) + notes


def _shares(shares: FieldShares) -> str:
    rows = (
        (
            "<i>none</i>" if value is None else escape(value),
            f"{count:,}",
            f"{count / shares.events:.1%}" if shares.events else "",
            f'<div style="width:{_SHARES_BARS_REM * count / max(shares.events, 1):.2f}rem;height:.8rem;'
            f'background:hsl({_HUE} 90% 50%)"></div>',
        )
        for value, count in shares.counts
    )
    bad = f" {shares.quarantined:,} are not JSON objects." if shares.quarantined else ""
    note = f'<p class="note">The most frequent values of {shares.events:,} events.{bad}</p>'
    return _table(["value", "events", "share", ""], rows) + note


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"] if head else []
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _segment_name(segment_id: int) -> str:
    """Number and epoch, as the command line shows them."""
    return f"{segment_id & 0xFFFFFFFF}.{segment_id >> 32}"


def _time(time: datetime) -> str:
    return escape(time.isoformat(timespec="seconds"))


# How often each value of a JSON field occurs in a range of a stream.

VALUES_MAX = 20


def field_counts(spark: SparkSession, options: Mapping[str, str], field: str) -> FieldShares:
    """Read what the options of `read_batch` select, and count the values of a field as text."""
    wanted = {**options, "columns": "event,segment_id,offset"}
    records = classified(read_batch(spark, wanted), {field: "string"})
    values = records.select(F.col("reason").isNotNull().alias("bad"), F.col("record").getField(field).alias("value"))
    counts = values.groupBy("bad", "value").count().persist()
    try:
        sums = counts.groupBy("bad").agg(F.sum("count").alias("events")).collect()
        most = counts.filter("not bad").orderBy(F.desc("count"), "value").limit(VALUES_MAX).collect()
    finally:
        counts.unpersist()
    totals = {row["bad"]: row["events"] for row in sums}
    top = tuple((row["value"], int(row["count"])) for row in most)
    return FieldShares(field, top, int(totals.get(False, 0)), int(totals.get(True, 0)))
