"""`headrace stream scale` and `scale-status`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.streams import ScaleProgress
from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, state_text
from headrace.cli.parameters import (
    NoWait,
    ScopedName,
    StreamName,
    key_ranges,
    number,
    positive,
    segment_text,
    segments,
)
from headrace.cli.quantities import count_text
from headrace.cli.session import Session
from headrace.model.errors import IllegalStateError
from headrace.model.scaling import even_plan
from headrace.model.segments import KeyRange

PLANS_MAX = 4
"""How often a scale is planned again because another scale came between the plan and the request."""

Parts = list[tuple[Any, ...]]


def add_to(app: typer.Typer) -> None:
    """Adds the actions to the application of streams."""
    action(
        app,
        "scale",
        examples=[
            "headrace stream scale shop/orders --segments 4",
            "headrace stream scale shop/orders --seal 0@0 --range 0:0.125,0.125:0.25",
        ],
    )(scale)
    action(app, "scale-status", examples=["headrace stream scale-status shop/orders 3"])(scale_status)


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
    return _progress(progress)


def scale_status(
    session: Session, stream: StreamName, epoch: Annotated[int, typer.Argument(parser=number, metavar="EPOCH")]
) -> Outcome:
    """Show the status of the scale that creates an epoch."""
    progress = session.client.admin.scale_status(*stream, epoch)
    return _progress(ScaleProgress(progress.epoch, progress.status, ()))


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
    active = {one.segment_id: one.key_range for one in current.segments}
    plan = even_plan(active, count)
    if plan is None:
        document = {"epoch": current.epoch, "status": "SUCCESS", "segments": [], "sealedSegments": []}
        return Outcome(document, text=f"stream {stream} has {count_text(count, 'equal segment')} already")
    if dry_run:
        return _plan(stream, count, {one: active[one] for one in plan.sealed}, plan.new_ranges)
    progress = session.client.admin.scale_stream(*stream, seal=plan.sealed, ranges=plan.new_ranges, wait=wait)
    outcome = _progress(progress)
    replaced = ", ".join(map(segment_text, plan.sealed))
    kept = count_text(count - len(plan.new_ranges), "segment")
    text = f"{outcome.text}, which replace {replaced}; {kept} kept"
    return Outcome({**outcome.document, "sealedSegments": list(plan.sealed)}, text=text)


def _plan(stream: ScopedName, count: int, sealed: dict[int, KeyRange], new: tuple[KeyRange, ...]) -> Outcome:
    document = {
        "sealedSegments": list(sealed),
        "newRanges": [{"low": one.low, "high": one.high} for one in new],
        "segments": count,
    }
    rows: Parts = [("seal", segment_text(one), *_bounds(key_range)) for one, key_range in sealed.items()]
    rows += [("create", "", *_bounds(one)) for one in new]
    return Outcome(document, ("STEP", "SEGMENT", "FROM KEY", "TO KEY"), rows)


def _bounds(key_range: KeyRange) -> tuple[float, float]:
    return round(key_range.low, 6), round(key_range.high, 6)


def _flat(parts: list[Any] | None) -> list[Any]:
    return [one for part in parts or () for one in part]


def _progress(progress: ScaleProgress) -> Outcome:
    created = [
        {"segment": one.segment_id, "low": one.key_range.low, "high": one.key_range.high} for one in progress.segments
    ]
    document = {"epoch": progress.epoch, "status": progress.status, "segments": created}
    names = ", ".join(segment_text(one.segment_id) for one in progress.segments)
    ending = f": segments {names}" if names else ""
    return Outcome(document, text=f"scale to epoch {progress.epoch}: {state_text(progress.status)}{ending}")
