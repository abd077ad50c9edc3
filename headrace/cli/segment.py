"""`headrace segment`: list, split, merge, successors, predecessors, endpoint, ranges between two cuts, chunks in S3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.api.segments import ScaledSegment, SegmentEndpoint, SegmentView, StartedSegment
from headrace.api.streams import ScaleProgress
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text
from headrace.cli.parameters import (
    FromCut,
    NoWait,
    ScopedName,
    SegmentId,
    StreamName,
    ToCut,
    a_segment,
    checked,
    local_place,
    number,
    positive,
)
from headrace.cli.session import Session
from headrace.codec.places import INT64_MAX, PLACE_HELP, ParsedPlace, parse_time_ms, segment_text
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.limits import PAGE_ITEMS_DEFAULT, SEGMENTS_PER_STREAM_MAX
from headrace.model.scaling import MERGED_MIN, SPLITS_MIN, joined_range, split_at, split_range
from headrace.model.segments import KeyRange, segment_epoch

if TYPE_CHECKING:
    from headrace.client.synchronous.synchronous_admin import Admin

app = new_app()

SEGMENT_COLUMNS = ("SEGMENT", "FROM KEY", "TO KEY", "NAME")


def endpoint_document(address: SegmentEndpoint) -> dict[str, Any]:
    """The address of a segment's store, as JSON."""
    return {
        "host": address.host,
        "port": address.port,
        "zone": address.zone,
        "container": address.container,
        "epoch": address.epoch,
        "tlsName": address.tls_name,
    }


def endpoint_details(address: SegmentEndpoint) -> list[tuple[str, Any]]:
    """The address of a segment's store, for people."""
    return [
        ("store", f"{address.host}:{address.port}"),
        ("zone", address.zone),
        ("container", address.container),
        ("container epoch", address.epoch),
        ("name in its certificate", address.tls_name or "none: without TLS"),
    ]


def segment_document(segment: ScaledSegment) -> dict[str, Any]:
    """A segment as JSON."""
    return {
        "segment": segment.segment_id,
        "name": segment.name if isinstance(segment, SegmentView) else "",
        "low": segment.low,
        "high": segment.high,
        "startOffset": segment.start_offset if isinstance(segment, StartedSegment) else None,
    }


def segment_rows(segments: Iterable[SegmentView]) -> list[tuple[Any, ...]]:
    return [
        (segment_text(segment.segment_id), segment.key_range.low, segment.key_range.high, segment.name)
        for segment in segments
    ]


def scale_outcome(progress: ScaleProgress) -> Outcome:
    """A scale with the segments that it creates."""
    created = [
        {"segment": segment.segment_id, "low": segment.key_range.low, "high": segment.key_range.high}
        for segment in progress.segments
    ]
    document = {"epoch": progress.epoch, "status": progress.status, "segments": created}
    names = ", ".join(segment_text(segment.segment_id) for segment in progress.segments)
    ending = f": segments {names}" if names else ""
    return Outcome(document, text=f"scale to epoch {progress.epoch}: {state_text(progress.status)}{ending}")


def _place(text: str) -> ParsedPlace | int:
    """A place as of `event read`, or a time in milliseconds since 1970."""
    return parse_time_ms(text) if text.isdecimal() else local_place(text)


@action(
    app,
    "list",
    examples=[
        "headrace segment list shop/orders",
        "headrace segment list shop/orders --at 10:05",
        "headrace segment list shop/orders --at 0@0:1024,1@0:2048",
    ],
)
def list_(
    session: Session,
    stream: StreamName,
    at: Annotated[
        Any,
        typer.Option(
            parser=checked(_place),
            metavar="PLACE",
            help=f"{PLACE_HELP}, or milliseconds since 1970 (default latest)",
        ),
    ] = None,
    epoch: Annotated[int | None, typer.Option(parser=number, metavar="EPOCH", help="the segments of an epoch")] = None,
) -> Outcome:
    """List the segments at a position of a stream, or of an epoch."""
    if at is not None and epoch is not None:
        raise typer.BadParameter("--at and --epoch exclude each other: name one of them")
    if isinstance(at, dict):
        return _of_cut(session, stream, at)
    if isinstance(at, datetime):
        at = int(at.timestamp() * 1000)
    epoch_segments = session.client.admin.epoch_segments(*stream, at="latest" if at is None else at, epoch=epoch)
    document = {
        "epoch": epoch_segments.epoch,
        "sealed": epoch_segments.sealed,
        "segments": [segment_document(segment) for segment in epoch_segments.segments],
    }
    return Outcome(document, SEGMENT_COLUMNS, segment_rows(epoch_segments.segments))


