"""`headrace event write`: loads files or standard input into a stream."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TextIO

import typer

from headrace.cli.actions import action
from headrace.cli.event_input import Batch, CountedInput, InputFormat, InputRules, Keys, RefusedRow, line_batches
from headrace.cli.outcome import ExitCode, Outcome
from headrace.cli.parameters import ScopedName, StreamName, positive
from headrace.cli.quantities import count_text, duration_text, rate_text, size_text
from headrace.cli.row_input import check_arrow_is_installed, csv_batches, parquet_batches
from headrace.cli.session import Session
from headrace.cli.standard_streams import unreadable
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE

if TYPE_CHECKING:
    from headrace.client import Ack, EventWriter, Transaction

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


# Which file is read how.

STANDARD_INPUT = Path("-")

FORMATS: Final[dict[str, InputFormat]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
"""The format by the end of a file's name, if no option names one. Others, and standard input, have lines."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One file, with the rules by which it is read."""

    path: Path
    rules: InputRules


def _sources(
    paths: Sequence[Path], form: InputFormat | None, rules: InputRules, delimiter: str | None
) -> list[_Source]:
    """The files with their rules. Raises BadParameter if an option does not suit the format of a file."""
    sources = []
    for index, path in enumerate(paths):
        chosen = form or ("lines" if rules.keys.separator is not None else FORMATS.get(path.suffix.lower(), "lines"))
        chosen = "lines" if chosen == "text" else chosen
        between = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
        own = replace(rules, form=chosen, delimiter=between, from_line=rules.from_line if index == 0 else 1)
        _check_rules(own, _shown(path), delimiter)
        sources.append(_Source(path, own))
    return sources


def _check_rules(rules: InputRules, name: str, delimiter: str | None) -> None:
    keys, form = rules.keys, rules.form
    if keys.field is not None and form in ("lines", "raw"):
        raise typer.BadParameter(f"--key-field needs --format jsonl, csv or parquet, but {name} is read as {form}")
    if keys.separator is not None and form != "lines":
        raise typer.BadParameter("--key-separator needs --format lines")
    if form != "csv" and (delimiter is not None or rules.text_cells):
        option = "--text-cells" if delimiter is None else "--delimiter"
        raise typer.BadParameter(f"{option} needs --format csv, but {name} is read as {form}")
    if form == "parquet":
        try:
            check_arrow_is_installed()
        except InvalidRequestError as error:
            raise typer.BadParameter(error.message) from error


def _keys(routing_key: str | None, separator: str | None, field: str | None, default: str | None) -> Keys:
    given = {"--routing-key": routing_key, "--key-separator": separator, "--key-field": field}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise typer.BadParameter(f"{named[0]} and {named[1]} exclude each other: name one of them")
    if separator == "":
        raise typer.BadParameter("--key-separator is empty: name at least one character")
    if default is not None and field is None:
        raise typer.BadParameter("--default-key needs --key-field")
    return Keys(routing_key, separator, field, default)


def _delimiter(text: str | None) -> str | None:
    if text is not None and (len(text) != 1 or text in '"\r\n'):
        raise typer.BadParameter("--delimiter is one character, and neither a quotation mark nor an end of a line")
    return text


def _batches(source: CountedInput, rules: InputRules) -> Iterator[Batch]:
    if rules.form == "csv":
        return csv_batches(source, rules)
    return parquet_batches(source, rules) if rules.form == "parquet" else line_batches(source, rules)


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


# Rows that are left out.

REFUSED_CONTENT_BYTES_MAX: Final = 1 << 20
"""What is kept of a refused row. It may be refused for its size."""


class SkippedRows:
    """Writes refused rows to a file: for each a JSON object with the file, the line, the reason and the row."""

    def __init__(self, file: RawIOBase, path: Path, known: KnownRows) -> None:
        """`file` has no buffer: what is added is in it before later rows are read. `known` rows are in it already."""
        self._file = file
        self._path = path
        self._known = known
        self.count = 0

    def check_is_none_of(self, sources: Sequence[tuple[_Source, BufferedIOBase]]) -> None:
        """Raises BadParameter if a row that is added would be read again."""
        own = os.fstat(self._file.fileno())
        for source, opened in sources:
            with suppress(OSError, AttributeError):  # as for a stream without a file
                if stat.S_ISREG(own.st_mode) and os.path.samestat(own, os.fstat(opened.fileno())):
                    raise typer.BadParameter(f"--skip-invalid names {_shown(source.path)}, which is read")

    def add(self, source: str, row: RefusedRow) -> None:
        """Adds a row of the file with the name `source`. Raises InvalidRequestError if it cannot be written."""
        document: dict[str, Any] = {"file": source, "line": row.line, "reason": row.error.message}
        if row.content is not None:
            content = row.content[:REFUSED_CONTENT_BYTES_MAX]
            try:
                document["row"] = content.decode()
            except UnicodeDecodeError:
                document["base64"] = base64.b64encode(content).decode()
        line = json.dumps(document).encode() + b"\n"
        self.count += 1
        if _digest(line) in self._known.digests:
            return
        if self._known.is_torn:
            line, self._known = b"\n" + line, self._known._replace(is_torn=False)
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidRequestError(f"cannot write the refused row {row.line} to {self._path}: {reason}") from error


