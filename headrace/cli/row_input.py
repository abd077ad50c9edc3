"""Events of tables: each row of a CSV or Parquet file becomes a JSON object with the names of its columns.

Rows are read one after the other, so that a file may be larger than the memory.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import re
from collections import deque
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.cli.event_input import Batch, CountedInput, InputRules, Record, RefusedRow, without_byte_order_mark
from headrace.cli.quantities import count_text
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BYTES_MAX: Final = EVENT_BYTES_MAX
"""The most that a row of CSV may have. A quotation mark without its end would take the rest of the file for one row."""

PARQUET_ROWS: Final = 512
"""Rows that are decoded at once."""

PARQUET_BUFFER_BYTES: Final = 1 << 20
"""What is read at once of each column. Without it a whole row group is in memory."""

ARROW_MISSING: Final = "the format parquet needs pyarrow. To install it: pip install 'headrace[cli,arrow]'"

Row = dict[str, Any] | Exception

_NOT_REPRESENTED: Final = (ValueError, ArithmeticError, LookupError, TypeError)
"""What the conversion of a value raises: bytes that are not UTF-8, years after 9999, unknown time zones."""

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_WORDS: Final = {"": "null", "true": "true", "false": "false"}


class _Pending:
    """Rows that were read and are not yielded yet."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._routing_keys: list[str | None] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, record: Record) -> None:
        self._events.append(record.event)
        self._routing_keys.append(record.routing_key)

    def take(self, next_line: int) -> Batch:
        """The rows as a batch, which ends before `next_line`."""
        batch = Batch(self._events, self._routing_keys, next_line)
        self._events, self._routing_keys = [], []
        return batch


# CSV


class _CsvLines:
    """Gives the lines of a CSV file to the parser, which asks for as many as the next record has."""

    def __init__(self, source: CountedInput, rules: InputRules) -> None:
        self._source = source
        self._rules = rules
        self._chunks = source.lines(ROW_BYTES_MAX, with_returns=True)  # those inside a quoted cell belong to it
        self._waiting: deque[bytes] = deque()
        self._record: list[bytes] = []
        self._record_bytes = 0
        self.number = 0
        """Of the last line that the parser has."""
        self.source_error: InvalidRequestError | None = None
        """The source cannot be read, so that no further record follows."""
        self.text_error: InvalidRequestError | None = None
        """The record that was parsed last is not text. Only its parsing tells where it ends."""

    @property
    def has_line(self) -> bool:
        """Whether the next line is there."""
        return bool(self._waiting)

    @property
    def content(self) -> bytes:
        """The lines of the record that was parsed last, in part if it is too large."""
        return b"\n".join(self._record).removesuffix(b"\r")

    def begin_record(self) -> int:
        """Returns the number of the first line of the next record."""
        self._record, self._record_bytes, self.text_error = [], 0, None
        return self.number + 1

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        if not self._waiting:
            try:
                self._waiting.extend(next(self._chunks))
            except InvalidRequestError as error:
                self.source_error = error
                raise
        line = self._waiting.popleft()
        self.number += 1
        if self.number == 1:
            line = without_byte_order_mark(line, self._source, self._rules)
        self._record.append(line)
        self._record_bytes += len(line) + 1
        if self._record_bytes > ROW_BYTES_MAX:
            raise InvalidRequestError(
                f"the row has more than {ROW_BYTES_MAX} bytes; is a quotation mark without its end?",
                code="event_too_large",
            )
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.text_error = self.text_error or InvalidRequestError(f"line {self.number} is not UTF-8")
            return line.decode(errors="replace") + "\n"


def csv_batches(source: CountedInput, rules: InputRules) -> Iterator[Batch]:
    """Yields the rows of a CSV file with a header. It never waits for more bytes while it has rows.

    The number of a row is that of its first line. Before `rules.refuse` gets a row, the rows before it were yielded.

    Raises:
        InvalidRequestError: the source cannot be read, or its header is missing, has a name twice, or has no field with
            the routing key.
    """
    csv.field_size_limit(ROW_BYTES_MAX)
    lines = _CsvLines(source, rules)
    reader = csv.reader(lines, delimiter=rules.delimiter, strict=True)
    names = _header(reader, lines, source, rules)
    pending = _Pending()
    while True:
        if pending and not lines.has_line:
            yield pending.take(lines.number + 1)
        number = lines.begin_record()
        try:
            cells = next(reader, None)
            if cells is None:
                break
            if lines.text_error is not None:
                raise lines.text_error
            if cells and number >= rules.from_line:
                pending.add(_csv_record(number, names, cells, rules))
        except (InvalidRequestError, csv.Error) as error:
            yield pending.take(number)
            if lines.source_error is not None:
                raise lines.source_error from None
            if number >= rules.from_line:
                rules.refuse(RefusedRow(number, lines.content, _of_line(number, error)))
    if pending:
        yield pending.take(lines.number + 1)


def _header(reader: Iterator[list[str]], lines: _CsvLines, source: CountedInput, rules: InputRules) -> list[str]:
    try:
        names = next(reader, None)
        if lines.text_error is not None:
            raise lines.text_error
    except (InvalidRequestError, csv.Error) as error:
        raise InvalidRequestError(f"{source.name} has no header: {error}") from error
    if not names:
        raise InvalidRequestError(f"{source.name} has no header: its first line must have the names of the fields")
    _check_names(names, source, rules)
    return names


