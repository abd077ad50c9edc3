"""Events of files and standard input: as lines, as JSON lines, or with a length before each.

Input comes from outside: the size of an event is bounded before memory is taken for it. `row_input` reads tables.
"""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any, Literal, NamedTuple

from headrace.cli.standard_streams import unreadable
from headrace.codec.places import Tell, tell_nothing
from headrace.codec.strict_json import RefusedJsonError, has_half_pairs, parse_json, text_of
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE

InputFormat = Literal["lines", "text", "jsonl", "csv", "parquet", "raw"]
"""`text` is another name of `lines`."""

LENGTH = struct.Struct(">I")
"""The length of an event in the format "raw": four bytes, the most significant first."""

READ_BYTES = 256 << 10
"""The most that is read at once. A pipe holds less."""


class Record(NamedTuple):
    """An event and its routing key."""

    routing_key: str | None
    event: bytes


class Batch(NamedTuple):
    """Events whose bytes were there together, with one key per event, or one key or None for all.

    `next_line` is the number of the line, row or event of the source that follows them.
    """

    events: list[bytes]
    routing_keys: list[str | None] | str | None
    next_line: int


class RefusedRow(NamedTuple):
    """A line or row that is not an event: its number, its bytes if they are known, and the reason."""

    line: int
    content: bytes | None
    error: InvalidRequestError


Refuse = Callable[[RefusedRow], object]
"""Gets each refused row. The rows after it are read if it returns."""


def raise_refusal(row: RefusedRow) -> None:
    """Ends the input at the first refused row."""
    raise row.error


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the routing key of an event comes from: the same for all, a part of the line, or a field of the row.

    `default` is for rows whose field is missing or null. Without it they are refused.
    """

    constant: str | None = None
    separator: str | None = None
    field: str | None = None
    default: str | None = None

    def of(self, row: str, value: Any) -> str | None:
        """The key of a row whose field has `value`. `row` names the row, for the message of a refusal."""
        if self.field is None:
            return self.constant
        if value is None:
            if self.default is None:
                raise InvalidRequestError(
                    f"{row} has no field {self.field!r} with the routing key; --default-key is for such rows"
                )
            return self.default
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class InputRules:
    """How the events of a source are read.

    `from_line` is the first line, row or event that is taken. `refuse` gets the rows that are no events; errors of the
    source itself are raised. `tell` gets sentences for the user. `delimiter` and `text_cells` are for CSV: what
    separates cells, and whether each cell is a text.
    """

    form: InputFormat = "lines"
    keys: Keys = Keys()
    from_line: int = 1
    event_bytes_max: int = EVENT_BYTES_MAX_LARGE
    delimiter: str = ","
    text_cells: bool = False
    refuse: Refuse = raise_refusal
    tell: Tell = tell_nothing

    def check_size(self, row: str, size: int) -> None:
        """Raises InvalidRequestError, code "event_too_large"."""
        if size > self.event_bytes_max:
            raise InvalidRequestError(f"{row} has more than {self.event_bytes_max} bytes", code="event_too_large")


class CountedInput:
    """A source of bytes that counts what was read. It waits only when all bytes that it has were taken."""

    def __init__(self, source: BufferedIOBase, name: str = "the input") -> None:
        self.source = source
        self.name = name
        self._data = b""
        self._at = 0
        self.bytes_read = 0

    def has(self, size: int) -> bool:
        """Whether `read(size)` does not wait."""
        return len(self._data) - self._at >= size

    def read(self, size: int) -> bytes:
        """Reads `size` bytes, fewer only at the end of the source."""
        parts: list[bytes] = []
        while size > 0 and (self.has(1) or self._fill()):
            part = self._data[self._at : self._at + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return b"".join(parts)

    def lines(self, line_bytes_max: int, *, with_returns: bool = False) -> Iterator[list[bytes]]:
        """Yields the lines that are there together. LF and CRLF end a line and do not belong to it.

        With `with_returns` the CR of CRLF does belong to it. A line of more than `line_bytes_max` bytes may be cut, but
        not to fewer bytes than one more than that.
        """
        begun: list[bytes] = []
        begun_bytes = 0
        is_cut = False
        while self._fill():
            data, self._at = self._data, len(self._data)
            if is_cut:
                _, end_of_line, data = data.partition(b"\n")
                is_cut = not end_of_line
            end = data.rfind(b"\n")
            if end >= 0:
                yield _split(b"".join((*begun, data[: end + 1])), with_returns=with_returns)
                begun, begun_bytes = [], 0
            begun.append(data[end + 1 :])
            begun_bytes += len(begun[-1])
            if begun_bytes > line_bytes_max + len(b"\r"):
                yield [b"".join(begun)]
                begun, begun_bytes, is_cut = [], 0, True
        if begun_bytes:
            yield [b"".join(begun)]

    def _fill(self) -> bool:
        """Read what is there, or wait until something is there; False at the end of the source."""
        try:
            self._data, self._at = self.source.read1(READ_BYTES), 0
        except OSError as error:
            raise unreadable(self.name, error) from error
        self.bytes_read += len(self._data)
        return bool(self._data)


def line_batches(source: CountedInput, rules: InputRules) -> Iterator[Batch]:
    """Yields the events of `source` in order, in one of the formats lines, jsonl and raw.

    It never waits for more bytes while it has events. Before `rules.refuse` gets a row, the events before it were
    yielded.

    Raises:
        InvalidRequestError: a raw event is too large or incomplete. The events before it were yielded.
    """
    if rules.form == "raw":
        yield from _raw_batches(source, rules)
        return
    parse = _parser(rules)
    for first, lines in _numbered_lines(source, rules, without_mark=parse is not None):
        if parse is None and max(map(len, lines)) <= rules.event_bytes_max:
            yield Batch(lines, rules.keys.constant, first + len(lines))
        else:
            yield from _parsed(first, lines, parse or (lambda _, line: Record(rules.keys.constant, line)), rules)


def without_byte_order_mark(line: bytes, source: CountedInput, rules: InputRules) -> bytes:
    """The first line of a text without the mark with which editors of some systems begin it.

    It would become a part of the first key, event or name.
    """
    if line.startswith(codecs.BOM_UTF8):
        rules.tell(f"{source.name} begins with a byte order mark, which is left out")
    return line.removeprefix(codecs.BOM_UTF8)


def _numbered_lines(
    source: CountedInput, rules: InputRules, *, without_mark: bool
) -> Iterator[tuple[int, list[bytes]]]:
    """Lines from `rules.from_line` on that are there together, with the number of the first one."""
    first = 1
    for lines in source.lines(rules.event_bytes_max):
        if first == 1 and without_mark:
            lines[0] = without_byte_order_mark(lines[0], source, rules)
        left_out = min(max(rules.from_line - first, 0), len(lines))
        if left_out < len(lines):
            yield first + left_out, lines[left_out:]
        first += len(lines)


def _split(data: bytes, *, with_returns: bool) -> list[bytes]:
    """The lines of `data`, which ends with a line's end."""
    lines = data.split(b"\n")
    lines.pop()
    return lines if with_returns or b"\r" not in data else [line.removesuffix(b"\r") for line in lines]