REFUSED_LINE_BYTES_MAX: Final = 8 * REFUSED_CONTENT_BYTES_MAX
"""A longer line of the file is of no refused row: JSON writes a byte as at most six."""


class KnownRows(NamedTuple):
    """Rows that an earlier run has added, and that a continued one reads again: those behind where it begins.

    `is_torn`: the last line of the file has no end, since the disk was full.
    """

    digests: frozenset[bytes] = frozenset()
    is_torn: bool = False


def known_rows(path: Path, names: Sequence[str], from_line: int) -> KnownRows:
    """The rows in the file of refused rows that are of the files with these `names`, of the first from a line on."""
    if not path.is_file():
        return KnownRows()
    digests: set[bytes] = set()
    line = b"\n"
    with path.open("rb") as file:
        while read := file.readline(REFUSED_LINE_BYTES_MAX):
            line = read
            try:
                document = json.loads(line)
                is_read_again = document["file"] in names and (
                    document["file"] != names[0] or document["line"] >= from_line
                )
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # what another program has written
            if is_read_again:
                digests.add(_digest(line))
    return KnownRows(frozenset(digests), not line.endswith(b"\n"))


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()


def _skipped_rows(
    opened: ExitStack, path: Path | None, paths: Sequence[Path], from_line: int | None
) -> SkippedRows | None:
    """Opens the file of refused rows. Those of an earlier run stay in it, and a continued run adds none twice."""
    if path is None:
        return None
    known = KnownRows() if from_line is None else known_rows(path, [_shown(each) for each in paths], from_line)
    return SkippedRows(opened.enter_context(path.open("ab", buffering=0)), path, known)


# Where to continue.


class Place(NamedTuple):
    """A line, row or event of one of the files, and how many events come before it."""

    file: int
    line: int
    events: int


@dataclass(slots=True)
class Loading:
    """How far a load is. `events` were taken from the input; all before `durable` are known to be durable."""

    paths: Sequence[Path]
    durable: Place
    events: int = 0
    target: EventWriter | Transaction | None = None
    _unacknowledged: deque[tuple[Ack, Place]] = field(default_factory=deque)

    @property
    def acknowledged(self) -> int:
        """A transaction has no acknowledged events before its end."""
        return getattr(self.target, "acknowledged_events", 0)

    def note(self, ack: Ack, place: Place) -> None:
        """Events before `place` were written."""
        self._unacknowledged.append((ack, place))
        self.update()

    def update(self) -> None:
        """Moves `durable` past the batches that were acknowledged. Other batches may be acknowledged before."""
        while self._unacknowledged:
            ack, place = self._unacknowledged[0]
            if not ack.done or ack.exception() is not None:
                return
            self.durable = place
            self._unacknowledged.popleft()

    def how_to_continue(self) -> str:
        """The options with which the rest is loaded, and how many events may be written again."""
        self.update()
        rest = self.paths[self.durable.file :]
        files = "" if rest == self.paths else " ".join(shlex.quote(str(path)) for path in rest) + " "
        repeated = self.events - self.durable.events
        again = f", which may write {count_text(repeated, 'event')} again" if repeated else ""
        return f"to continue: {files}--from-line {self.durable.line}{again}"


def _with_message(error: HeadraceError, message: str) -> HeadraceError:
    return type(error)(message, details=error.details, code=error.specific_code)


