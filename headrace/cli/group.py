"""`headrace group`: create, list, get, update, reset, delete, lag."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from headrace.api.reader_groups import ReaderGroupView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text, time_text
from headrace.cli.parameters import (
    REQUESTS_AT_ONCE,
    GroupName,
    Long,
    NoWait,
    ScopedName,
    ScopeName,
    checked,
    local_place,
    number,
    parse_scoped_name,
    positive,
    rollover_size_option,
    scoped_name,
)
from headrace.cli.quantities import behind_text, duration_text, rate_text, size_text
from headrace.cli.session import Session
from headrace.cli.watching import INTERVAL_S_DEFAULT, Interval, Times, watch
from headrace.codec.places import PLACE_HELP, TIME_HELP, ParsedPlace, parse_cut, segment_text
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.client import GroupLag, ReaderGroup


app = new_app()


def _reset_place(text: str) -> ParsedPlace | Literal["start", "checkpoint"]:
    word = text.lower()
    if word in ("start", "checkpoint"):
        return "start" if word == "start" else "checkpoint"
    try:
        return local_place(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message.replace(PLACE_HELP, f"start, checkpoint, {PLACE_HELP}")) from error


_MODES = {mode.value.lower().replace("_", "-"): mode for mode in RetentionMode}


class StreamPosition(NamedTuple):
    """A stream cut with the name of its stream."""

    stream: ScopedName
    offsets: dict[int, int]


def _position(text: str) -> StreamPosition:
    """Parses `SCOPE/STREAM=CUT`."""
    name, _, position = text.partition("=")
    return StreamPosition(parse_scoped_name(name), parse_cut(position))


def _mode(text: str) -> RetentionMode:
    if text not in _MODES:
        raise InvalidRequestError(f"{text[:100]!a} is not one of {', '.join(sorted(_MODES))}")
    return _MODES[text]


_STREAM_OPTION = typer.Option(
    "--stream", parser=scoped_name, metavar="SCOPE/STREAM", help="a stream that the group reads; may be repeated"
)
Streams = Annotated[list[ScopedName], _STREAM_OPTION]
OtherStreams = Annotated[list[ScopedName] | None, _STREAM_OPTION]
Starts = Annotated[
    list[StreamPosition] | None,
    typer.Option(
        "--start",
        parser=checked(_position),
        metavar="SCOPE/STREAM=CUT",
        help="where the group starts to read a stream (default: the head)",
    ),
]
Ends = Annotated[
    list[StreamPosition] | None,
    typer.Option(
        "--end",
        parser=checked(_position),
        metavar="SCOPE/STREAM=CUT",
        help="where the group stops reading a stream (default: never)",
    ),
]
Retention = Annotated[
    RetentionMode | None,
    typer.Option(
        parser=checked(_mode),
        metavar="|".join(sorted(_MODES)),
        help="whether retention waits for the group, and for which position",
    ),
]
RefreshMs = Annotated[
    int | None,
    typer.Option("--group-refresh-ms", parser=number, metavar="MS", help="how often readers look for changes"),
]
CheckpointIntervalMs = Annotated[
    int | None,
    typer.Option(
        "--automatic-checkpoint-interval-ms", parser=number, metavar="MS", help="how often readers agree on a position"
    ),
]
CheckpointsMax = Annotated[
    int | None,
    typer.Option(
        "--outstanding-checkpoints-max", parser=positive, metavar="N", help="checkpoints in progress at the same time"
    ),
]
RolloverSize = Annotated[int | None, rollover_size_option("of the group's own stream, for example 4MiB")]


@action(
    app,
    "create",
    examples=["headrace group create shop/billing --stream shop/orders --retention automatic"],
)
def create(
    session: Session,
    group: GroupName,
    streams: Streams,
    starts: Starts = None,
    ends: Ends = None,
    retention: Retention = None,
    refresh_ms: RefreshMs = None,
    checkpoint_interval_ms: CheckpointIntervalMs = None,
    checkpoints_max: CheckpointsMax = None,
    rollover_size: RolloverSize = None,
    group_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="id of the group (default: a random one)")
    ] = None,
    no_wait: NoWait = False,
) -> Outcome:
    """Create a reader group; an existing group is shown unchanged."""
    base = ReaderGroupConfiguration(_group_streams(streams, starts, ends))
    changed = _changed(base, retention, refresh_ms, checkpoint_interval_ms, checkpoints_max, rollover_size)
    return _shown(session.client.admin.reader_groups.create(*group, changed, group_id=group_id, wait=not no_wait))


@action(app, "list", examples=["headrace group list shop", "headrace group list shop --long"])
def list_(session: Session, scope: ScopeName, long: Long = False) -> Outcome:
    """List the reader groups of a scope by name."""
    names = session.client.admin.reader_groups.list(scope)
    if long:
        return _long_list(session, [ScopedName(scope, name) for name in names])
    document = {"readerGroups": [{"scope": scope, "readerGroup": name} for name in names]}
    return Outcome(document, ("READER GROUP",), [(f"{scope}/{name}",) for name in names])


def _long_list(session: Session, groups: list[ScopedName]) -> Outcome:
    """The groups with their streams and lags, which need several requests for each."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        views = list(pool.map(lambda group: session.client.admin.reader_groups.get(*group), groups))
        lags = list(pool.map(lambda group: _Samples(session, group).take().document["lagBytes"], groups))
    streams = [[f"{stream.scope}/{stream.stream}" for stream in view.configuration.streams] for view in views]
    document = {
        "readerGroups": [
            {"scope": view.scope, "readerGroup": view.group, "state": view.state, "streams": read, "lagBytes": lag}
            for view, read, lag in zip(views, streams, lags, strict=True)
        ]
    }
    rows = [
        (f"{view.scope}/{view.group}", state_text(view.state), read, None if lag is None else size_text(lag))
        for view, read, lag in zip(views, streams, lags, strict=True)
    ]
    return Outcome(document, ("READER GROUP", "STATE", "STREAMS", "LAG"), rows)


