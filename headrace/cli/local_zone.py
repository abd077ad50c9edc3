"""The time zone of this machine, with its changes to and from summer time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

Tell = Callable[[str], object]
"""Takes a sentence for the user."""


def tell_nothing(_: str) -> None:
    """For callers that have no user."""


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


def local_now() -> datetime:
    """Now, in the time zone of this machine."""
    return datetime.now(LocalZone())


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