# The options.

Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="files to read; none or -: standard input")
]
Format = Annotated[
    InputFormat | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="lines (or text): each line is an event; jsonl: each line is an event and JSON; csv, parquet: each "
        "row is an event, a JSON object with the names of the columns; raw: before each event its length in four "
        "bytes, the most significant first (default: by the name of the file, else lines)",
        show_default=False,
    ),
]
RoutingKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="for all events (default: none, so the order is not kept)"),
]
KeySeparator = Annotated[
    str | None, typer.Option(metavar="TEXT", help="each line is a routing key, this text and the event")
]
KeyField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="with jsonl, csv, parquet: the field with the routing key; a row without it, or with null, is refused",
    ),
]
DefaultKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="with --key-field: the routing key of rows that have none")
]
Delimiter = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help="with csv: what separates cells (default , and in .tsv tabs)"),
]
TextCells = Annotated[
    bool,
    typer.Option(
        "--text-cells",
        help="with csv: each cell is a string (default: a cell that is written as a number, true or false in JSON "
        "is one, an empty one is null, others are strings)",
    ),
]
SkipInvalid = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="leave rows out that are refused, and append them to this file as JSON lines with the reason; the "
        "exit code is 7 then (default: end at the first)",
    ),
]
FromLine = Annotated[
    int | None,
    typer.Option(
        parser=positive,
        metavar="N",
        show_default=False,
        help="begin at this line of the first file, to continue a load that failed; of parquet it is the row, of "
        "raw the event",
    ),
]
InTransaction = Annotated[
    bool,
    typer.Option(
        "--transaction",
        help="write all events or none: in one transaction, of at most 24 hours and with events of at most 8 MiB",
    ),
]


EXAMPLES: Final = (
    "seq 1 1000 | headrace event write shop/orders",
    "headrace event write shop/orders orders.csv --key-field customer",
    "headrace event write shop/orders orders.parquet --key-field customer --default-key unknown --transaction",
    "headrace event write shop/orders orders.jsonl --key-field customer --skip-invalid refused.jsonl",
    "headrace event write shop/orders --key-separator ' ' orders.txt",
    "headrace event read shop/orders --format raw | headrace event write shop/copy --format raw",
)


def add_to(app: typer.Typer) -> None:
    """Adds the action to the application of events."""
    action(
        app,
        "write",
        examples=EXAMPLES,
    )(write)


def write(
    session: Session,
    stream: StreamName,
    files: Files = None,
    form: Format = None,
    routing_key: RoutingKey = None,
    key_separator: KeySeparator = None,
    key_field: KeyField = None,
    default_key: DefaultKey = None,
    delimiter: Delimiter = None,
    text_cells: TextCells = False,
    skip_invalid: SkipInvalid = None,
    from_line: FromLine = None,
    transaction: InTransaction = False,
) -> Outcome:
    """Write events; return when all are durable.

    On a terminal it shows the progress. If it fails or is interrupted by Ctrl-C, it says how many events were
    acknowledged and from which line to continue.
    """
    paths = files or [STANDARD_INPUT]
    first_line = from_line or 1
    loading = Loading(paths, Place(0, first_line, 0))
    with ExitStack() as opened:
        rules = InputRules(
            keys=_keys(routing_key, key_separator, key_field, default_key),
            from_line=first_line,
            event_bytes_max=EVENT_BYTES_MAX if transaction else EVENT_BYTES_MAX_LARGE,
            text_cells=text_cells,
            tell=session.complain,
        )
        sources = _sources(paths, form, rules, _delimiter(delimiter))
        skipped = _skipped_rows(opened, skip_invalid, paths, from_line)
        inputs = [(source, _open(opened, session, source.path)) for source in sources]
        if skipped is not None:
            skipped.check_is_none_of(inputs)
        load = _Load(session, stream, loading, skipped, inputs)
        (load.in_transaction if transaction else load.run)()
    return _loaded(loading.events, skipped, skip_invalid)


def _loaded(events: int, skipped: SkippedRows | None, file: Path | None) -> Outcome:
    text = f"{count_text(events, 'event')} written"
    refused = 0 if skipped is None else skipped.count
    if refused:
        text += f", {count_text(refused, 'row')} refused: see {file}"
    return Outcome(
        {"appended": events, "refused": refused}, text=text, code=ExitCode.INCOMPLETE if refused else ExitCode.DONE
    )


class _Ending(NamedTuple):
    """What became of a transaction after an error, also as the end of a message."""

    is_committed: bool
    text: str


