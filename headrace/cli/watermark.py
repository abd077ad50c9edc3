"""`headrace watermark`: get the newest one, note a writer's time, remove a writer."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.arguments import add_stream, checked, cut, stream_of
from headrace.cli.noun import NounCommand
from headrace.cli.outcome import Outcome
from headrace.client import Headrace
from headrace.model.errors import InvalidRequestError
from headrace.model.writer_marks import check_time, check_writer_name

_writer = checked(check_writer_name)


def _time(text: str) -> int:
    """Decimal digits, perhaps behind a minus sign."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise InvalidRequestError(f"{text[:100]!a} is no time: expected a whole number")
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
    return Outcome(document, text=f"nobody waits for writer {options.writer}")


def _command() -> NounCommand:
    command = NounCommand("watermark", "Watermarks: how far a stream is in the time of its events.")
    add_stream(command.action("get", _get, "Show the newest watermark of a stream."))

    parser = command.action("note", _note, "Say for a writer how far it is in time, and up to where it has written.")
    add_stream(parser)
    parser.add_argument("writer", type=_writer, metavar="WRITER")
    parser.add_argument("--time", type=checked(_time), required=True, metavar="TIME", help="a whole number")
    parser.add_argument(
        "--position", type=cut, required=True, metavar="SEGMENT:OFFSET,...", help="offset in bytes by segment id"
    )

    parser = command.action("remove-writer", _remove_writer, "Let watermarks wait no longer for a writer.")
    add_stream(parser)
    parser.add_argument("writer", type=_writer, metavar="WRITER")
    return command


main = _command()
