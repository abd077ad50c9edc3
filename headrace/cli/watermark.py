"""`headrace watermark`: show the newest watermark, note a writer's time, remove a writer."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.arguments import add_stream, checked, cut, stream_of
from headrace.cli.outcome import Outcome
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace
from headrace.model.errors import InvalidRequestError
from headrace.model.writer_marks import check_time, check_writer_name

_writer = checked(check_writer_name)


def _time(text: str) -> int:
    """Decimal digits, optionally after a minus sign."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise InvalidRequestError(f"{text[:100]!a} is not a time: expected a whole number")
    return check_time(int(text))


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    newest = client.admin.watermarks.newest(*stream_of(options))
    found = newest.watermark
    watermark: dict[str, Any] | None = None
    if found is not None:
        watermark = {
            "lowerTime": found.lower_time,
            "upperTime": found.upper_time,
            "cut": {str(one.segment.segment_id): one.offset for one in found.cut},
        }
    document = {"watermark": watermark, "markSegment": newest.mark_segment, "offset": newest.offset}
    if watermark is None:
        return Outcome(document, text=f"stream {options.stream} has no watermark yet")
    positions = ", ".join(f"{segment}:{offset}" for segment, offset in watermark["cut"].items())
    return Outcome(document, text=f"from {watermark['lowerTime']} to {watermark['upperTime']} at {positions}")


def _note(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.watermarks.note_position(*stream_of(options), options.writer, options.time, options.position)
    document = {"writer": options.writer, "time": options.time, "noted": True}
    return Outcome(document, text=f"writer {options.writer} has written everything before {options.time}")


def _remove_writer(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.watermarks.remove_writer(*stream_of(options), options.writer)
    document = {"writer": options.writer, "removed": True}
    return Outcome(document, text=f"watermarks of {options.stream} do not wait for writer {options.writer}")


def _command() -> ResourceCommand:
    command = ResourceCommand("watermark", "Watermarks: the progress of a stream in the time of its events.")
    add_stream(command.action("get", _get, "Show the newest watermark of a stream."))

    parser = command.action(
        "note", _note, "Record the time that a writer has reached, and the position up to which it has written."
    )
    add_stream(parser)
    parser.add_argument("writer", type=_writer, metavar="WRITER")
    parser.add_argument(
        "--time",
        type=checked(_time),
        required=True,
        metavar="TIME",
        help="a whole number, in the unit of the stream's writers",
    )
    parser.add_argument(
        "--position", type=cut, required=True, metavar="SEGMENT:OFFSET,...", help="offset in bytes, by segment id"
    )

    parser = command.action("remove-writer", _remove_writer, "Stop watermarks from waiting for a writer.")
    add_stream(parser)
    parser.add_argument("writer", type=_writer, metavar="WRITER")
    return command


main = _command()