class _Load:
    """One run: from opened files into a stream."""

    def __init__(
        self,
        session: Session,
        stream: ScopedName,
        loading: Loading,
        skipped: SkippedRows | None,
        sources: list[tuple[_Source, BufferedIOBase]],
    ) -> None:
        self._session = session
        self._stream = stream
        self._loading = loading
        self._skipped = skipped
        self._total_bytes = _total_bytes([opened for _, opened in sources])
        self._inputs = [(source, CountedInput(opened, _shown(source.path))) for source, opened in sources]

    def run(self) -> None:
        """Writes everything, and returns when all events are durable."""
        loading = self._loading
        try:
            with self._session.client.writer(*self._stream) as writer:
                loading.target = writer
                try:
                    self._write(writer)
                except InvalidRequestError as error:
                    writer.flush()
                    verb = "is" if loading.events == 1 else "are"
                    written = f"{count_text(loading.events, 'event')} before it {verb} written"
                    rest = f"{written}; {loading.how_to_continue()}" if loading.events else "nothing is written"
                    raise _with_message(error, f"{error.message}; {rest}") from error
        except KeyboardInterrupt:
            # Wherever it came: what is known to be durable need not be written again.
            self._session.complain(f"interrupted: {self._acknowledged()}; {loading.how_to_continue()}")
            raise
        except HeadraceError as error:
            if isinstance(error, InvalidRequestError) or loading.target is None:
                raise
            message = f"{error.message}; {self._acknowledged()}; {loading.how_to_continue()}"
            raise _with_message(error, message) from error

    def in_transaction(self) -> None:
        """Writes and commits everything in one transaction. After an error or an interrupt it aborts it."""
        with self._session.client.transactional_writer(*self._stream) as writer:
            transaction: Transaction | None = None
            is_whole = False
            try:
                transaction = self._loading.target = writer.begin()
                self._write(transaction)
                is_whole = True
                transaction.commit(wait=True)
            except KeyboardInterrupt:
                # One that the controller has begun just now ends with its lease.
                end = "nothing is written" if transaction is None else self._abort(transaction, is_whole=is_whole).text
                self._session.complain(f"interrupted: {end}")
                raise
            except HeadraceError as error:
                if transaction is None:
                    raise
                ending = self._abort(transaction, is_whole=is_whole)
                if not (ending.is_committed and is_whole):
                    raise _with_message(error, f"{error.message}; {ending.text}") from error
                transaction.commit(wait=True)  # again, for the answer that was lost
            except BaseException:
                if transaction is not None:
                    self._abort(transaction, is_whole=is_whole)
                raise

    def _acknowledged(self) -> str:
        loading = self._loading
        return f"{loading.acknowledged} of {count_text(loading.events, 'event')} acknowledged"

    def _abort(self, transaction: Transaction, *, is_whole: bool) -> _Ending:
        """Aborts a transaction after an error; says what became of it. `is_whole`: it has all events."""
        try:
            transaction.abort()
        except IllegalStateError as error:
            if error.specific_code != "transaction_committed":
                return _Ending(is_committed=False, text="nothing is written")
            how = ": all events are written" if is_whole else " by another client, perhaps with a part of the events"
            return _Ending(is_committed=True, text=f"transaction {transaction.id} was committed{how}")
        except HeadraceError as error:
            return _Ending(
                is_committed=False,
                text=f"transaction {transaction.id} could not be aborted ({error.message}). Unless its commit has "
                f"begun, it is aborted when its lease ends; to look: headrace transaction get {self._stream} "
                f"{transaction.id}",
            )
        return _Ending(is_committed=False, text="the transaction was aborted: nothing is written")

    def _write(self, target: EventWriter | Transaction) -> None:
        loading = self._loading

        def count() -> Written:
            return Written(loading.events, loading.acknowledged, sum(source.bytes_read for _, source in self._inputs))

        with WriteProgress(count, self._total_bytes, sys.stderr):
            for index in range(len(self._inputs)):
                self._write_file(target, index)
            target.flush()

    def _write_file(self, target: EventWriter | Transaction, index: int) -> None:
        loading = self._loading
        source, opened = self._inputs[index]
        rules = source.rules
        if self._skipped is not None:
            rules = replace(rules, refuse=partial(self._skipped.add, opened.name))
        try:
            for batch in _batches(opened, rules):
                # Counted before it is queued: parts of it may be durable before all of it is queued.
                loading.events += len(batch.events)
                ack = target.write_batch(batch.events, batch.routing_keys)
                loading.note(ack, Place(index, batch.next_line, loading.events))
        except InvalidRequestError as error:
            if len(self._inputs) == 1 or opened.name in error.message:
                raise
            raise _with_message(error, f"{opened.name}: {error.message}") from error
