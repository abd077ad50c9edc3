"""`headrace watermark`: show the newest watermark, note a writer's time, remove a writer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome
from headrace.cli.parameters import StreamName, checked, cut
from headrace.cli.session import Session
from headrace.codec.places import segment_text
from headrace.model.errors import InvalidRequestError
from headrace.model.writer_marks import check_time, check_writer_name

app = new_app()

WriterName = Annotated[str, typer.Argument(parser=checked(check_writer_name), metavar="WRITER", show_default=False)]


def _time(text: str) -> int:
    """Decimal digits, optionally after a minus sign."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise InvalidRequestError(f"{text[:100]!a} is not a time: expected a whole number")
    return check_time(int(text))


@action(app, "get", examples=["headrace watermark get shop/orders"])
def get(session: Session, stream: StreamName) -> Outcome:
    """Show the newest watermark of a stream."""
    newest = session.client.admin.watermarks.newest(*stream)
    mark = newest.watermark
    watermark: dict[str, Any] | None = None
    if mark is not None:
        watermark = {
            "lowerTime": mark.lower_time,
            "upperTime": mark.upper_time,
            "cut": {str(position.segment.segment_id): position.offset for position in mark.cut},
        }
    document = {"watermark": watermark, "markSegment": newest.mark_segment, "offset": newest.offset}
    if mark is None:
        return Outcome(document, text=f"stream {stream} has no watermark yet")
    positions = ",".join(f"{segment_text(position.segment.segment_id)}:{position.offset}" for position in mark.cut)
    return Outcome(document, text=f"from {mark.lower_time} to {mark.upper_time} at {positions}")


@action(
    app,
    "note",
    examples=["headrace watermark note shop/orders writer-1 --time 1700000000000 --position 0@0:1024,1@0:2048"],
)
def note(
    session: Session,
    stream: StreamName,
    writer: WriterName,
    time: Annotated[
        int,
        typer.Option(parser=checked(_time), metavar="TIME", help="a whole number, in the unit of the stream's writers"),
    ],
    position: Annotated[
        dict[int, int],
        typer.Option(parser=cut, metavar="SEGMENT:OFFSET,...", help="offset in bytes, by segment"),
    ],
) -> Outcome:
    """Record the time that a writer has reached, and the position up to which it has written."""
    session.client.admin.watermarks.note_position(*stream, writer, time, position)
    document = {"writer": writer, "time": time, "noted": True}
    return Outcome(document, text=f"writer {writer} has written everything before {time}")


@action(app, "remove-writer", examples=["headrace watermark remove-writer shop/orders writer-1"])
def remove_writer(session: Session, stream: StreamName, writer: WriterName) -> Outcome:
    """Stop watermarks from waiting for a writer."""
    session.client.admin.watermarks.remove_writer(*stream, writer)
    document = {"writer": writer, "removed": True}
    return Outcome(document, text=f"watermarks of {stream} do not wait for writer {writer}")
