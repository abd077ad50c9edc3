"""`headrace group lag`: how far a reader group is behind the tails of its streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import GroupName, ScopedName
from headrace.cli.quantities import duration_text, rate_text, size_text
from headrace.cli.session import Session
from headrace.cli.watching import INTERVAL_S_DEFAULT, Interval, Times, watch
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.reader_groups import RetentionMode

if TYPE_CHECKING:
    from headrace.client import GroupLag, ReaderGroup

NO_STATE = "group_state_not_found"
"""The code of the error for a group that no reader has joined."""


class Lag(NamedTuple):
    """What a group has not read of one stream. None: not known. `updated_ms` is when it published its position."""

    stream: ScopedName
    bytes: int | None
    events: int | None = None
    events_are_estimated: bool | None = None
    updated_ms: int | None = None


def add_to(app: typer.Typer) -> None:
    """Adds the action to the application of reader groups."""
    action(
        app, "lag", examples=["headrace group lag shop/billing", "headrace group lag shop/billing --watch --interval 5"]
    )(lag)


def lag(
    session: Session,
    group: GroupName,
    watching: Annotated[bool, typer.Option("--watch", help="show the lag again and again, until Ctrl-C")] = False,
    interval: Interval = INTERVAL_S_DEFAULT,
    times: Times = None,
) -> Outcome | None:
    """Show how many bytes and events of each stream a reader group has not read.

    The position is that of the readers: their last checkpoint, in the group's own stream. It is read from the segment
    stores directly. "about" marks a number of events that is an estimate: the bytes divided by the mean size of the
    segment's events.

    For a group that no reader has joined, or if the stores cannot be reached, it is the position that the group has
    published for retention. There are no numbers of events then, and a group with --retention none has no lag.
    """
    samples = _Samples(session, group)
    if not watching and times is None:
        return samples.take()
    watch(session, samples.take, interval, times)
    return None


class _Samples:
    """Lags of one group, with their change since the last sample."""

    def __init__(self, session: Session, group: ScopedName) -> None:
        self._session = session
        self._group = group
        self._opened: ReaderGroup | None = None
        self._unreachable = False
        self._last: dict[ScopedName, tuple[float, int]] = {}

    def take(self) -> Outcome:
        configuration = self._session.client.admin.reader_groups.get(*self._group).configuration
        told = self._of_readers()
        if told is not None:
            return self._shown(told, [_of_stream(told, name) for name in told.bytes_by_stream])
        lags = [self._published(ScopedName(one.scope, one.stream)) for one in configuration.streams]
        notes = []
        if self._unreachable:
            notes.append("the segment stores cannot be reached: these are published positions")
        if configuration.retention is RetentionMode.NONE:
            notes.append(f"{self._group} publishes no positions: its retention is none")
        return self._shown(None, lags, notes)

    def _of_readers(self) -> GroupLag | None:
        """The lag of the group's readers; None if no reader has joined, or if the stores cannot be reached."""
        if self._unreachable:
            return None
        try:
            if self._opened is None:
                self._opened = self._session.client.reader_group(
                    *self._group, initialize=False, give_up_after_s=self._session.retry_s
                )
            return self._opened.lag()
        except NotFoundError as error:
            if error.specific_code != NO_STATE:
                raise
            return None
        except UnavailableError:
            self._unreachable = True
            return None

    def _published(self, stream: ScopedName) -> Lag:
        admin = self._session.client.admin
        try:
            found = admin.subscribers.get(*stream, str(self._group))
        except NotFoundError:
            return Lag(stream, None)
        return Lag(stream, admin.stream_cut_distance(*stream, from_cut=found.offsets), updated_ms=found.updated_ms)

    def _shown(self, told: GroupLag | None, lags: list[Lag], notes: Sequence[str] = ()) -> Outcome:
        known = [one.bytes for one in lags if one.bytes is not None]
        document = {
            "scope": self._group.scope,
            "readerGroup": self._group.name,
            "source": "published" if told is None else "readers",
            "lagBytes": sum(known) if len(known) == len(lags) else None,
            "lagEvents": None if told is None else told.events_unread,
            "lagEventsEstimated": None if told is None else told.events_are_estimated,
            "lagSeconds": None if told is None else told.seconds,
            "streams": [
                {
                    "scope": one.stream.scope,
                    "stream": one.stream.name,
                    "lagBytes": one.bytes,
                    "lagEvents": one.events,
                    "lagEventsEstimated": one.events_are_estimated,
                    "updatedMs": one.updated_ms,
                }
                for one in lags
            ],
            "segments": None if told is None else _segments(told),
        }
        changes = [self._change(one) for one in lags]
        columns: tuple[str, ...] = ("STREAM", "LAG", "POSITION OF" if told is None else "EVENTS")
        rows: list[tuple[Any, ...]] = [_row(one, is_published=told is None) for one in lags]
        if any(change for change, _ in changes):
            columns += ("CHANGE", "EMPTY IN")
            rows = [row + change for row, change in zip(rows, changes, strict=True)]
        details = [("note", note) for note in notes]
        if told is not None and told.seconds is not None:
            behind = f"{duration_text(told.seconds)} behind" if told.seconds else "less than half a minute behind"
            details.append(("slowest reader", behind))
        return Outcome(document, columns, rows, details=details)

    def _change(self, one: Lag) -> tuple[str | None, str | None]:
        """The change of the lag per second, and when the lag is zero if that goes on."""
        if one.bytes is None:
            return None, None
        now_s = time.monotonic()
        last = self._last.get(one.stream)
        self._last[one.stream] = (now_s, one.bytes)
        if last is None or now_s <= last[0]:
            return None, None
        bytes_per_s = (one.bytes - last[1]) / (now_s - last[0])
        change = f"{'-' if bytes_per_s < 0 else '+'}{rate_text(abs(bytes_per_s))}"
        return change, duration_text(one.bytes / -bytes_per_s) if bytes_per_s < 0 else None


def _of_stream(told: GroupLag, name: str) -> Lag:
    scope, _, stream = name.partition("/")
    segments = [one for one in told.segments if (one.segment.scope, one.segment.stream) == (scope, stream)]
    return Lag(
        ScopedName(scope, stream),
        told.bytes_by_stream[name],
        told.events_by_stream[name],
        any(one.events_are_estimated for one in segments),
    )


def _segments(told: GroupLag) -> list[dict[str, Any]]:
    return [
        {
            "scope": one.segment.scope,
            "stream": one.segment.stream,
            "segmentId": one.segment.segment_id,
            "lagBytes": one.bytes_unread,
            "lagEvents": one.events_unread,
            "lagEventsEstimated": one.events_are_estimated,
        }
        for one in told.segments
    ]


def _row(one: Lag, *, is_published: bool) -> tuple[Any, ...]:
    if one.bytes is None:
        return (str(one.stream), "not known", None)
    if is_published:
        return (str(one.stream), size_text(one.bytes), None if one.updated_ms is None else time_text(one.updated_ms))
    return (str(one.stream), size_text(one.bytes), f"{'about ' if one.events_are_estimated else ''}{one.events}")
