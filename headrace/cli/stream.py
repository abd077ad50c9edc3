"""`headrace stream`: everything but `describe`, which is in `stream_describe.py`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.streams import ScaleProgress, StreamView
from headrace.cli import stream_describe
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text, time_text
from headrace.cli.parameters import (
    CutArgument,
    FromCut,
    Long,
    NoWait,
    ScopedName,
    ScopeName,
    StreamName,
    ToCut,
    client_place,
    key_ranges,
    milliseconds,
    number,
    place,
    positive,
    rollover_size_option,
    segments,
)
from headrace.cli.quantities import count_text, retention_text, scaling_text, size_text
from headrace.cli.segment import scale_outcome, segment_document
from headrace.cli.session import Session
from headrace.codec.places import PLACE_HELP, segment_text
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.log_classes import LogClass
from headrace.model.scaling import even_plan
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import (
    CONFIGURATION_CHANGED,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
)
from headrace.model.stream_cuts import StreamCut

SEGMENTS_DEFAULT = 2
SCALE_FACTOR_DEFAULT = 2

UPDATE_ATTEMPTS_MAX = 8
"""Attempts of an update that conflicts with other updates. At least one update succeeds per attempt."""

app = new_app()

Count = int | None
Segments = Annotated[
    Count,
    typer.Option(
        parser=positive, metavar="N", help="number of segments; the minimum if the stream scales itself (default: 2)"
    ),
]
SegmentsKept = Annotated[
    Count, typer.Option(parser=positive, metavar="N", help="minimum of segments; raising it splits the largest ones")
]
Fixed = Annotated[bool, typer.Option("--fixed", help="do not scale automatically (default of a new stream)")]
EventsPerS = Annotated[
    Count,
    typer.Option(parser=positive, metavar="N", help="target rate of a segment; a busier segment is split"),
]
KbytesPerS = Annotated[
    Count,
    typer.Option(parser=positive, metavar="N", help="target rate of a segment; a busier segment is split"),
]
ScaleFactor = Annotated[
    Count, typer.Option(parser=positive, metavar="N", help="number of segments that a split creates")
]
RetainDays = Annotated[Count, typer.Option(parser=positive, metavar="N", help="keep events for at least N days")]
RetainMb = Annotated[Count, typer.Option(parser=positive, metavar="N", help="keep at least N MB")]
RetainMax = Annotated[Count, typer.Option(parser=positive, metavar="N", help="keep at most N days or MB")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="add a tag; may be repeated")]
AggregationTimeoutMs = Annotated[
    Count,
    typer.Option(
        "--timestamp-aggregation-timeout-ms",
        parser=number,
        metavar="MS",
        help="how long watermarks wait for a silent writer",
    ),
]
RolloverSize = Annotated[Count, rollover_size_option("kept for Pravega's clients, for example 4MiB")]
AcknowledgedBy = Annotated[
    LogClass,
    typer.Option(
        "--acknowledged-by",
        case_sensitive=False,
        help="s3: later acknowledgements, cheaper at high rates; cannot be changed",
    ),
]


@action(
    app,
    "create",
    examples=[
        "headrace stream create shop/orders --segments 4 --retain-days 7 --tag web",
        "headrace stream create shop/clicks --events-per-s 1000",
        "headrace stream create shop/logs --acknowledged-by s3",
    ],
)
def create(
    session: Session,
    stream: StreamName,
    segments: Segments = None,
    fixed: Fixed = False,
    events_per_s: EventsPerS = None,
    kbytes_per_s: KbytesPerS = None,
    scale_factor: ScaleFactor = None,
    retain_days: RetainDays = None,
    retain_mb: RetainMb = None,
    retain_max: RetainMax = None,
    tags: Tags = None,
    aggregation_timeout_ms: AggregationTimeoutMs = None,
    rollover_size: RolloverSize = None,
    acknowledged_by: AcknowledgedBy = LogClass.STORES,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="accept an existing stream without changing it")] = False,
    no_wait: NoWait = False,
) -> Outcome:
    """Create a stream."""
    _check_one_of(fixed=fixed, events_per_s=events_per_s, kbytes_per_s=kbytes_per_s)
    _check_one_of(retain_days=retain_days, retain_mb=retain_mb)
    known = ScalingPolicy.fixed(SEGMENTS_DEFAULT)
    view = session.client.admin.create_stream(
        *stream,
        scaling=_scaling(known, segments, fixed, events_per_s, kbytes_per_s, scale_factor),
        retention=_retention(None, retain_days, retain_mb, retain_max),
        tags=tags or (),
        timestamp_aggregation_timeout_ms=aggregation_timeout_ms or 0,
        rollover_size_bytes=rollover_size or 0,
        acknowledged_by=acknowledged_by,
        exist_ok=exist_ok,
        wait=not no_wait,
    )
    return _shown(view)


@action(
    app,
    "update",
    examples=[
        "headrace stream update shop/orders --retain-days 30 --tag billing",
        "headrace stream update shop/orders --retain-everything",
    ],
)
def update(
    session: Session,
    stream: StreamName,
    segments: SegmentsKept = None,
    fixed: Fixed = False,
    events_per_s: EventsPerS = None,
    kbytes_per_s: KbytesPerS = None,
    scale_factor: ScaleFactor = None,
    retain_days: RetainDays = None,
    retain_mb: RetainMb = None,
    retain_everything: Annotated[bool, typer.Option("--retain-everything", help="remove the retention policy")] = False,
    retain_max: RetainMax = None,
    tags: Tags = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="remove a tag; may be repeated")] = None,
    aggregation_timeout_ms: AggregationTimeoutMs = None,
    rollover_size: RolloverSize = None,
    no_wait: NoWait = False,
) -> Outcome:
    """Change a stream; options that are not given keep their values."""
    _check_one_of(fixed=fixed, events_per_s=events_per_s, kbytes_per_s=kbytes_per_s)
    _check_one_of(retain_days=retain_days, retain_mb=retain_mb, retain_everything=retain_everything)

    def try_to_update() -> Outcome:
        """Replaces the whole configuration, as the API demands; parts that are not named keep the values just read."""
        known = session.client.admin.get_stream(*stream)
        timeout_ms = (
            known.timestamp_aggregation_timeout_ms if aggregation_timeout_ms is None else aggregation_timeout_ms
        )
        view = session.client.admin.update_stream(
            *stream,
            scaling=_scaling(known.scaling, segments, fixed, events_per_s, kbytes_per_s, scale_factor),
            retention=None if retain_everything else _retention(known.retention, retain_days, retain_mb, retain_max),
            tags=(set(known.tags) | set(tags or ())) - set(untag or ()),
            timestamp_aggregation_timeout_ms=timeout_ms,
            rollover_size_bytes=known.rollover_size_bytes if rollover_size is None else rollover_size,
            expected_version=known.configuration_version,
            wait=not no_wait,
        )
        return _shown(view)

    # An update by another client between the read and the write is kept: the write then fails, and is tried again on
    # the new configuration.
    for _ in range(UPDATE_ATTEMPTS_MAX - 1):
        try:
            return try_to_update()
        except IllegalStateError as error:
            if error.specific_code != CONFIGURATION_CHANGED:
                raise
    return try_to_update()


@action(app, "list", examples=["headrace stream list shop --tag web", "headrace stream list shop --long"])
def list_(
    session: Session,
    scope: ScopeName,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="only streams with this tag")] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="only streams whose names start with TEXT")] = "",
    long: Long = False,
) -> Outcome:
    """List the streams of a scope by name."""
    streams = session.client.admin.list_streams(scope, tag=tag, prefix=prefix)
    if long:
        return stream_describe.long_list(session, [ScopedName(stream.scope, stream.stream) for stream in streams])
    document = {
        "streams": [{"scope": stream.scope, "stream": stream.stream, "tags": list(stream.tags)} for stream in streams]
    }
    return Outcome(
        document, ("STREAM", "TAGS"), [(f"{stream.scope}/{stream.stream}", stream.tags) for stream in streams]
    )


@action(app, "get", examples=["headrace stream get shop/orders --json"])
def get(session: Session, stream: StreamName) -> Outcome:
    """Show a stream: state, epoch, configuration."""
    return _shown(session.client.admin.get_stream(*stream))


@action(app, "seal", examples=["headrace stream seal shop/orders"])
def seal(session: Session, stream: StreamName, no_wait: NoWait = False) -> Outcome:
    """Seal a stream: it accepts no more events."""
    session.client.admin.seal_stream(*stream, wait=not no_wait)
    return _done(stream, "being sealed" if no_wait else "sealed", sealed=not no_wait)


@action(app, "freeze", examples=["headrace stream freeze shop/orders"])
def freeze(session: Session, stream: StreamName, no_wait: NoWait = False) -> Outcome:
    """Freeze a stream: it accepts no events until it is unfrozen."""
    session.client.admin.freeze_stream(*stream, wait=not no_wait)
    return _done(stream, "being frozen" if no_wait else "frozen", frozen=not no_wait)


@action(app, "unfreeze", examples=["headrace stream unfreeze shop/orders"])
def unfreeze(session: Session, stream: StreamName, no_wait: NoWait = False) -> Outcome:
    """Unfreeze a stream: it accepts events again."""
    session.client.admin.unfreeze_stream(*stream, wait=not no_wait)
    return _done(stream, "being unfrozen" if no_wait else "unfrozen", unfrozen=not no_wait)


@action(app, "delete", examples=["headrace stream delete shop/orders"])
def delete(session: Session, stream: StreamName, no_wait: NoWait = False) -> Outcome:
    """Delete a sealed stream."""
    session.client.admin.delete_stream(*stream, wait=not no_wait)
    return _done(stream, "being deleted" if no_wait else "deleted", deleted=not no_wait)


stream_describe.add_to(app)


def stream_document(view: StreamView) -> dict[str, Any]:
    """A stream as JSON."""
    scaling, retention = view.scaling, view.retention
    return {
        "scope": view.scope,
        "stream": view.stream,
        "state": view.state,
        "epoch": view.epoch,
        "segments": view.segments,
        "scaling": {
            "type": scaling.type.value,
            "minSegments": scaling.min_segments,
            "targetRate": scaling.target_rate,
            "scaleFactor": scaling.scale_factor,
        },
        "retention": {"type": retention.type.value, "value": retention.value, "maxValue": retention.max_value}
        if retention
        else None,
        "tags": list(view.tags),
        "timestampAggregationTimeoutMs": view.timestamp_aggregation_timeout_ms,
        "rolloverSizeBytes": view.rollover_size_bytes,
        "acknowledgedBy": view.acknowledged_by.value,
        "configurationVersion": view.configuration_version,
        "creationTimeMs": view.creation_time_ms,
    }


def _shown(view: StreamView) -> Outcome:
    details = [
        ("stream", f"{view.scope}/{view.stream}"),
        ("state", state_text(view.state)),
        ("segments", view.segments),
        ("scaling", scaling_text(view.scaling)),
        ("retention", retention_text(view.retention)),
        ("tags", view.tags),
        ("created", time_text(view.creation_time_ms)),
        ("epoch", view.epoch),
        ("configuration", f"version {view.configuration_version}"),
    ]
    if view.acknowledged_by is not LogClass.STORES:
        details.append(("acknowledged by", view.acknowledged_by.value))
    if view.timestamp_aggregation_timeout_ms:
        details.append(("watermarks", f"wait {view.timestamp_aggregation_timeout_ms} ms for a silent writer"))
    if view.rollover_size_bytes:
        details.append(("rollover", size_text(view.rollover_size_bytes)))
    return Outcome(stream_document(view), details=details)


def _done(stream: ScopedName, text: str, **state: bool) -> Outcome:
    document = {"scope": stream.scope, "stream": stream.name, **state}
    return Outcome(document, text=f"stream {stream} is {text}")


def _check_one_of(**options: object) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if len(given) > 1:
        raise typer.BadParameter(f"{given[0]} and {given[1]} exclude each other: name one of them")


def _scaling(
    known: ScalingPolicy, segments: Count, fixed: bool, events_per_s: Count, kbytes_per_s: Count, scale_factor: Count
) -> ScalingPolicy:
    """The policy `known`, changed by the given options."""
    segments = known.min_segments if segments is None else segments
    factor = scale_factor or known.scale_factor or SCALE_FACTOR_DEFAULT
    if events_per_s is not None:
        return ScalingPolicy.by_event_rate(events_per_s, factor, segments)
    if kbytes_per_s is not None:
        return ScalingPolicy.by_data_rate(kbytes_per_s, factor, segments)
    if fixed or known.type is ScalingType.FIXED_NUM_SEGMENTS:
        return ScalingPolicy.fixed(segments)
    return ScalingPolicy(known.type, segments, known.target_rate, factor)


def _retention(known: RetentionPolicy | None, days: Count, megabytes: Count, maximum: Count) -> RetentionPolicy | None:
    if days is not None:
        return RetentionPolicy(RetentionType.LIMITED_DAYS, days, maximum)
    if megabytes is not None:
        return RetentionPolicy(RetentionType.LIMITED_SIZE_MB, megabytes, maximum)
    if maximum is not None:
        if known is None:
            raise InvalidRequestError("--retain-max needs --retain-days or --retain-mb")
        return RetentionPolicy(known.type, known.value, maximum)
    return known


PLANS_MAX = 4
"""How often a scale is planned again because another scale came between the plan and the request."""

Parts = list[tuple[Any, ...]]


@action(
    app,
    "scale",
    examples=[
        "headrace stream scale shop/orders --segments 4",
        "headrace stream scale shop/orders --seal 0@0 --range 0:0.125,0.125:0.25",
    ],
)
def scale(
    session: Session,
    stream: StreamName,
    count: Annotated[
        int | None,
        typer.Option(
            "--segments", parser=positive, metavar="N", help="split and merge until there are N equal segments"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="with --segments: show which segments would be replaced")
    ] = False,
    seal: Annotated[
        list[Any] | None,
        typer.Option(parser=segments, metavar="SEGMENT,...", help="exact form: the segments to replace"),
    ] = None,
    ranges: Annotated[
        list[Any] | None,
        typer.Option(
            "--range", parser=key_ranges, metavar="LOW:HIGH,...", help="exact form: key ranges of the new ones"
        ),
    ] = None,
    no_wait: NoWait = False,
) -> Outcome:
    """Replace segments by new ones. The order of each routing key is kept.

    --segments N computes the key ranges: the key space is divided into N equal segments, and segments that are equal
    parts already are kept. --seal and --range name the segments and the ranges.
    """
    if (count is None) != bool(seal and ranges) or (count is not None and (seal or ranges)):
        raise typer.BadParameter("expected either --segments N, or --seal and --range")
    if count is not None:
        return _scale_evenly(session, stream, count, dry_run=dry_run, wait=not no_wait)
    if dry_run:
        raise typer.BadParameter("--dry-run needs --segments N")
    progress = session.client.admin.scale_stream(*stream, seal=_flat(seal), ranges=_flat(ranges), wait=not no_wait)
    return scale_outcome(progress)


@action(app, "scale-status", examples=["headrace stream scale-status shop/orders 3"])
def scale_status(
    session: Session, stream: StreamName, epoch: Annotated[int, typer.Argument(parser=number, metavar="EPOCH")]
) -> Outcome:
    """Show the status of the scale that creates an epoch."""
    progress = session.client.admin.scale_status(*stream, epoch)
    return scale_outcome(ScaleProgress(progress.epoch, progress.status, ()))


def _scale_evenly(session: Session, stream: ScopedName, count: int, *, dry_run: bool, wait: bool) -> Outcome:
    for _ in range(PLANS_MAX - 1):
        try:
            return _try_to_scale(session, stream, count, dry_run=dry_run, wait=wait)
        except IllegalStateError as error:
            if error.specific_code != "segment_not_active":
                raise
    return _try_to_scale(session, stream, count, dry_run=dry_run, wait=wait)


def _try_to_scale(session: Session, stream: ScopedName, count: int, *, dry_run: bool, wait: bool) -> Outcome:
    current = session.client.admin.epoch_segments(*stream)
    active = {segment.segment_id: segment.key_range for segment in current.segments}
    plan = even_plan(active, count)
    if plan is None:
        document = {"epoch": current.epoch, "status": "SUCCESS", "segments": [], "sealedSegments": []}
        return Outcome(document, text=f"stream {stream} has {count_text(count, 'equal segment')} already")
    if dry_run:
        return _plan(stream, count, {each: active[each] for each in plan.sealed}, plan.new_ranges)
    progress = session.client.admin.scale_stream(*stream, seal=plan.sealed, ranges=plan.new_ranges, wait=wait)
    outcome = scale_outcome(progress)
    replaced = ", ".join(map(segment_text, plan.sealed))
    kept = count_text(count - len(plan.new_ranges), "segment")
    text = f"{outcome.text}, which replace {replaced}; {kept} kept"
    return Outcome({**outcome.document, "sealedSegments": list(plan.sealed)}, text=text)


def _plan(stream: ScopedName, count: int, sealed: dict[int, KeyRange], new: tuple[KeyRange, ...]) -> Outcome:
    document = {
        "sealedSegments": list(sealed),
        "newRanges": [{"low": each.low, "high": each.high} for each in new],
        "segments": count,
    }
    rows: Parts = [("seal", segment_text(identifier), *_bounds(key_range)) for identifier, key_range in sealed.items()]
    rows += [("create", "", *_bounds(each)) for each in new]
    return Outcome(document, ("STEP", "SEGMENT", "FROM KEY", "TO KEY"), rows)


def _bounds(key_range: KeyRange) -> tuple[float, float]:
    return round(key_range.low, 6), round(key_range.high, 6)


def _flat(parts: list[Any] | None) -> list[Any]:
    return [each for part in parts or () for each in part]


@action(
    app,
    "cut",
    examples=["headrace stream cut shop/orders --at earliest", "headrace stream cut shop/orders --at 10:05"],
)
def cut(
    session: Session,
    stream: StreamName,
    at: Annotated[Any, typer.Option(parser=place, metavar="PLACE", help=f"{PLACE_HELP} (default latest)")] = None,
) -> Outcome:
    """Show the stream cut at a place of a stream."""
    place_cut = session.client.stream_cut_at(*stream, client_place(stream, at or "latest"))
    rows = [(segment_text(segment), offset) for segment, offset in place_cut.positions]
    return Outcome(cut_document(place_cut), ("SEGMENT", "OFFSET"), rows)


@action(app, "truncate", examples=["headrace stream truncate shop/orders 0@0:1024,1@0:2048"])
def truncate(session: Session, stream: StreamName, cut: CutArgument, no_wait: NoWait = False) -> Outcome:
    """Delete everything before a stream cut."""
    session.client.admin.truncate_stream(*stream, cut, wait=not no_wait)
    document = {"scope": stream.scope, "stream": stream.name, "truncated": not no_wait}
    return Outcome(document, text=f"stream {stream} is {'being truncated' if no_wait else 'truncated'}")


@action(app, "check-cut", examples=["headrace stream check-cut shop/orders 0@0:1024,1@0:2048"])
def check_cut(session: Session, stream: StreamName, cut: CutArgument) -> Outcome:
    """Check whether a reader can start or stop at a stream cut."""
    valid = session.client.admin.is_stream_cut_valid(*stream, cut)
    return Outcome({"valid": valid}, text="valid" if valid else "not valid")


@action(app, "distance", examples=["headrace stream distance shop/orders --from 0@0:1024,1@0:2048"])
def distance(session: Session, stream: StreamName, from_cut: FromCut = None, to_cut: ToCut = None) -> Outcome:
    """Show the number of bytes between two stream cuts."""
    length = session.client.admin.stream_cut_distance(*stream, from_cut, to_cut)
    return Outcome(
        {"bytes": length}, text=f"{length} bytes ({size_text(length)})" if length >= 1000 else f"{length} bytes"
    )


@action(app, "scaling-events", examples=["headrace stream scaling-events shop/orders"])
def scaling_events(
    session: Session,
    stream: StreamName,
    from_ms: Annotated[
        int, typer.Option(parser=milliseconds, metavar="MS", help="milliseconds since 1970 (default 0)")
    ] = 0,
    to_ms: Annotated[
        int | None, typer.Option(parser=milliseconds, metavar="MS", help="milliseconds since 1970 (default: now)")
    ] = None,
) -> Outcome:
    """List the scales between two times, oldest first."""
    events = session.client.admin.scaling_events(*stream, from_ms=from_ms, to_ms=to_ms)
    document = [
        {
            "epoch": event.epoch,
            "timeMs": event.time_ms,
            "splits": event.splits,
            "merges": event.merges,
            "sealedSegments": list(event.sealed_segments),
            "newSegments": [segment_document(segment) for segment in event.new_segments],
        }
        for event in events
    ]
    rows = [
        (
            time_text(event.time_ms),
            event.epoch,
            event.splits,
            event.merges,
            [segment_text(segment) for segment in event.sealed_segments],
            [segment_text(segment.segment_id) for segment in event.new_segments],
        )
        for event in events
    ]
    return Outcome({"scalingEvents": document}, ("TIME", "EPOCH", "SPLITS", "MERGES", "SEALED", "NEW"), rows)


def cut_document(position: StreamCut) -> dict[str, Any]:
    """A stream cut as JSON: the offsets by segment id, and the text form that Pravega's clients accept."""
    offsets = {str(segment): offset for segment, offset in position.positions}
    text = stream_cut_text(position)
    return {"scope": position.scope, "stream": position.stream, "cut": offsets, "text": text}
