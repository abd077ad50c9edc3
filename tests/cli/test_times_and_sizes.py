"""Times, sizes and durations, as people write and read them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.adapters.system_clock import local_now
from headrace.cli import parameters, segment
from headrace.cli.quantities import BYTES_MAX, duration_text, parse_size, rate_text, size_text
from headrace.codec.places import LocalZone, parse_place, parse_time, parse_time_ms
from headrace.model.errors import InvalidRequestError

NOW = datetime(2026, 11, 23, 0, 30, tzinfo=timezone(timedelta(hours=1)))
MOMENTS = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
BERLIN = ZoneInfo("Europe/Berlin")
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
    assert parse_time(text, NOW) == parse_place(text, NOW) == expected


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
    assert [parse_place(text, NOW) for text in ("earliest", "HEAD", "latest", "tail")] == [
        "earliest",
        "earliest",
        "latest",
        "latest",
    ]
    assert parse_place("0@0:11", NOW) == {0: 11}
    assert parse_place("0@0:-1", NOW) == {0: -1}, "the end of a sealed segment"
    assert parse_place("0:11,2@1:5", NOW) == {0: 11, 1 << 32 | 2: 5}
    assert parse_place("0:11", NOW) == NOW.replace(hour=0, minute=11)
    with pytest.raises(InvalidRequestError, match="earliest, latest"):
        parse_place("0@0:-2", NOW)


@given(now=MOMENTS, moment=MOMENTS)
def test_every_time_that_iso_writes_is_read(now: datetime, moment: datetime):
    assert parse_time(moment.isoformat(), now) == moment
    assert parse_time(moment.replace(tzinfo=None).isoformat(), now) == moment
    parsed = parse_time(moment.strftime("%H:%M:%S"), now)
    assert parsed <= now < parsed + timedelta(days=1)
    assert parsed.time() == moment.time().replace(microsecond=0)


@given(now=MOMENTS, counts=st.fixed_dictionaries({unit: st.integers(0, 999) for unit in UNITS}))
def test_a_time_before_now_adds_its_units(now: datetime, counts: dict[str, int]):
    text = "-" + "".join(f"{counts[unit]}{unit}" for unit in UNITS)
    assert parse_time(text, now) == now - timedelta(seconds=sum(UNITS[unit] * count for unit, count in counts.items()))


@pytest.fixture
def live_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Gives this machine a time zone until the end of the test."""

    def live_in(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield live_in
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        ("2026-01-15T12:00+01:00", "2025-07-01T12:00", "2025-07-01T10:00Z"),
        ("2026-01-15T12:00+01:00", "2025-07-01", "2025-06-30T22:00Z"),
        ("2026-07-01T12:00+02:00", "2026-01-15 12:00:00.5", "2026-01-15T11:00:00.5Z"),
        ("2026-03-29T12:00+02:00", "13:00", "2026-03-28T12:00Z"),
        ("2026-03-29T12:00+02:00", "1:00", "2026-03-29T00:00Z"),
        ("2026-03-30T00:30+02:00", "1:00", "2026-03-29T00:00Z"),
        ("2026-10-25T12:00+01:00", "1:30", "2026-10-24T23:30Z"),
        ("2026-10-25T12:00+01:00", "12:30", "2026-10-24T10:30Z"),
        ("2026-10-26T00:10+01:00", "0:20", "2026-10-24T22:20Z"),
        ("2026-10-25T03:10+01:00", "-2h", "2026-10-25T00:10Z"),
        ("2026-10-25T12:00+01:00", "-1d", "2026-10-24T11:00Z"),
        ("2026-03-29T03:10+02:00", "-30m", "2026-03-29T00:40Z"),
    ],
)
def test_times_on_the_other_side_of_a_clock_change(now: str, text: str, expected: str, live_in: Callable[[str], None]):
    moment = datetime.fromisoformat(now)
    live_in("Europe/Berlin")
    for zone in (BERLIN, LocalZone()):
        told: list[str] = []
        found = parse_time(text, moment.astimezone(zone), told.append)
        assert (found, told) == (datetime.fromisoformat(expected), []), zone
        assert parse_place(text, moment.astimezone(zone)) == found


