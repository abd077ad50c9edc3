"""`headrace event`: write events of files or standard input to a stream, or read its events."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TextIO

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.event_input import LENGTH, Batch, CountedInput, InputFormat, Keys, batches
from headrace.cli.outcome import Outcome, cell
from headrace.cli.parameters import ScopedName, StreamName, positive
from headrace.cli.quantities import count_text, duration_text, rate_text, size_text
from headrace.cli.session import Session
from headrace.cli.standard_streams import unreadable
from headrace.cli.times import POINT_HELP, Point, point
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.client import EventRead, EventWriter, ReaderOptions
    from headrace.client.reading.event_reader import Start

# The progress of `headrace event write`, on one line of standard error while that is a terminal.

REFRESH_S = 0.2
WINDOW_S = 5.0
"""The rate is that of the last seconds, so that it follows changes."""

_CLEAR_LINE = "\r\x1b[2K"


class Written(NamedTuple):
    """Counts at one moment. `events` were read from the input, `acknowledged` of them are durable."""

    events: int
    acknowledged: int
    bytes_read: int


class Rate:
    """Bytes per second over the last `WINDOW_S`. Times are in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, total_bytes: int) -> float:
        """Adds a sample; returns the rate, 0.0 while there is only one."""
        self._samples.append((at_s, total_bytes))
        while len(self._samples) > 2 and at_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        return (total_bytes - first_bytes) / (at_s - first_s) if at_s > first_s else 0.0


def progress_line(written: Written, bytes_per_s: float, total_bytes: int | None) -> str:
    """For example `1,200 events written, 1,100 acknowledged, 1.2 MB, 300.0 kB/s, 5 s left`."""
    parts = [
        f"{written.events:,} events written",
        f"{written.acknowledged:,} acknowledged",
        size_text(written.bytes_read),
        rate_text(bytes_per_s),
    ]
    if total_bytes is not None:
        left = max(0, total_bytes - written.bytes_read)
        if left and bytes_per_s > 0:
            parts.append(f"{duration_text(left / bytes_per_s)} left")
    return ", ".join(parts)


class WriteProgress:
    """Shows the progress in a thread of its own, also while the writer waits. Does nothing without a terminal."""

    def __init__(self, count: Callable[[], Written], total_bytes: int | None, stream: TextIO) -> None:
        self._count = count
        self._total_bytes = total_bytes
        self._stream = stream
        self._rate = Rate()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-progress", daemon=True)

    def __enter__(self) -> WriteProgress:
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._show(_CLEAR_LINE)

    def _run(self) -> None:
        while not self._ended.wait(REFRESH_S):
            written = self._count()
            line = progress_line(written, self._rate.add(time.monotonic(), written.bytes_read), self._total_bytes)
            self._show(f"{_CLEAR_LINE}{line}")

    def _show(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone; the events still count
            self._stream.write(text)
            self._stream.flush()


# How `headrace event read` prints an event.
#
# Text is for people: control characters and bytes that are not UTF-8 are escaped. The other formats lose nothing.

OutputFormat = Literal["text", "json", "base64", "raw"]

Print = Callable[["EventRead"], object]


def printer(form: OutputFormat, output: TextIO) -> Print:
    """A function that prints one event to `output`."""
    if form == "raw":
        return lambda read: output.buffer.write(LENGTH.pack(len(read.event)) + read.event)
    line: Callable[[EventRead], str] = {"text": _text, "json": _json, "base64": _base64}[form]
    return lambda read: output.write(f"{line(read)}\n")


def _text(read: EventRead) -> str:
    return cell(read.event.decode("utf-8", "backslashreplace")) if read.event else ""


def _base64(read: EventRead) -> str:
    return base64.b64encode(read.event).decode()


def _json(read: EventRead) -> str:
    """An object with the event as text, or in base64 if it is not UTF-8."""
    document: dict[str, Any] = {"segment": read.segment_id, "offset": read.offset}
    try:
        document["event"] = read.event.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(read.event).decode()
    return json.dumps(document)


app = new_app()

STANDARD_INPUT = Path("-")

Order = Literal["arrival", "time"]


@action(
    app,
    "write",
    examples=[
        "seq 1 1000 | headrace event write shop/orders",
        "headrace event write shop/orders --format jsonl --key-field customer orders.jsonl",
        "headrace event write shop/orders --key-separator , prices.csv",
        "headrace event read shop/orders --format raw | headrace event write shop/copy --format raw",
    ],
)
def write(
    session: Session,
    stream: StreamName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="files to read; none or -: standard input")
    ] = None,
    form: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="lines: each line is an event; jsonl: each line is an event and JSON; raw: before each event its "
            "length in four bytes, the most significant first",
        ),
    ] = "lines",
    routing_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="for all events (default: none, so the order is not kept)"),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="each line is a routing key, this text and the event")
    ] = None,
    key_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="with jsonl: the field with the routing key")
    ] = None,
) -> Outcome:
    """Write events; return when all are durable.

    On a terminal it shows the progress. Interrupted by Ctrl-C, it says how many events were acknowledged.
    """
    keys = _keys(form, routing_key, key_separator, key_field)
    counts = _Counts()
    try:
        with ExitStack() as opened:
            paths = files or (STANDARD_INPUT,)
            sources = [_open(opened, session, path) for path in paths]
            inputs = [CountedInput(source, _shown(path)) for source, path in zip(sources, paths, strict=True)]
            counts.writer = opened.enter_context(session.client.writer(*stream))
            _write_all(session, counts, counts.writer, inputs, form, keys, _total_bytes(sources))
    except KeyboardInterrupt:
        # Wherever it came: what is known to be durable need not be written again.
        session.complain(f"interrupted: {counts.acknowledged} of {count_text(counts.events, 'event')} acknowledged")
        raise
    return Outcome({"appended": counts.events}, text=f"{count_text(counts.events, 'event')} written")


