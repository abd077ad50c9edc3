"""The report of a stream: figures from cuts, skew for the width of key ranges, names that cannot become markup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from headrace.client import ScalingPolicy
from headrace.client.headrace import Headrace
from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.stream_report import (
    FieldShares,
    Lag,
    SegmentMeasure,
    StreamMeasures,
    interval_times,
    measure_stream,
    report_html,
    size_text,
)

START = datetime(2026, 11, 23, 10, tzinfo=UTC)
TIMES = interval_times(START, START + timedelta(hours=2), 2)


def measures(*segments: SegmentMeasure, lags: tuple[Lag, ...] = ()) -> StreamMeasures:
    return StreamMeasures("shop", "orders", TIMES, segments, lags)


def test_intervals_are_equal_and_whole():
    assert (START, START + timedelta(hours=1), START + timedelta(hours=2)) == TIMES


@pytest.mark.parametrize(
    ("start", "end", "intervals"),
    [
        (START, START, 1),
        (START, START + timedelta(1), 0),
        (START.replace(tzinfo=None), START, 1),
        (START, TIMES[1], 201),
    ],
)
def test_other_times_are_refused(start: datetime, end: datetime, intervals: int):
    with pytest.raises(InvalidRequestError):
        interval_times(start, end, intervals)


def test_skew_counts_bytes_for_the_width_of_the_range():
    even = measures(SegmentMeasure(0, 0.0, 0.75, (300, 0), True), SegmentMeasure(1, 0.75, 1.0, (50, 50), True))
    assert even.skew == pytest.approx(1.0)
    hot = measures(SegmentMeasure(0, 0.0, 0.75, (0, 0), True), SegmentMeasure(1, 0.75, 1.0, (50, 50), True))
    assert hot.skew == pytest.approx(4.0)
    assert hot.bytes_written == (50, 50)
    assert measures(SegmentMeasure(0, 0.0, 1.0, (9, 9), False)).skew is None


class Tags(HTMLParser):
    """The tags of a page, and the texts that name something from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere():
    hostile = '<script>alert("x")</script>'
    shares = FieldShares(hostile, ((hostile, 3), (None, 1)), 4, quarantined=2)
    lags = (Lag("subscriber", hostile, 12), Lag("reader group", "g", 5_000_000, 7, 3.0))
    told = StreamMeasures(hostile, hostile, TIMES, (SegmentMeasure(2**32 + 1, 0.0, 1.0, (36_000_000, 0), True),), lags,
                          (f"subscriber {hostile}: gone",))  # fmt: skip
    page = report_html(told, shares)
    tags = Tags(page)
    assert tags.open == []
    assert tags.links == []
    assert "script" not in tags.tags
    assert "url(" not in page
    assert "@import" not in page
    for text in ("1.1", "10.0 kB/s", "36.0 MB", "5.0 MB", "75.0%", "2 are not JSON objects"):
        assert text in page, text


def test_a_stream_without_data_has_a_page():
    page = report_html(measures())
    assert "Nothing was written" in page
    assert "no subscribers" in page


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (3e15, "3000.0 TB")]
)
def test_sizes_have_units(size: float, text: str):
    assert size_text(size) == text


def test_a_stream_is_measured_across_a_scale(headrace_client: Headrace, headrace_scope: str):
    headrace, admin = headrace_client, headrace_client.admin
    admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(1))
    admin.subscribers.register(headrace_scope, "orders", "billing")
    start = datetime.now(UTC) - timedelta(minutes=1)
    with headrace.writer(headrace_scope, "orders") as writer:
        writer.write_batch([b"x" * 92] * 10, "one key")
        writer.flush()
        admin.scale_stream(headrace_scope, "orders", seal=[0], ranges=[(0.0, 0.5), (0.5, 1.0)])
        writer.write_batch([b"x" * 92] * 5, "one key")
        writer.flush()
    times = interval_times(start, datetime.now(UTC) + timedelta(minutes=1), 2)
    told = measure_stream(headrace, headrace_scope, "orders", times)
    by_size = {segment.total_bytes: segment.is_active for segment in told.segments}
    assert by_size == {1000: False, 500: True, 0: True}
    assert sum(told.bytes_written) == 1500
    assert told.skew == pytest.approx(2.0)
    assert told.lags == (Lag("subscriber", "billing", 1500),)
    assert told.unmeasured == ()
