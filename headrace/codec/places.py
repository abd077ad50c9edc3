"""Places of a stream as people name them: an end, a time of day, a date, a time before now, or a stream cut.

The Python client, the command line and the Spark options parse them here, so that the words are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import Final, Literal

from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_TIME_MS_MIN
from headrace.model.segments import segment_epoch, segment_id, segment_number
from headrace.model.stream_cuts import END_OF_SEGMENT

INT64_MAX: Final = (1 << 63) - 1

Tell = Callable[[str], object]
"""Takes a sentence for the user."""


def tell_nothing(_: str) -> None:
    """For callers that have no user."""


# Numbers, segments and stream cuts.


def parse_number(text: str) -> int:
    """Accepts only ASCII digits: `int` also accepts blanks, underscores and the digits of other scripts."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= INT64_MAX):
        raise InvalidRequestError(f"{text[:100]!a} is not a number from 0 to {INT64_MAX}")
    return int(text)


def parse_segment(text: str) -> int:
    """Parses `NUMBER@EPOCH`, as tables show a segment, or the id, as JSON has it."""
    number, at, epoch = text.partition("@")
    return segment_id(parse_number(epoch), parse_number(number)) if at else parse_number(text)


def segment_text(identifier: int) -> str:
    """A segment for people: its number and the epoch in which it began."""
    return f"{segment_number(identifier)}@{segment_epoch(identifier)}"


def parse_cut(text: str) -> dict[int, int]:
    """Parses `SEGMENT:OFFSET,...`, or the text form that Pravega's clients and `headrace stream cut` return.

    The offset -1 is the end of a sealed segment.
    """
    if ":" not in text:
        return parse_stream_cut_text(text).offsets
    pairs = [pair.partition(":") for pair in text.split(",")]
    offsets = {
        parse_segment(segment): END_OF_SEGMENT if offset == str(END_OF_SEGMENT) else parse_number(offset)
        for segment, _, offset in pairs
    }
    if len(offsets) != len(pairs):
        raise InvalidRequestError("the stream cut names a segment twice")
    return offsets


# The time zone of this machine, with its changes to and from summer time.


class LocalZone(tzinfo):
    """The zone of this machine, for any date.

    `datetime.now().astimezone()` has only the difference to UTC of this moment, which is wrong on the other side of a
    change to or from summer time.
    """

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, dt: datetime) -> datetime:
        utc = dt.replace(tzinfo=UTC)
        local = utc.astimezone().replace(tzinfo=None)
        is_second = local.astimezone(UTC) != utc  # clocks that are set back show an hour twice
        return local.replace(tzinfo=self, fold=int(is_second))


def moment_of(local: datetime, zone: tzinfo | None, tell: Tell) -> datetime:
    """The moment, in UTC, at which clocks of `zone` show `local`, which has no zone of its own.

    Clocks that are set back show an hour twice: the first one is taken. Clocks that are set forward leave out an hour:
    a time in it is taken as if they were set later. `tell` gets a sentence in both cases.

    Raises:
        OverflowError, ValueError: a time that no calendar has.
    """
    first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first < second:
        tell(
            f"clocks showed {local} twice: the first time is taken, {_with_offset(local, first)}; the second is "
            f"{_with_offset(local, second)}"
        )
    elif first > second:
        tell(f"clocks were set forward and never showed {local}: {_with_offset(local, first)} is taken")
    return first


def _with_offset(local: datetime, moment: datetime) -> str:
    """`local` with its difference to UTC, so that it can be written on a command line without doubt."""
    return local.replace(tzinfo=timezone(local - moment.replace(tzinfo=None))).isoformat()


# Places.

TIME_HELP = "10:05, 2026-11-23T10:05:30Z, -5m"
PLACE_HELP = f"earliest, latest, a time ({TIME_HELP}), or a stream cut"