def _of_cut(session: Session, stream: ScopedName, offsets: dict[int, int]) -> Outcome:
    """The segments of a stream cut, which may be of several epochs; the document has the last of these."""
    ranges = session.client.admin.segments_between(*stream, offsets, offsets).ranges
    at_cut = sorted((span for span in ranges if span.segment_id in offsets), key=lambda span: span.key_range)
    document = {
        "epoch": max(segment_epoch(segment.segment_id) for segment in at_cut),
        "sealed": False,
        "segments": [segment_document(each) for each in at_cut],
    }
    return Outcome(document, SEGMENT_COLUMNS, segment_rows(at_cut))


@action(app, "successors", examples=["headrace segment successors shop/orders 0@0"])
def successors(session: Session, stream: StreamName, segment: SegmentId) -> Outcome:
    """List the successors of a sealed segment."""
    following = session.client.admin.successors(*stream, segment)
    document = {
        "sealed": following.sealed,
        "segments": [
            segment_document(segment) | {"predecessors": list(segment.predecessors)} for segment in following.segments
        ],
    }
    rows = [
        (*segment_rows([segment])[0], [segment_text(before) for before in segment.predecessors])
        for segment in following.segments
    ]
    return Outcome(document, (*SEGMENT_COLUMNS, "PREDECESSORS"), rows)


@action(app, "predecessors", examples=["headrace segment predecessors shop/orders 2@1"])
def predecessors(session: Session, stream: StreamName, segment: SegmentId) -> Outcome:
    """List the segments that a segment replaced."""
    replaced = session.client.admin.predecessors(*stream, segment)
    return Outcome({"segments": [segment_document(each) for each in replaced]}, SEGMENT_COLUMNS, segment_rows(replaced))


@action(app, "endpoint", examples=["headrace segment endpoint shop/orders 0@0"])
def endpoint(session: Session, stream: StreamName, segment: SegmentId) -> Outcome:
    """Show which segment store serves a segment."""
    address = session.client.admin.endpoint(*stream, segment)
    return Outcome(endpoint_document(address), details=endpoint_details(address))


@action(app, "between", examples=["headrace segment between shop/orders --from 0@0:0,1@0:0"])
def between(session: Session, stream: StreamName, from_cut: FromCut = None, to_cut: ToCut = None) -> Outcome:
    """List the ranges of bytes between two stream cuts."""
    cut_range = session.client.admin.segments_between(*stream, from_cut, to_cut)
    ranges = [
        {
            "segment": span.segment_id,
            "startOffset": span.start_offset,
            "endOffset": span.end_offset,
            "predecessors": list(span.predecessors),
            "successors": list(span.successors),
        }
        for span in cut_range.ranges
    ]
    document = {
        "from": {str(segment): offset for segment, offset in cut_range.start.positions},
        "to": {str(segment): offset for segment, offset in cut_range.end.positions},
        "ranges": ranges,
    }
    rows = [(segment_text(span.segment_id), span.start_offset, span.end_offset) for span in cut_range.ranges]
    return Outcome(document, ("SEGMENT", "START", "END"), rows)


@action(app, "chunks", examples=["headrace segment chunks shop/orders 0@0 --limit 10"])
def chunks(
    session: Session,
    stream: StreamName,
    segment: SegmentId,
    from_offset: Annotated[int, typer.Option(parser=number, metavar="BYTES")] = 0,
    to_offset: Annotated[int, typer.Option(parser=number, metavar="BYTES", show_default=False)] = INT64_MAX,
    limit: Annotated[int, typer.Option(parser=positive, metavar="N")] = PAGE_ITEMS_DEFAULT,
) -> Outcome:
    """List links to the parts of a segment that are in S3."""
    page = session.client.admin.chunks(*stream, segment, from_offset=from_offset, to_offset=to_offset, limit=limit)
    document = {
        "storedUntil": page.stored_until,
        "nextOffset": page.next_offset,
        "chunks": [
            {
                "offset": chunk.offset,
                "length": chunk.length,
                "url": chunk.url,
                "headers": dict(chunk.headers),
                "expiresAtMs": chunk.expires_at_ms,
            }
            for chunk in page.chunks
        ],
    }
    return Outcome(
        document, ("OFFSET", "LENGTH", "URL"), [(chunk.offset, chunk.length, chunk.url) for chunk in page.chunks]
    )