@pytest.mark.parametrize(
    ("now", "text", "expected", "told"),
    [
        (
            "2026-11-01T12:00+01:00",
            "2026-10-25T02:30",
            "2026-10-25T00:30Z",
            "twice.*02:30:00[+]02:00.*02:30:00[+]01:00",
        ),
        ("2026-10-25T12:00+01:00", "2:30", "2026-10-25T00:30Z", "twice"),
        ("2026-10-25T02:15+01:00", "2:30", "2026-10-25T00:30Z", "twice"),
        ("2026-04-01T12:00+02:00", "2026-03-29T02:30", "2026-03-29T01:30Z", "never.*02:30:00[+]01:00"),
        ("2026-03-29T12:00+02:00", "2:30", "2026-03-29T01:30Z", "never"),
    ],
)
def test_times_that_clocks_show_twice_or_never(
    now: str, text: str, expected: str, told: str, live_in: Callable[[str], None]
):
    moment = datetime.fromisoformat(now)
    live_in("Europe/Berlin")
    for zone in (BERLIN, LocalZone()):
        sentences: list[str] = []
        assert parse_time(text, moment.astimezone(zone), sentences.append) == datetime.fromisoformat(expected)
        assert len(sentences) == 1
        assert re.search(told, sentences[0])


@given(moment=st.datetimes(datetime(1990, 1, 1), datetime(2037, 12, 31)))  # noqa: DTZ001
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_the_local_zone_is_that_of_the_machine(live_in: Callable[[str], None], zone: str, moment: datetime):
    live_in(zone)
    known, found = (moment.replace(tzinfo=UTC).astimezone(timezone) for timezone in (ZoneInfo(zone), LocalZone()))
    assert found.isoformat() == known.isoformat()
    assert (found.tzname(), found.fold) == (known.tzname(), known.fold)
    assert found.astimezone(UTC) == moment.replace(tzinfo=UTC)


def test_every_option_with_a_time_uses_the_local_zone(
    live_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
):
    live_in("Europe/Berlin")
    assert isinstance(local_now().tzinfo, LocalZone)
    for parse in (parameters.place, parameters.moment, segment._place):
        assert parse("2025-07-01T12:00") == datetime(2025, 7, 1, 10, tzinfo=UTC)
        assert parse("2025-01-01T12:00") == datetime(2025, 1, 1, 11, tzinfo=UTC)
        assert capsys.readouterr().err == ""
        assert parse("2025-10-26T02:30") == datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
        assert capsys.readouterr().err.startswith("headrace: clocks showed 2025-10-26 02:30:00 twice")


@pytest.mark.parametrize("seconds", ["978307200", "1700000000", "17000000000"])
def test_seconds_are_not_taken_for_milliseconds(seconds: str):
    with pytest.raises(InvalidRequestError, match=f"in seconds, append three zeros: {seconds}000"):
        parse_time_ms(seconds)
    assert parse_time_ms(f"{seconds}000") == int(seconds) * 1000


@pytest.mark.parametrize("before_all", [0, 1, 978_307_199])
def test_small_times_are_before_all_events(before_all: int):
    assert parse_time_ms(str(before_all)) == before_all


@given(text=st.text(max_size=30) | st.from_regex(r"-?[0-9:.TZ@,+dhms-]{0,20}"))
def test_any_text_is_read_or_refused_clearly(text: str):
    for parse in (lambda: parse_place(text, NOW), lambda: parse_time(text, NOW), lambda: parse_size(text)):
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
    assert [duration_text(seconds) for seconds in (0, 59.4, 60, 65, 3_600, 3_661, 90_000, 604_800, -5)] == [
        "0 s", "59 s", "1 min", "1 min 5 s", "1 h", "1 h 1 min", "1 d 1 h", "7 d", "0 s",
    ]  # fmt: skip