End = Literal["earliest", "latest"]
ParsedPlace = End | datetime | dict[int, int]
"""An end of the stream, a time with its time zone, or the offsets of a stream cut by segment id."""

_ENDS: Final[dict[str, End]] = {"earliest": "earliest", "latest": "latest"}
OLD_ENDS: Final[dict[str, End]] = {"head": "earliest", "tail": "latest"}
"""The words of releases before 0.3. They work for one release, with a notice."""

_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)
_BEFORE = re.compile(r"-(?=\d)(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def old_end_notice(word: str) -> str:
    """The notice for an old word."""
    return f"`{word}` is `{OLD_ENDS[word]}` now; the old word works until release 0.4"


def parse_place(text: str, now: datetime, tell: Tell = tell_nothing) -> ParsedPlace:
    """Parses an end, a time or a stream cut.

    `10:05` is a time of day. A stream cut of one segment with a plain id is written as the tables show it: `10@0:05`.

    Raises:
        InvalidRequestError: it is something else.
    """
    word = text.lower()
    if word in OLD_ENDS:
        tell(old_end_notice(word))
    end = _ENDS.get(word) or OLD_ENDS.get(word)
    if end is not None:
        return end
    moment = _time(text, now, tell)
    if moment is not None:
        return moment
    try:
        return parse_cut(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{text[:100]!a} is not {PLACE_HELP}") from error


def parse_time(text: str, now: datetime, tell: Tell = tell_nothing) -> datetime:
    """Parses a time; the result is in UTC. Without a time zone it has the one of `now`, with its summer time.

    A time of day is the last such time before now: `23:50` shortly after midnight is yesterday's. `tell` gets a
    sentence if clocks showed the time twice or never.

    Raises:
        InvalidRequestError: it is not a time, or no calendar has it.
    """
    moment = _time(text, now, tell)
    if moment is None:
        raise InvalidRequestError(f"{text[:100]!a} is not a time: expected for example {TIME_HELP}")
    return moment


def is_time_without_date(text: str) -> bool:
    """Whether the text is a time of day, as `10:05`, or a time before now, as `-5m`."""
    return _TIME_OF_DAY.fullmatch(text) is not None or _BEFORE.fullmatch(text) is not None


def parse_time_ms(text: str) -> int:
    """Parses a time in milliseconds since 1970. Small numbers, such as 0, are before all events.

    Raises:
        InvalidRequestError: it is not a number, or one that is a time of today only in seconds.
    """
    time_ms = parse_number(text)
    if time_ms < EVENT_TIME_MS_MIN <= time_ms * 1000:
        raise InvalidRequestError(
            f"{text} is a time before 2001, since such times are in milliseconds. If it is in seconds, append three "
            f"zeros: {text}000"
        )
    return time_ms


def _time(text: str, now: datetime, tell: Tell) -> datetime | None:
    try:
        return _time_of_day(text, now, tell) or _time_before(text, now) or _date(text, now, tell)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{text[:100]!a} is not a time: {error}") from error


def _time_of_day(text: str, now: datetime, tell: Tell) -> datetime | None:
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    hour, minute, second, fraction = match.groups()
    wanted = time(int(hour), int(minute), int(second or 0), int((fraction or "0").ljust(6, "0")))
    # The days are those of the calendar. A day on which clocks change has 23 or 25 hours.
    today = datetime.combine(now.date(), wanted)
    is_today = moment_of(today, now.tzinfo, tell_nothing) <= now.astimezone(UTC)
    return moment_of(today if is_today else today - timedelta(days=1), now.tzinfo, tell)


def _time_before(text: str, now: datetime) -> datetime | None:
    match = _BEFORE.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (int(part or 0) for part in match.groups())
    before = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    return now.astimezone(UTC) - before  # in UTC, since a difference of local times counts what clocks show


def _date(text: str, now: datetime, tell: Tell) -> datetime | None:
    if _DATE.match(text) is None:
        return None
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment_of(moment, now.tzinfo, tell)