_SEGMENTS_HELP = "two or more neighbours, as `headrace segment list` shows them"


@action(
    app,
    "split",
    examples=[
        "headrace segment split shop/orders 0@0",
        "headrace segment split shop/orders 0@0 --into 4",
        "headrace segment split shop/orders 0@0 --at 0.1",
    ],
)
def split(
    session: Session,
    stream: StreamName,
    segment: SegmentId,
    into: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="number of equal parts (default 2)")
    ] = None,
    at: Annotated[
        list[float] | None,
        typer.Option(metavar="KEY", help="where a part begins, from 0 to 1; may be repeated (default: equal parts)"),
    ] = None,
    no_wait: NoWait = False,
) -> Outcome:
    """Replace a segment by several ones of its key range. The order of each routing key is kept."""
    if into is not None and at:
        raise typer.BadParameter("--into and --at exclude each other: name one of them")
    if into is not None and into > SEGMENTS_PER_STREAM_MAX:
        raise typer.BadParameter(f"--into is at most {SEGMENTS_PER_STREAM_MAX}, since a stream has no more segments")
    parts = split_parts(session.client.admin, stream, segment, into, at)
    return scale_outcome(session.client.admin.scale_stream(*stream, seal=[segment], ranges=parts, wait=not no_wait))


@action(app, "merge", examples=["headrace segment merge shop/orders 0@0 1@0"])
def merge(
    session: Session,
    stream: StreamName,
    segments: Annotated[
        list[int],
        typer.Argument(parser=a_segment, metavar="SEGMENT SEGMENT...", help=_SEGMENTS_HELP, show_default=False),
    ],
    no_wait: NoWait = False,
) -> Outcome:
    """Replace neighbouring segments by one of their key ranges. The order of each routing key is kept."""
    if len(set(segments)) < MERGED_MIN:
        raise typer.BadParameter("name at least two segments")
    admin = session.client.admin
    whole = merged_range(admin, stream, segments)
    return scale_outcome(
        admin.scale_stream(*stream, seal=list(dict.fromkeys(segments)), ranges=[whole], wait=not no_wait)
    )


def split_parts(
    admin: Admin, stream: ScopedName, segment: int, into: int | None = None, at: Sequence[float] | None = None
) -> Sequence[KeyRange]:
    """The key ranges that replace an active segment: `into` equal ones, two without it, or those that begin `at`.

    Raises:
        IllegalStateError: code "segment_not_active".
        InvalidRequestError: the segment cannot be split in this way.
    """
    key_range = _active(admin, stream, [segment])[segment]
    parts = split_at(key_range, at) if at else split_range(key_range, into or SPLITS_MIN)
    if len(parts) < SPLITS_MIN:
        raise InvalidRequestError(f"segment {segment_text(segment)} cannot be split into {into} parts")
    return parts


def merged_range(admin: Admin, stream: ScopedName, segments: list[int]) -> KeyRange:
    """The key range that replaces active segments, which must be neighbours. Raises as `split_parts`."""
    return joined_range(_active(admin, stream, segments))


def _active(admin: Admin, stream: ScopedName, wanted: list[int]) -> dict[int, KeyRange]:
    """The key ranges of active segments. Raises IllegalStateError, code "segment_not_active"."""
    known = {segment.segment_id: segment.key_range for segment in admin.epoch_segments(*stream).segments}
    for segment in wanted:
        if segment not in known:
            raise IllegalStateError(
                f"segment {segment_text(segment)} is not an active one of {stream}: it was replaced, or never was one",
                code="segment_not_active",
            )
    return {segment: known[segment] for segment in wanted}
