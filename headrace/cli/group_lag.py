"""`headrace group lag`: how far a reader group is behind the tails of its streams."""

from __future__ import annotations

import time
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import GroupName, ScopedName
from headrace.cli.quantities import duration_text, rate_text, size_text
from headrace.cli.session import Session
from headrace.cli.watching import INTERVAL_S_DEFAULT, Interval, Times, watch
from headrace.model.errors import NotFoundError
from headrace.model.reader_groups import RetentionMode


class Lag(NamedTuple):
    """The bytes between the position that a group has published and the tail. None: it has published none."""

    stream: ScopedName
    bytes: int | None
    updated_ms: int | None


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
    """Show how many bytes of each stream a reader group has not read.

    The position is the one that the group has published for retention, so a group with --retention none has no lag
    here. With --retention automatic it is published at each checkpoint.
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
        self._last: dict[ScopedName, tuple[float, int]] = {}

    def take(self) -> Outcome:
        admin = self._session.client.admin
        configuration = admin.reader_groups.get(*self._group).configuration
        lags = [self._of_stream(ScopedName(one.scope, one.stream)) for one in configuration.streams]
        known = [one.bytes for one in lags if one.bytes is not None]
        document = {
            "scope": self._group.scope,
            "readerGroup": self._group.name,
            "lagBytes": sum(known) if len(known) == len(lags) else None,
            "streams": [
                {
                    "scope": one.stream.scope,
                    "stream": one.stream.name,
                    "lagBytes": one.bytes,
                    "updatedMs": one.updated_ms,
                }
                for one in lags
            ],
        }
        rows = [self._row(one) for one in lags]
        columns: tuple[str, ...] = ("STREAM", "LAG", "POSITION OF", "CHANGE", "EMPTY IN")
        if not any(row[3] for row in rows):
            columns, rows = columns[:3], [row[:3] for row in rows]
        details = []
        if configuration.retention is RetentionMode.NONE:
            details.append(("note", f"{self._group} publishes no positions: its retention is none"))
        return Outcome(document, columns, rows, details=details)

    def _of_stream(self, stream: ScopedName) -> Lag:
        admin = self._session.client.admin
        try:
            found = admin.subscribers.get(*stream, str(self._group))
        except NotFoundError:
            return Lag(stream, None, None)
        return Lag(stream, admin.stream_cut_distance(*stream, from_cut=found.offsets), found.updated_ms)

    def _row(self, one: Lag) -> tuple[Any, ...]:
        if one.bytes is None or one.updated_ms is None:
            return (str(one.stream), "not known", None, None, None)
        now_s = time.monotonic()
        last = self._last.get(one.stream)
        self._last[one.stream] = (now_s, one.bytes)
        change = ends = None
        if last is not None and now_s > last[0]:
            bytes_per_s = (one.bytes - last[1]) / (now_s - last[0])
            change = f"{'-' if bytes_per_s < 0 else '+'}{rate_text(abs(bytes_per_s))}"
            ends = duration_text(one.bytes / -bytes_per_s) if bytes_per_s < 0 else None
        return (str(one.stream), size_text(one.bytes), time_text(one.updated_ms), change, ends)
