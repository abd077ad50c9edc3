"""`headrace stream`: cuts, truncation, distances and scaling events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import CutArgument, FromCut, NoWait, StreamName, ToCut, segment_text
from headrace.cli.quantities import size_text
from headrace.cli.segment import segment_document
from headrace.cli.session import Session
from headrace.cli.times import TIME_HELP, milliseconds, moment
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut


def add_to(app: typer.Typer) -> None:
    """Adds the actions to the application of streams."""
    action(
        app,
        "cut",
        examples=["headrace stream cut shop/orders --at head", "headrace stream cut shop/orders --time 10:05"],
    )(cut)
    action(app, "truncate", examples=["headrace stream truncate shop/orders 0@0:1024,1@0:2048"])(truncate)
    action(app, "check-cut", examples=["headrace stream check-cut shop/orders 0@0:1024,1@0:2048"])(check_cut)
    action(app, "distance", examples=["headrace stream distance shop/orders --from 0@0:1024,1@0:2048"])(distance)
    action(app, "scaling-events", examples=["headrace stream scaling-events shop/orders"])(scaling_events)


def cut(
    session: Session,
    stream: StreamName,
    at: Annotated[Literal["head", "tail"], typer.Option(help="an end of the stream")] = "tail",
    time: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help=f"the cut at a time: {TIME_HELP}")
    ] = None,
) -> Outcome:
    """Show the stream cut at the head, the tail or a time."""
    if time is not None:
        found = session.client.stream_cut_at(*stream, time)
    else:
        found = session.client.admin.stream_cut(*stream, at=at)
    rows = [(segment_text(segment), offset) for segment, offset in found.positions]
    return Outcome(cut_document(found), ("SEGMENT", "OFFSET"), rows)


def truncate(session: Session, stream: StreamName, cut: CutArgument, no_wait: NoWait = False) -> Outcome:
    """Delete everything before a stream cut."""
    session.client.admin.truncate_stream(*stream, cut, wait=not no_wait)
    document = {"scope": stream.scope, "stream": stream.name, "truncated": not no_wait}
    return Outcome(document, text=f"stream {stream} is {'being truncated' if no_wait else 'truncated'}")


def check_cut(session: Session, stream: StreamName, cut: CutArgument) -> Outcome:
    """Check whether a reader can start or stop at a stream cut."""
    valid = session.client.admin.is_stream_cut_valid(*stream, cut)
    return Outcome({"valid": valid}, text="valid" if valid else "not valid")


def distance(session: Session, stream: StreamName, from_cut: FromCut = None, to_cut: ToCut = None) -> Outcome:
    """Show the number of bytes between two stream cuts."""
    found = session.client.admin.stream_cut_distance(*stream, from_cut, to_cut)
    return Outcome({"bytes": found}, text=f"{found} bytes ({size_text(found)})" if found >= 1000 else f"{found} bytes")


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
            "epoch": one.epoch,
            "timeMs": one.time_ms,
            "splits": one.splits,
            "merges": one.merges,
            "sealedSegments": list(one.sealed_segments),
            "newSegments": [segment_document(segment) for segment in one.new_segments],
        }
        for one in events
    ]
    rows = [
        (
            time_text(one.time_ms),
            one.epoch,
            one.splits,
            one.merges,
            [segment_text(segment) for segment in one.sealed_segments],
            [segment_text(segment.segment_id) for segment in one.new_segments],
        )
        for one in events
    ]
    return Outcome({"scalingEvents": document}, ("TIME", "EPOCH", "SPLITS", "MERGES", "SEALED", "NEW"), rows)


def cut_document(position: StreamCut) -> dict[str, Any]:
    """A stream cut as JSON: the offsets by segment id, and the text form that Pravega's clients accept."""
    offsets = {str(segment): offset for segment, offset in position.positions}
    text = stream_cut_text(position)
    return {"scope": position.scope, "stream": position.stream, "cut": offsets, "text": text}