def _check_names(names: list[str], source: CountedInput, rules: InputRules) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidRequestError(f"{source.name} has two fields with the name {repeated[:100]!r}")
    field = rules.keys.field
    if field is not None and field not in names:
        shown = ", ".join(name[:100] for name in names[:50])
        raise InvalidRequestError(f"{source.name} has no field {field!r} for --key-field; its fields are {shown}")


def _of_line(number: int, error: Exception) -> InvalidRequestError:
    if isinstance(error, InvalidRequestError):
        is_named = error.message.startswith("line ")
        message = error.message if is_named else f"line {number}: {error.message}"
        return InvalidRequestError(message, code=error.specific_code)
    return InvalidRequestError(f"line {number} is not CSV: {error}")


def _csv_record(number: int, names: list[str], cells: list[str], rules: InputRules) -> Record:
    row = f"line {number}"
    if len(cells) != len(names):
        raise InvalidRequestError(
            f"{row} has {count_text(len(cells), 'cell')}, but the header has {count_text(len(names), 'name')}"
        )
    as_json = _as_text if rules.text_cells else cell_json
    members = (f"{_as_text(name)}:{as_json(cell)}" for name, cell in zip(names, cells, strict=True))
    event = f"{{{','.join(members)}}}".encode()
    rules.check_size(row, len(event))
    field = rules.keys.field
    return Record(rules.keys.of(row, None if field is None else cells[names.index(field)] or None), event)


def cell_json(cell: str) -> str:
    """A cell of CSV as JSON: a number if it is written as JSON writes one, true, false, null if empty, else a string.

    A number has at most 18 digits before its point, so that 64 bits suffice. `007` and `+1` are strings.
    """
    word = _WORDS.get(cell)
    if word is not None:
        return word
    return cell if _NUMBER.fullmatch(cell) else _as_text(cell)


def _as_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# Parquet


def check_arrow_is_installed() -> None:
    """Raises InvalidRequestError, code "arrow_missing"."""
    try:
        import pyarrow.parquet  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise InvalidRequestError(ARROW_MISSING, code="arrow_missing") from error


def parquet_batches(source: CountedInput, rules: InputRules) -> Iterator[Batch]:
    """Yields the rows of a Parquet file, which are numbered from 1.

    Raises:
        InvalidRequestError: it is not a Parquet file, cannot be read from any place, has two columns of one name, or no
            column with the routing key.
    """
    if not source.source.seekable():
        raise InvalidRequestError(f"{source.name} is a pipe, but a Parquet file is read from its end: name a file")
    pending = _Pending()
    for first, rows in _parquet_rows(source, rules):
        for number, row in enumerate(rows, first):
            if number < rules.from_line:
                continue
            try:
                pending.add(_parquet_record(number, row, rules))
            except InvalidRequestError as error:
                yield pending.take(number)
                rules.refuse(RefusedRow(number, None, error))
        yield pending.take(first + len(rows))


def _parquet_rows(source: CountedInput, rules: InputRules) -> Iterator[tuple[int, list[Row]]]:
    """Rows with the number of the first one; an error instead of a row that Python cannot represent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = source.source.seek(0, 2)
    first = 1
    try:
        with pq.ParquetFile(source.source, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False) as file:
            _check_names(file.schema_arrow.names, source, rules)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                following = first + batch.num_rows
                source.bytes_read = size * (following - 1) // file.metadata.num_rows
                if following > rules.from_line:
                    yield first, _rows(_in_microseconds(batch))
                first = following
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequestError(f"cannot read {source.name} as Parquet: {reason}") from error


def _rows(batch: pa.RecordBatch) -> list[Row]:
    """If a value fails, each row is converted by itself, so that only the rows with such values fail."""
    try:
        return cast("list[Row]", batch.to_pylist())
    except _NOT_REPRESENTED as error:
        if batch.num_rows == 1:
            return [error]
        return [row for index in range(batch.num_rows) for row in _rows(batch.slice(index, 1))]


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no nanoseconds."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        kind = column.type
        is_too_fine = pa.types.is_timestamp(kind) and kind.unit == "ns"
        columns.append(column.cast(pa.timestamp("us", kind.tz), safe=False) if is_too_fine else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _parquet_record(number: int, row: Row, rules: InputRules) -> Record:
    if isinstance(row, Exception):
        raise InvalidRequestError(f"row {number} has a value that cannot be converted: {row}")
    document = {name: json_value(value) for name, value in row.items()}
    event = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    rules.check_size(f"row {number}", len(event))
    return Record(rules.keys.of(f"row {number}", document.get(rules.keys.field or "")), event)


def json_value(value: Any) -> Any:
    """A value of a column as JSON has it.

    Times are in ISO 8601, durations in seconds, decimals are strings, bytes are in base64. JSON has no NaN and no
    infinity: they are null. Values that JSON has not, such as UUIDs, are strings.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [json_value(inner) for inner in value]
        case dict():
            return {name: json_value(inner) for name, inner in value.items()}
        case _:
            return str(value)