@action(
    app,
    "read",
    examples=[
        "headrace event read shop/orders --from -5m",
        "headrace event read shop/orders --from 10:05 --to 10:10 --format json",
        "headrace event read shop/orders --follow",
    ],
)
def read(
    session: Session,
    stream: StreamName,
    start: Annotated[
        Any,
        typer.Option(
            "--from", parser=point, metavar="POINT", help=f"{POINT_HELP} (default: earliest; with --follow: latest)"
        ),
    ] = None,
    end: Annotated[
        Any, typer.Option("--to", parser=point, metavar="POINT", help="where to stop (default: latest)")
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
    form: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            help="text: a line with control characters escaped; json: an object per line; base64: a line; raw: the "
            "length in four bytes, then the event (default: text, with --json json)",
        ),
    ] = None,
) -> None:
    """Print the events up to the current end of the stream, or with --follow also new ones as they arrive."""
    if follow and end is not None:
        raise typer.BadParameter("--follow and --to exclude each other: name one of them")
    chosen = form or ("json" if session.json else "text")
    if chosen == "raw" and session.is_terminal:
        raise typer.BadParameter("raw bytes are not for a terminal: redirect the output to a file or a pipe")
    first: Point = start if start is not None else "tail" if follow else "head"
    show = printer(chosen, session.output)
    printed = 0
    try:
        starting, ending = _start(session, stream, first), _end(session, stream, end, follow)
        with session.client.reader(*stream, start=starting, end=ending, options=_options(order)) as reader:
            for event in reader:
                show(event)
                if follow:
                    session.output.flush()
                printed += 1
                if printed == count:
                    return
    except KeyboardInterrupt:
        session.complain(f"interrupted: {count_text(printed, 'event')} printed")
        raise


def _options(order: Order) -> ReaderOptions:
    from headrace.client import ReaderOptions, ReadOrder

    return ReaderOptions(order=ReadOrder(order))


def _keys(form: InputFormat, routing_key: str | None, separator: str | None, field: str | None) -> Keys:
    given = {"--routing-key": routing_key, "--key-separator": separator, "--key-field": field}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise typer.BadParameter(f"{named[0]} and {named[1]} exclude each other: name one of them")
    if field is not None and form != "jsonl":
        raise typer.BadParameter("--key-field needs --format jsonl")
    if separator is not None and form != "lines":
        raise typer.BadParameter("--key-separator needs --format lines")
    if separator == "":
        raise typer.BadParameter("--key-separator is empty: name at least one character")
    return Keys(routing_key, separator, field)


def _open(opened: ExitStack, session: Session, path: Path) -> BufferedIOBase:
    if path == STANDARD_INPUT:
        return session.input
    try:
        return opened.enter_context(path.open("rb"))
    except OSError as error:
        raise unreadable(_shown(path), error) from error


def _shown(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _total_bytes(sources: list[BufferedIOBase]) -> int | None:
    """The size of all files; None if one is a pipe or a terminal, which has no known end."""
    total = 0
    for source in sources:
        try:
            status = os.fstat(source.fileno())
        except (OSError, AttributeError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


@dataclass(slots=True)
class _Counts:
    """The events that were taken from the input, and how many of them the writer knows to be durable."""

    events: int = 0
    writer: EventWriter | None = None

    @property
    def acknowledged(self) -> int:
        return 0 if self.writer is None else self.writer.acknowledged_events


def _write_all(
    session: Session,
    counts: _Counts,
    writer: EventWriter,
    inputs: list[CountedInput],
    form: InputFormat,
    keys: Keys,
    total_bytes: int | None,
) -> None:
    """Writes everything, and returns when all events are durable."""

    def count() -> Written:
        return Written(counts.events, counts.acknowledged, sum(one.bytes_read for one in inputs))

    try:
        with WriteProgress(count, total_bytes, sys.stderr):
            for batch in _batches(session, inputs, form, keys):
                # Counted before it is queued: parts of it may be durable before all of it is queued.
                counts.events += len(batch.events)
                writer.write_batch(batch.events, batch.routing_keys)
            writer.flush()
    except InvalidRequestError as error:
        writer.flush()
        before = f"{count_text(counts.events, 'event')} before it {'is' if counts.events == 1 else 'are'} written"
        raise InvalidRequestError(f"{error.message}; {before}", code=error.specific_code) from error


def _batches(session: Session, inputs: list[CountedInput], form: InputFormat, keys: Keys) -> Iterator[Batch]:
    for source in inputs:
        yield from batches(source, form, keys, session.complain)


def _start(session: Session, stream: ScopedName, first: Point) -> Start:
    if isinstance(first, datetime):
        return session.client.stream_cut_at(*stream, first)
    return StreamCut.of(*stream, first) if isinstance(first, dict) else first


def _end(session: Session, stream: ScopedName, last: Point | None, follow: bool) -> StreamCut | None:
    if follow:
        return None
    if isinstance(last, datetime):
        return session.client.stream_cut_at(*stream, last)
    if isinstance(last, dict):
        return StreamCut.of(*stream, last)
    return session.client.admin.stream_cut(*stream, at=last or "tail")
