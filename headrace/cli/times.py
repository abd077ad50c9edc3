"""Points of a stream as people name them: a time of day, a date, a time before now, a stream cut, an end."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

import typer

from headrace.cli.parameters import parse_cut
from headrace.model.errors import InvalidRequestError

TIME_HELP = "10:05, 2026-11-23T10:05:30Z, -5m"
POINT_HELP = f"earliest, latest, a time ({TIME_HELP}), or a stream cut"

End = Literal["head", "tail"]
Point = End | datetime | dict[int, int]
"""An end of the stream, a time with its time zone, or the offsets of a stream cut by segment id."""

_ENDS: dict[str, End] = {"earliest": "head", "head": "head", "latest": "tail", "tail": "tail"}
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)
_BEFORE = re.compile(r"-(?=\d)(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_point(text: str, now: datetime) -> Point:
    """Parses an end, a time or a stream cut.

    `10:05` is a time of day. A stream cut of one segment with a plain id is written as the tables show it: `10@0:05`.

    Raises:
        InvalidRequestError: it is something else.
    """
    end = _ENDS.get(text.lower())
    if end is not None:
        return end
    time = _time(text, now)
    if time is not None:
        return time
    try:
        return parse_cut(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{text[:100]!a} is not {POINT_HELP}") from error


def parse_time(text: str, now: datetime) -> datetime:
    """Parses a time. Without a time zone it has the one of `now`.

    A time of day is the last such time before `now`: `23:50` shortly after midnight is yesterday's.

    Raises:
        InvalidRequestError: it is not a time, or no calendar has it.
    """
    time = _time(text, now)
    if time is None:
        raise InvalidRequestError(f"{text[:100]!a} is not a time: expected for example {TIME_HELP}")
    return time


def local_now() -> datetime:
    """Now, in the time zone of this machine."""
    return datetime.now().astimezone()


def _checked(parse: Callable[[str, datetime], Point]) -> Callable[[str], Point]:
    def convert(text: str) -> Point:
        try:
            return parse(text, local_now())
        except InvalidRequestError as error:
            raise typer.BadParameter(error.message) from error

    return convert


point = _checked(parse_point)
moment = _checked(parse_time)


def _time(text: str, now: datetime) -> datetime | None:
    try:
        return _time_of_day(text, now) or _time_before(text, now) or _date(text, now)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{text[:100]!a} is not a time: {error}") from error


def _time_of_day(text: str, now: datetime) -> datetime | None:
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        return None
    hour, minute, second, fraction = found.groups()
    microsecond = int((fraction or "0").ljust(6, "0"))
    time = now.replace(hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=microsecond)
    return time if time <= now else time - timedelta(days=1)


def _time_before(text: str, now: datetime) -> datetime | None:
    found = _BEFORE.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (int(part or 0) for part in found.groups())
    return now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)


def _date(text: str, now: datetime) -> datetime | None:
    if _DATE.match(text) is None:
        return None
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=now.tzinfo)
