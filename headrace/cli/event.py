"""`headrace event`: read events of a stream. `event_write` writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from headrace.cli import event_write
from headrace.cli.actions import action, new_app
from headrace.cli.event_input import LENGTH
from headrace.cli.outcome import cell
from headrace.cli.parameters import StreamName, client_place, place, positive
from headrace.cli.quantities import count_text
from headrace.cli.session import Session
from headrace.codec.places import PLACE_HELP, ParsedPlace

if TYPE_CHECKING:
    from headrace.client import EventRead, EventReader, ReaderOptions, TimeWindow

# How `headrace event read` prints an event.
#
# Text is for people: control characters and bytes that are not UTF-8 are escaped. The other formats lose nothing.

OutputFormat = Literal["text", "json", "base64", "raw"]

Print = Callable[["EventRead", "TimeWindow | None"], object]
"""Prints an event, and with --times what is known of its time."""


def printer(form: OutputFormat, output: TextIO) -> Print:
    """A function that prints one event to `output`."""
    if form == "raw":
        return lambda read, _: output.buffer.write(LENGTH.pack(len(read.event)) + read.event)
    if form == "json":
        return lambda read, window: output.write(f"{_json(read, window)}\n")
    line: Callable[[EventRead], str] = {"text": _text, "base64": _base64}[form]
    return lambda read, window: output.write(f"{_times(window)}{line(read)}\n")


def _times(window: TimeWindow | None) -> str:
    """The bounds in front of an event, `-` for one that is not known."""
    if window is None:
        return ""
    return "..".join("-" if bound is None else str(bound) for bound in window) + "  "


def _text(read: EventRead) -> str:
    return cell(read.event.decode("utf-8", "backslashreplace")) if read.event else ""


def _base64(read: EventRead) -> str:
    return base64.b64encode(read.event).decode()


def _json(read: EventRead, window: TimeWindow | None) -> str:
    """An object with the event as text, or in base64 if it is not UTF-8."""
    document: dict[str, Any] = {"segment": read.segment_id, "offset": read.offset}
    try:
        document["event"] = read.event.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(read.event).decode()
    if window is not None:
        document |= {"timeLower": window.lower, "timeUpper": window.upper}
    return json.dumps(document)


app = new_app()

STANDARD_INPUT = Path("-")

Order = Literal["arrival", "time"]


event_write.add_to(app)


@action(
    app,
    "read",
    examples=[
        "headrace event read shop/orders --from -5m",
        "headrace event read shop/orders --from 10:05 --to 10:10 --format json",
        "headrace event read shop/orders --follow",
        "headrace event read shop/orders --follow --from-s3",
        "headrace event read shop/orders --times --format json",
    ],
)
def read(
    session: Session,
    stream: StreamName,
    start: Annotated[
        Any,
        typer.Option(
            "--from", parser=place, metavar="PLACE", help=f"{PLACE_HELP} (default: earliest; with --follow: latest)"
        ),
    ] = None,
    end: Annotated[
        Any, typer.Option("--to", parser=place, metavar="PLACE", help="where to stop (default: latest)")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="wait for new events, until Ctrl-C")] = False,
    count: Annotated[int | None, typer.Option(parser=positive, metavar="N", help="stop after N events")] = None,
    order: Annotated[
        Order,
        typer.Option(
            help="of events with different routing keys: as they arrive, or by the time at which they were stored",
            show_default=False,
        ),
    ] = "arrival",
    from_s3: Annotated[
        bool,
        typer.Option("--from-s3", help="read only what is in S3, without a connection to a store: some seconds behind"),
    ] = False,
    form: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            help="text: a line with control characters escaped; json: an object per line; base64: a line; raw: the "
            "length in four bytes, then the event (default: text, with --json json)",
        ),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="also print between which times events are, where writers note their times")
    ] = False,
) -> None:
    """Print the events up to the current end of the stream, or with --follow also new ones as they arrive.

    A stream stores no time with an event. --times prints what its watermarks tell, in the unit of the writers: an event
    is not older than the first time, and writers had about reached the second one. It takes a request for each event.
    """
    if from_s3 and (times or order == "time"):
        raise typer.BadParameter("--from-s3 has no times: leave out --times and --order time")
    if follow and end is not None:
        raise typer.BadParameter("--follow and --to exclude each other: name one of them")
    chosen = form or ("json" if session.json else "text")
    if chosen == "raw" and session.is_terminal:
        raise typer.BadParameter("raw bytes are not for a terminal: redirect the output to a file or a pipe")
    if chosen == "raw" and times:
        raise typer.BadParameter("--times needs another format than raw, which has room for events only")
    first: ParsedPlace = start if start is not None else "latest" if follow else "earliest"
    show = printer(chosen, session.output)
    printed = 0
    try:
        starting = client_place(stream, first)
        ending = None if follow else client_place(stream, end or "latest")
        options = _options(order, from_s3=from_s3)
        with session.client.reader(*stream, start=starting, end=ending, options=options) as reader:
            for event, window in _with_times(reader) if times else ((event, None) for event in reader):
                show(event, window)
                if follow:
                    session.output.flush()
                printed += 1
                if printed == count:
                    return
        if follow:
            session.complain("the stream is sealed, and read to its end")
    except KeyboardInterrupt:
        session.complain(f"interrupted: {count_text(printed, 'event')} printed")
        raise


def _with_times(reader: EventReader) -> Iterator[tuple[EventRead, TimeWindow]]:
    """The events with the bounds at their positions: the first of those before an event, the second of those after."""
    from headrace.client import TimeWindow

    before = reader.time_window()
    for event in reader:
        after = reader.time_window()
        yield event, TimeWindow(before.lower, after.upper)
        before = after


def _options(order: Order, *, from_s3: bool) -> ReaderOptions:
    from headrace.client import ReaderOptions, ReadOrder

    return ReaderOptions(order=ReadOrder(order), from_s3=from_s3)
