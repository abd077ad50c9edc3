"""Times, sizes and durations, as people write and read them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.quantities import BYTES_MAX, duration_text, parse_size, rate_text, size_text
from headrace.cli.times import parse_point, parse_time
from headrace.model.errors import InvalidRequestError

NOW = datetime(2026, 11, 23, 0, 30, tzinfo=timezone(timedelta(hours=1)))
MOMENTS = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def _local(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=NOW.tzinfo)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:15", _local(2026, 11, 23, 0, 15)),
        ("00:30", _local(2026, 11, 23, 0, 30)),
        ("23:50", _local(2026, 11, 22, 23, 50)),
        ("10:05:30.5", _local(2026, 11, 22, 10, 5, 30, 500_000)),
        ("2026-11-20", _local(2026, 11, 20)),
        ("2026-11-20T10:05", _local(2026, 11, 20, 10, 5)),
        ("-5m", _local(2026, 11, 23, 0, 25)),
        ("-1d12h", _local(2026, 11, 21, 12, 30)),
        ("-1500ms", _local(2026, 11, 23, 0, 29, 58, 500_000)),
    ],
)
def test_times_in_the_zone_of_now(text: str, expected: datetime):
    assert parse_time(text, NOW) == parse_point(text, NOW) == expected


def test_a_time_with_a_zone_keeps_it():
    assert parse_time("2026-11-20T10:05:30Z", NOW) == datetime(2026, 11, 20, 10, 5, 30, tzinfo=UTC)
    assert parse_time("2026-11-20 10:05+02:00", NOW) == datetime(2026, 11, 20, 8, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "5m",
        "-5",
        "-5x",
        "10",
        "25:00",
        "10:60",
        "10:5",
        "1:2:3",
        "2026-13-01",
        "2026-11-20T",
        "-999999d",
        "now",
    ],
)
def test_other_text_is_no_time(text: str):
    with pytest.raises(InvalidRequestError):
        parse_time(text, NOW)


def test_a_point_is_an_end_a_time_or_a_cut():
    assert [parse_point(text, NOW) for text in ("earliest", "HEAD", "latest", "tail")] == [
        "head",
        "head",
        "tail",
        "tail",
    ]
    assert parse_point("0@0:11", NOW) == {0: 11}
    assert parse_point("0@0:-1", NOW) == {0: -1}, "the end of a sealed segment"
    assert parse_point("0:11,2@1:5", NOW) == {0: 11, 1 << 32 | 2: 5}
    assert parse_point("0:11", NOW) == NOW.replace(hour=0, minute=11)
    with pytest.raises(InvalidRequestError, match="earliest, latest"):
        parse_point("0@0:-2", NOW)


@given(now=MOMENTS, moment=MOMENTS)
def test_every_time_that_iso_writes_is_read(now: datetime, moment: datetime):
    assert parse_time(moment.isoformat(), now) == moment
    assert parse_time(moment.replace(tzinfo=None).isoformat(), now) == moment
    found = parse_time(moment.strftime("%H:%M:%S"), now)
    assert found <= now < found + timedelta(days=1)
    assert found.time() == moment.time().replace(microsecond=0)


@given(now=MOMENTS, counts=st.fixed_dictionaries({unit: st.integers(0, 999) for unit in UNITS}))
def test_a_time_before_now_adds_its_units(now: datetime, counts: dict[str, int]):
    text = "-" + "".join(f"{counts[unit]}{unit}" for unit in UNITS)
    assert parse_time(text, now) == now - timedelta(seconds=sum(UNITS[unit] * count for unit, count in counts.items()))


@given(text=st.text(max_size=30) | st.from_regex(r"-?[0-9:.TZ@,+dhms-]{0,20}"))
def test_any_text_is_read_or_refused_clearly(text: str):
    for parse in (lambda: parse_point(text, NOW), lambda: parse_time(text, NOW), lambda: parse_size(text)):
        with suppress(InvalidRequestError):
            parse()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("64kB", 64_000), ("4MiB", 4 << 20), ("1.5 k", 1_500), ("2g", 2_000_000_000), ("7b", 7)],
)
def test_sizes(text: str, expected: int):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0001kB", "1 2", "4 mibs", "9223372036854775808", "10000PB", "٣"])
def test_other_text_is_no_size(text: str):
    with pytest.raises(InvalidRequestError):
        parse_size(text)


@given(size=st.integers(0, BYTES_MAX // 2))
def test_a_size_is_read_back_nearly(size: int):
    assert parse_size(str(size)) == size
    shown = size_text(size)
    assert len(shown.split()[0].split(".")[0]) <= 3 or shown.endswith("PB")
    read = parse_size(shown)
    assert abs(read - size) <= max(1, size * 0.051)


def test_rates_and_durations():
    assert [size_text(size) for size in (0, 999, 1_000, 999_950, 1_234_567)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.0 MB",
        "1.2 MB",
    ]
    assert rate_text(1_500) == "1.5 kB/s"
    assert [duration_text(one) for one in (0, 59.4, 60, 65, 3_600, 3_661, 90_000, 604_800, -5)] == [
        "0 s", "59 s", "1 min", "1 min 5 s", "1 h", "1 h 1 min", "1 d 1 h", "7 d", "0 s",
    ]  # fmt: skip
