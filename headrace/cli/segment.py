"""`headrace segment`: list, successors, predecessors, endpoint, ranges between two cuts, and chunks in S3."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from headrace.api.segments import SegmentEndpoint, SegmentView
from headrace.cli.arguments import INT64_MAX, add_from_and_to, add_stream, number, positive, stream_of
from headrace.cli.outcome import Outcome
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace
from headrace.model.limits import PAGE_ITEMS_DEFAULT


def endpoint_document(found: SegmentEndpoint) -> dict[str, Any]:
    """The address of a segment's store, as JSON."""
    return {
        "host": found.host,
        "port": found.port,
        "zone": found.zone,
        "container": found.container,
        "epoch": found.epoch,
    }


def segment_document(one: SegmentView) -> dict[str, Any]:
    """A segment as JSON."""
    return {
        "segment": one.segment_id,
        "name": one.name,
        "low": one.key_range.low,
        "high": one.key_range.high,
        "startOffset": one.start_offset,
    }


def segment_rows(segments: Iterable[SegmentView]) -> list[tuple[Any, ...]]:
    return [(one.segment_id, one.key_range.low, one.key_range.high, one.name) for one in segments]


SEGMENT_COLUMNS = ("SEGMENT", "LOW", "HIGH", "NAME")


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.epoch_segments(*stream_of(options), at=options.at, epoch=options.epoch)
    document = {
        "epoch": found.epoch,
        "sealed": found.sealed,
        "segments": [segment_document(one) for one in found.segments],
    }
    return Outcome(document, SEGMENT_COLUMNS, segment_rows(found.segments))


def _successors(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.successors(*stream_of(options), options.segment)
    document = {
        "sealed": found.sealed,
        "segments": [
            segment_document(one.segment) | {"predecessors": list(one.predecessors)} for one in found.segments
        ],
    }
    rows = [(*segment_rows([one.segment])[0], one.predecessors) for one in found.segments]
    return Outcome(document, (*SEGMENT_COLUMNS, "PREDECESSORS"), rows)


def _predecessors(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.predecessors(*stream_of(options), options.segment)
    return Outcome({"segments": [segment_document(one) for one in found]}, SEGMENT_COLUMNS, segment_rows(found))


def _endpoint(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(endpoint_document(client.admin.endpoint(*stream_of(options), options.segment)))


def _between(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.segments_between(*stream_of(options), options.from_cut, options.to_cut)
    ranges = [
        {
            "segment": one.segment.segment_id,
            "startOffset": one.start_offset,
            "endOffset": one.end_offset,
            "predecessors": list(one.predecessors),
            "successors": list(one.successors),
        }
        for one in found.ranges
    ]
    document = {
        "from": {str(segment): offset for segment, offset in found.start.positions},
        "to": {str(segment): offset for segment, offset in found.end.positions},
        "ranges": ranges,
    }
    rows = [(one.segment.segment_id, one.start_offset, one.end_offset) for one in found.ranges]
    return Outcome(document, ("SEGMENT", "START", "END"), rows)


def _chunks(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.chunks(
        *stream_of(options),
        options.segment,
        from_offset=options.from_offset,
        to_offset=options.to_offset,
        limit=options.limit,
    )
    chunks = [
        {
            "offset": one.offset,
            "length": one.length,
            "url": one.url,
            "headers": dict(one.headers),
            "expiresAtMs": one.expires_at_ms,
        }
        for one in found.chunks
    ]
    document = {"storedUntil": found.stored_until, "nextOffset": found.next_offset, "chunks": chunks}
    return Outcome(document, ("OFFSET", "LENGTH", "URL"), [(one.offset, one.length, one.url) for one in found.chunks])


def _add_segment(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    parser.add_argument("segment", type=number, metavar="SEGMENT", help="its id: epoch << 32 | number")


def _point(text: str) -> str | int:
    return text if text in ("head", "tail") else number(text)


def _command() -> ResourceCommand:
    command = ResourceCommand("segment", "Segments: the parallel parts of a stream.")

    parser = command.action("list", _list, "List the segments at a position of a stream, or of an epoch.")
    add_stream(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--at",
        type=_point,
        default="tail",
        metavar="POINT",
        help="head, tail, or a time in milliseconds since 1970 (default tail)",
    )
    group.add_argument("--epoch", type=number, metavar="EPOCH")

    _add_segment(command.action("successors", _successors, "List the successors of a sealed segment."))
    _add_segment(command.action("predecessors", _predecessors, "List the segments that a segment replaced."))
    _add_segment(command.action("endpoint", _endpoint, "Show which segment store serves a segment."))

    parser = command.action("between", _between, "List the ranges of bytes between two stream cuts.")
    add_stream(parser)
    add_from_and_to(parser)

    parser = command.action("chunks", _chunks, "List links to the parts of a segment that are in S3.")
    _add_segment(parser)
    parser.add_argument("--from-offset", type=number, default=0, metavar="BYTES")
    parser.add_argument("--to-offset", type=number, default=INT64_MAX, metavar="BYTES")
    parser.add_argument("--limit", type=positive, default=PAGE_ITEMS_DEFAULT, metavar="N")
    return command


main = _command()