@action(app, "get", examples=["headrace group get shop/billing"])
def get(session: Session, group: GroupName) -> Outcome:
    """Show a reader group: state, generation, configuration."""
    return _shown(session.client.admin.reader_groups.get(*group))


@action(app, "update", examples=["headrace group update shop/billing --retention manual"])
def update(
    session: Session,
    group: GroupName,
    streams: OtherStreams = None,
    starts: Starts = None,
    ends: Ends = None,
    retention: Retention = None,
    refresh_ms: RefreshMs = None,
    checkpoint_interval_ms: CheckpointIntervalMs = None,
    checkpoints_max: CheckpointsMax = None,
    rollover_size: RolloverSize = None,
    no_wait: NoWait = False,
) -> Outcome:
    """Change a reader group; options that are not given keep their values."""
    known = session.client.admin.reader_groups.get(*group)
    base = known.configuration
    if streams or starts or ends:
        base = replace(base, streams=_group_streams(streams or (), starts, ends))
    changed = _changed(base, retention, refresh_ms, checkpoint_interval_ms, checkpoints_max, rollover_size)
    return _shown(session.client.admin.reader_groups.update(known, changed, wait=not no_wait))


@action(
    app,
    "reset",
    examples=["headrace group reset shop/billing", "headrace group reset shop/billing --to -1h"],
)
def reset(
    session: Session,
    group: GroupName,
    to: Annotated[
        Any,
        typer.Option(
            parser=checked(_reset_place),
            metavar="PLACE",
            help="where the group begins again: start (its start cuts), checkpoint, earliest, latest, or a time "
            f"({TIME_HELP}) (default start)",
            show_default=False,
        ),
    ] = "start",
    record_only: Annotated[
        bool,
        typer.Option(
            "--record-only",
            help="reset the controller's record only, which readers of Headrace's clients do not follow",
        ),
    ] = False,
    no_wait: NoWait = False,
) -> Outcome:
    """Move a group and its readers to its start cuts, its last checkpoint, or the head or tail of its streams.

    Readers that are open drop what they have not returned, and continue there. The group's own stream is written, so
    the segment stores must be reachable. For a group that no reader has joined, and with --record-only, only the
    controller's record changes. That moves the group to its start cuts and increments its generation.
    """
    if isinstance(to, dict):
        raise typer.BadParameter(
            "--to is not a stream cut, since a group may have several streams: see group update --start"
        )
    if no_wait and not record_only:
        raise InvalidRequestError("--no-wait needs --record-only: readers begin again after the record has changed")
    if record_only and to != "start":
        raise InvalidRequestError("--record-only moves a group to its start cuts: --to has no other value with it")
    groups = session.client.admin.reader_groups
    if not record_only:
        try:
            opened = session.client.reader_group(*group, initialize=False, give_up_after_s=session.retry_s)
        except NotFoundError as error:
            if error.specific_code != NO_STATE or to != "start":
                raise
        else:
            opened.reset(to)
            return _shown(groups.get(*group))
    return _shown(groups.reset(groups.get(*group), wait=not no_wait))