Parse = Callable[[int, bytes], Record | None]
"""Makes an event of a line with its number; None if the line is left out. Raises InvalidRequestError."""


def _parsed(first: int, lines: list[bytes], parse: Parse, rules: InputRules) -> Iterator[Batch]:
    """The events of lines from number `first` on. A batch ends before a line that is refused."""
    events: list[bytes] = []
    routing_keys: list[str | None] = []
    for number, line in enumerate(lines, first):
        try:
            rules.check_size(f"line {number}", len(line))
            record = parse(number, line)
        except InvalidRequestError as error:
            yield Batch(events, routing_keys, number)
            events, routing_keys = [], []
            rules.refuse(RefusedRow(number, line, error))
            continue
        if record is not None:
            events.append(record.event)
            routing_keys.append(record.routing_key)
    yield Batch(events, routing_keys, first + len(lines))


def _raw_batches(source: CountedInput, rules: InputRules) -> Iterator[Batch]:
    """Nothing tells where an event begins after one whose length is wrong, so such an error ends the input."""
    events: list[bytes] = []
    constant = rules.keys.constant
    number = 0
    try:
        while True:
            if events and not source.has(LENGTH.size):
                yield Batch(events, constant, number + 1)
                events = []
            if not (header := source.read(LENGTH.size)):
                return
            size = _event_size(header, number + 1, rules)
            if events and not source.has(size):
                yield Batch(events, constant, number + 1)
                events = []
            event = source.read(size)
            if len(event) < size:
                raise InvalidRequestError(f"the input ends inside event {number + 1}: {len(event)} of {size} bytes")
            number += 1
            if number >= rules.from_line:
                events.append(event)
    except InvalidRequestError:
        yield Batch(events, constant, number + 1)
        raise


def _event_size(header: bytes, number: int, rules: InputRules) -> int:
    if len(header) < LENGTH.size:
        raise InvalidRequestError(f"the input ends inside the length of event {number}")
    size: int = LENGTH.unpack(header)[0]
    if size > rules.event_bytes_max:
        raise InvalidRequestError(
            f"event {number} has {size} bytes: at most {rules.event_bytes_max} are allowed; is the input really "
            "in the format raw?",
            code="event_too_large",
        )
    return size


def _parser(rules: InputRules) -> Parse | None:
    """None if each line is an event as it is."""
    separator = rules.keys.separator
    if rules.form == "jsonl":
        return lambda number, line: _of_json(number, line, rules.keys)
    return None if separator is None else lambda number, line: _separated(number, line, separator)


def _separated(number: int, line: bytes, separator: str) -> Record:
    key, found, event = line.partition(separator.encode())
    if not found:
        raise InvalidRequestError(f"line {number} has no {separator!r} between the routing key and the event")
    try:
        return Record(key.decode(), event)
    except UnicodeDecodeError:
        raise InvalidRequestError(f"the routing key of line {number} is not UTF-8") from None


def _of_json(number: int, line: bytes, keys: Keys) -> Record | None:
    """The event is the line as it is; blank lines are left out."""
    if not line.strip():
        return None
    document = _json_document(number, line)
    value = document.get(keys.field) if isinstance(document, dict) and keys.field is not None else None
    return Record(keys.of(f"line {number}", value), line)


def _json_document(number: int, line: bytes) -> Any:
    """The value of a line, by the rules of the Spark connector, which would fail at other events."""
    try:
        text = text_of(line)
        document = parse_json(text)
        if has_half_pairs(text, document):
            raise RefusedJsonError("a string has half of a surrogate pair")
    except RefusedJsonError as error:
        raise InvalidRequestError(f"line {number} is not JSON as all readers understand it: {error}") from None
    return document
