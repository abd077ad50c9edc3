"""Events of files and standard input: as lines, as JSON lines, or with a length before each.

Input comes from outside: the size of an event is bounded before memory is taken for it.
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
from headrace.cli.times import Tell, tell_nothing
from headrace.codec.strict_json import RefusedJsonError, has_half_pairs, parse_json, text_of
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE

InputFormat = Literal["lines", "jsonl", "raw"]

LENGTH = struct.Struct(">I")
"""The length of an event in the format "raw": four bytes, the most significant first."""

READ_BYTES = 256 << 10
"""The most that is read at once. A pipe holds less."""


class Record(NamedTuple):
    """An event and its routing key."""

    routing_key: str | None
    event: bytes


class Batch(NamedTuple):
    """Events whose bytes were there together, with one key per event, or one key or None for all."""

    events: list[bytes]
    routing_keys: list[str | None] | str | None


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the routing key of an event comes from: the same for all, a part of the line, or a field of the JSON."""

    constant: str | None = None
    separator: str | None = None
    field: str | None = None


class CountedInput:
    """A source of bytes that counts what was read. It waits only when all bytes that it has were taken."""

    def __init__(self, source: BufferedIOBase, name: str = "the input") -> None:
        self._source = source
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

    def lines(self, line_bytes_max: int) -> Iterator[list[bytes]]:
        """Yields the lines that are there together. LF and CRLF end a line and do not belong to it.

        A line of more than `line_bytes_max` bytes may be cut, but not to fewer bytes than that.
        """
        begun: list[bytes] = []
        begun_bytes = 0
        while self._fill():
            data, self._at = self._data, len(self._data)
            end = data.rfind(b"\n")
            if end >= 0:
                yield _split(b"".join((*begun, data[: end + 1])))
                begun, begun_bytes = [], 0
            begun.append(data[end + 1 :])
            begun_bytes += len(begun[-1])
            if begun_bytes > line_bytes_max + len(b"\r"):
                yield [b"".join(begun)]
                begun, begun_bytes = [], 0
        if begun_bytes:
            yield [b"".join(begun)]

    def _fill(self) -> bool:
        """Read what is there, or wait until something is there; False at the end of the source."""
        try:
            self._data, self._at = self._source.read1(READ_BYTES), 0
        except OSError as error:
            raise unreadable(self.name, error) from error
        self.bytes_read += len(self._data)
        return bool(self._data)


def batches(source: CountedInput, form: InputFormat, keys: Keys, tell: Tell = tell_nothing) -> Iterator[Batch]:
    """Yields the events of `source` in order. It never waits for more bytes while it has events.

    Editors of some systems begin a text with a byte order mark. It would become a part of the first key or event, and
    is left out where lines are read as text. `tell` gets a sentence about that.

    Raises:
        InvalidRequestError: an event is too large, incomplete, not JSON, or has no routing key where it must have one.
            The events before it were yielded.
    """
    if form == "raw":
        yield from (Batch(events, keys.constant) for events in _with_lengths(source))
    elif form == "lines" and keys.separator is None:
        yield from (Batch(lines, keys.constant) for _, lines in _lines(source))
    else:
        key_of = _key_reader(form, keys)
        for first, lines in _lines(source):
            if first == 1 and lines[0].startswith(codecs.BOM_UTF8):
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                tell(f"{source.name} begins with a byte order mark, which is left out")
            yield from _with_keys(first, lines, key_of)


def _lines(source: CountedInput) -> Iterator[tuple[int, list[bytes]]]:
    """Lines that are there together, with the number of the first one."""
    first = 1
    for lines in source.lines(EVENT_BYTES_MAX_LARGE):
        if max(map(len, lines)) > EVENT_BYTES_MAX_LARGE:
            wrong = next(index for index, line in enumerate(lines) if len(line) > EVENT_BYTES_MAX_LARGE)
            yield first, lines[:wrong]
            raise InvalidRequestError(
                f"line {first + wrong} has more than {EVENT_BYTES_MAX_LARGE} bytes", code="event_too_large"
            )
        yield first, lines
        first += len(lines)


def _split(data: bytes) -> list[bytes]:
    """The lines of `data`, which ends with a line's end."""
    lines = data.split(b"\n")
    lines.pop()
    return [line.removesuffix(b"\r") for line in lines] if b"\r" in data else lines


def _with_keys(first: int, lines: list[bytes], key_of: Callable[[int, bytes], Iterator[Record]]) -> Iterator[Batch]:
    """One batch of lines from number `first` on, which ends before a line that has no key."""
    events: list[bytes] = []
    routing_keys: list[str | None] = []
    try:
        for number, line in enumerate(lines, first):
            for record in key_of(number, line):
                events.append(record.event)
                routing_keys.append(record.routing_key)
    except InvalidRequestError:
        yield Batch(events, routing_keys)
        raise
    yield Batch(events, routing_keys)


def _with_lengths(source: CountedInput) -> Iterator[list[bytes]]:
    events: list[bytes] = []
    number = 0
    try:
        while True:
            if events and not source.has(LENGTH.size):
                yield events
                events = []
            if not (header := source.read(LENGTH.size)):
                return
            number += 1
            size = _event_size(header, number)
            if events and not source.has(size):
                yield events
                events = []
            event = source.read(size)
            if len(event) < size:
                raise InvalidRequestError(f"the input ends inside event {number}: {len(event)} of {size} bytes")
            events.append(event)
    except InvalidRequestError:
        yield events
        raise


def _event_size(header: bytes, number: int) -> int:
    if len(header) < LENGTH.size:
        raise InvalidRequestError(f"the input ends inside the length of event {number}")
    size: int = LENGTH.unpack(header)[0]
    if size > EVENT_BYTES_MAX_LARGE:
        raise InvalidRequestError(
            f"event {number} has {size} bytes: at most {EVENT_BYTES_MAX_LARGE} are allowed; is the input really "
            "in the format raw?",
            code="event_too_large",
        )
    return size


def _key_reader(form: InputFormat, keys: Keys) -> Callable[[int, bytes], Iterator[Record]]:
    if form == "jsonl":
        return lambda number, line: _of_json(number, line, keys)
    separator = keys.separator
    assert separator is not None, "lines without a separator have no key of their own"
    return lambda number, line: iter((_separated(number, line, separator),))


def _separated(number: int, line: bytes, separator: str) -> Record:
    key, found, event = line.partition(separator.encode())
    if not found:
        raise InvalidRequestError(f"line {number} has no {separator!r} between the routing key and the event")
    try:
        return Record(key.decode(), event)
    except UnicodeDecodeError:
        raise InvalidRequestError(f"the routing key of line {number} is not UTF-8") from None


def _of_json(number: int, line: bytes, keys: Keys) -> Iterator[Record]:
    """The event is the line as it is; blank lines are left out."""
    if not line.strip():
        return
    document = _json_document(number, line)
    if keys.field is None:
        yield Record(keys.constant, line)
        return
    value = document.get(keys.field) if isinstance(document, dict) else None
    if value is None:
        raise InvalidRequestError(f"line {number} has no field {keys.field!r} with the routing key")
    yield Record(value if isinstance(value, str) else json.dumps(value, sort_keys=True), line)


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