@action(app, "delete", examples=["headrace group delete shop/billing"])
def delete(session: Session, group: GroupName, no_wait: NoWait = False) -> Outcome:
    """Delete a reader group."""
    groups = session.client.admin.reader_groups
    groups.delete(groups.get(*group), wait=not no_wait)
    document = {"scope": group.scope, "readerGroup": group.name, "deleted": not no_wait}
    return Outcome(document, text=f"reader group {group} is {'being ' if no_wait else ''}deleted")


def _document(view: ReaderGroupView) -> dict[str, Any]:
    configuration = view.configuration
    return {
        "scope": view.scope,
        "readerGroup": view.group,
        "id": view.group_id,
        "generation": view.generation,
        "state": view.state,
        "stateStream": view.state_stream,
        "retention": configuration.retention.value,
        "groupRefreshMs": configuration.group_refresh_ms,
        "automaticCheckpointIntervalMs": configuration.automatic_checkpoint_interval_ms,
        "outstandingCheckpointsMax": configuration.outstanding_checkpoints_max,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
        "streams": [
            {"scope": stream.scope, "stream": stream.stream, "from": _offsets(stream.start), "to": _offsets(stream.end)}
            for stream in configuration.streams
        ],
    }


def _shown(view: ReaderGroupView) -> Outcome:
    configuration = view.configuration
    details = [
        ("reader group", f"{view.scope}/{view.group}"),
        ("state", state_text(view.state)),
        ("streams", [_stream_text(stream) for stream in configuration.streams]),
        ("retention", f"waits for the group: {configuration.retention.value.lower()}"),
        ("refresh", f"every {configuration.group_refresh_ms} ms"),
        (
            "checkpoints",
            f"every {configuration.automatic_checkpoint_interval_ms} ms, "
            f"up to {configuration.outstanding_checkpoints_max} at the same time",
        ),
        ("rollover", size_text(configuration.rollover_size_bytes)),
        ("state stream", view.state_stream),
        ("generation", view.generation),
        ("id", view.group_id),
    ]
    return Outcome(_document(view), details=details)


def _stream_text(stream: GroupStream) -> str:
    start = f" from {_cut_text(stream.start)}" if stream.start else ""
    end = f" to {_cut_text(stream.end)}" if stream.end else ""
    return f"{stream.scope}/{stream.stream}{start}{end}"


def _cut_text(position: StreamCut) -> str:
    return ",".join(f"{segment_text(segment)}:{offset}" for segment, offset in position.positions)


def _offsets(position: StreamCut | None) -> dict[str, int] | None:
    return None if position is None else {str(segment): offset for segment, offset in position.positions}


def _group_streams(
    streams: Sequence[ScopedName], starts: Sequence[StreamPosition] | None, ends: Sequence[StreamPosition] | None
) -> tuple[GroupStream, ...]:
    first, last = dict(starts or ()), dict(ends or ())
    unknown = {*first, *last} - set(streams)
    if unknown:
        raise InvalidRequestError(
            f"--start or --end names {min(map(str, unknown))}, which is not a stream of the group"
        )
    return tuple(GroupStream(*name, _cut(name, first.get(name)), _cut(name, last.get(name))) for name in streams)


def _cut(name: ScopedName, offsets: dict[int, int] | None) -> StreamCut | None:
    return None if offsets is None else StreamCut.of(name.scope, name.name, offsets)


def _changed(
    base: ReaderGroupConfiguration,
    retention: RetentionMode | None,
    refresh_ms: int | None,
    checkpoint_interval_ms: int | None,
    checkpoints_max: int | None,
    rollover_size_bytes: int | None,
) -> ReaderGroupConfiguration:
    wanted: dict[str, Any] = {
        "retention": retention,
        "group_refresh_ms": refresh_ms,
        "automatic_checkpoint_interval_ms": checkpoint_interval_ms,
        "outstanding_checkpoints_max": checkpoints_max,
        "rollover_size_bytes": rollover_size_bytes,
    }
    return replace(base, **{name: value for name, value in wanted.items() if value is not None})


NO_STATE = "group_state_not_found"
"""The code of the error for a group that no reader has joined."""


class Lag(NamedTuple):
    """What a group has not read of one stream. None: not known. `updated_ms` is when it published its position."""

    stream: ScopedName
    bytes: int | None
    events: int | None = None
    events_are_estimated: bool | None = None
    updated_ms: int | None = None


@action(
    app, "lag", examples=["headrace group lag shop/billing", "headrace group lag shop/billing --watch --interval 5"]
)
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
    published for retention, or where its first reader begins. There are no numbers of events then.
    """
    samples = _Samples(session, group)
    if not watching and times is None:
        return samples.take()
    watch(session, samples.take, interval, times)
    return None


@action(app, "describe", examples=["headrace group describe shop/billing"])
def describe(session: Session, group: GroupName) -> Outcome:
    """Show who reads what in a reader group: readers, their segments, how far they are and what is unread.

    UNREAD counts from the position that a reader told last, SINCE CHECKPOINT as `group lag` does. SEEN is when a reader
    last wrote to the state of the group, which it does several times per lease. A reader that was seen long ago, or not
    yet, has stopped: others get its segments when its lease ends. A segment without a reader is given to one soon.
    One that waits follows segments that are not read to their ends.
    """
    view = session.client.admin.reader_groups.get(*group)
    opened = session.client.reader_group(*group, initialize=False, give_up_after_s=session.retry_s)
    status, lag, seen = opened.status(), opened.lag(), opened.last_seen()
    document = {
        "scope": group.scope,
        "readerGroup": group.name,
        "readers": [
            {
                "reader": reader.reader,
                "secondsBehind": reader.seconds_behind,
                "lastSeenMs": _milliseconds(seen.get(reader.reader)),
                "segments": _positions(reader.positions, lag),
            }
            for reader in status.readers
        ],
        "unassigned": _positions(status.unassigned, lag),
        "waiting": [_segment_fields(segment) for segment in status.waiting],
    }
    rows: list[tuple[Any, ...]] = []
    now_s = time.time()
    for reader in status.readers:
        behind = None if reader.seconds_behind is None else behind_text(reader.seconds_behind)
        last = _milliseconds(seen.get(reader.reader))
        told = (behind, None if last is None else f"{duration_text(now_s - last / 1000)} ago")
        rows += [(reader.reader, *row, *told) for row in _position_rows(reader.positions, lag)]
        if not reader.positions:
            rows.append((reader.reader, "no segment", None, None, None, *told))
    rows += [("no reader", *row, None, None) for row in _position_rows(status.unassigned, lag)]
    rows += [("waits", _named(segment), None, None, None, None, None) for segment in status.waiting]
    details = [("streams", [_stream_text(stream) for stream in view.configuration.streams])]
    columns = ("READER", "SEGMENT", "POSITION", "UNREAD", "SINCE CHECKPOINT", "BEHIND", "SEEN")
    return Outcome(document, columns, rows, details=details)


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def _segment_fields(segment: StreamSegmentName) -> dict[str, Any]:
    return {"scope": segment.scope, "stream": segment.stream, "segmentId": segment.segment_id}


def _positions(positions: Mapping[StreamSegmentName, int], lag: GroupLag) -> list[dict[str, Any]]:
    since = _since_checkpoint(lag)
    return [
        {
            **_segment_fields(segment),
            "position": offset,
            "unreadBytes": lag.bytes_after(segment, offset),
            "lagBytes": since.get(segment, 0),
        }
        for segment, offset in positions.items()
    ]


def _position_rows(positions: Mapping[StreamSegmentName, int], lag: GroupLag) -> list[tuple[str, int, str, str]]:
    since = _since_checkpoint(lag)
    return [
        (_named(segment), offset, size_text(lag.bytes_after(segment, offset)), size_text(since.get(segment, 0)))
        for segment, offset in positions.items()
    ]


def _since_checkpoint(lag: GroupLag) -> dict[StreamSegmentName, int]:
    """The unread bytes of each segment, from the last checkpoint."""
    return {each.segment: each.bytes_unread for each in lag.segments}


def _named(segment: StreamSegmentName) -> str:
    return f"{segment.scope}/{segment.stream} {segment_text(segment.segment_id)}"


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
        lags = [self._without_readers(stream) for stream in configuration.streams]
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

    def _without_readers(self, read: GroupStream) -> Lag:
        """From the position that the group has published; if no reader has joined, from where the first begins."""
        admin, stream = self._session.client.admin, ScopedName(read.scope, read.stream)
        try:
            subscriber = admin.subscribers.get(*stream, str(self._group))
        except NotFoundError:
            if self._unreachable:
                return Lag(stream, None)
            return Lag(stream, admin.stream_cut_distance(*stream, from_cut=read.start, to_cut=read.end))
        return Lag(
            stream, admin.stream_cut_distance(*stream, from_cut=subscriber.offsets), updated_ms=subscriber.updated_ms
        )

    def _shown(self, told: GroupLag | None, lags: list[Lag], notes: Sequence[str] = ()) -> Outcome:
        known = [each.bytes for each in lags if each.bytes is not None]
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
                    "scope": each.stream.scope,
                    "stream": each.stream.name,
                    "lagBytes": each.bytes,
                    "lagEvents": each.events,
                    "lagEventsEstimated": each.events_are_estimated,
                    "updatedMs": each.updated_ms,
                }
                for each in lags
            ],
            "segments": None if told is None else _segments(told),
        }
        changes = [self._change(each) for each in lags]
        columns: tuple[str, ...] = ("STREAM", "LAG", "POSITION OF" if told is None else "EVENTS")
        rows: list[tuple[Any, ...]] = [_row(each, is_published=told is None) for each in lags]
        if any(change for change, _ in changes):
            columns += ("CHANGE", "EMPTY IN")
            rows = [row + change for row, change in zip(rows, changes, strict=True)]
        details = [("note", note) for note in notes]
        if told is not None and told.seconds is not None:
            details.append(("slowest reader", f"{behind_text(told.seconds)} behind"))
        return Outcome(document, columns, rows, details=details)

    def _change(self, lag: Lag) -> tuple[str | None, str | None]:
        """The change of the lag per second, and when the lag is zero if that goes on."""
        if lag.bytes is None:
            return None, None
        now_s = time.monotonic()
        last = self._last.get(lag.stream)
        self._last[lag.stream] = (now_s, lag.bytes)
        if last is None or now_s <= last[0]:
            return None, None
        bytes_per_s = (lag.bytes - last[1]) / (now_s - last[0])
        change = f"{'-' if bytes_per_s < 0 else '+'}{rate_text(abs(bytes_per_s))}"
        return change, duration_text(lag.bytes / -bytes_per_s) if bytes_per_s < 0 else None


def _of_stream(told: GroupLag, name: str) -> Lag:
    scope, _, stream = name.partition("/")
    segments = [
        segment for segment in told.segments if (segment.segment.scope, segment.segment.stream) == (scope, stream)
    ]
    return Lag(
        ScopedName(scope, stream),
        told.bytes_by_stream[name],
        told.events_by_stream[name],
        any(segment.events_are_estimated for segment in segments),
    )


def _segments(told: GroupLag) -> list[dict[str, Any]]:
    return [
        {
            "scope": segment.segment.scope,
            "stream": segment.segment.stream,
            "segmentId": segment.segment.segment_id,
            "lagBytes": segment.bytes_unread,
            "lagEvents": segment.events_unread,
            "lagEventsEstimated": segment.events_are_estimated,
        }
        for segment in told.segments
    ]


def _row(lag: Lag, *, is_published: bool) -> tuple[Any, ...]:
    if lag.bytes is None:
        return (str(lag.stream), "not known", None)
    if is_published:
        return (str(lag.stream), size_text(lag.bytes), None if lag.updated_ms is None else time_text(lag.updated_ms))
    return (str(lag.stream), size_text(lag.bytes), f"{'about ' if lag.events_are_estimated else ''}{lag.events}")
