"""Events of files and standard input: as lines, as JSON lines, or with a length before each.

Input comes from outside: the size of an event is bounded before memory is taken for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE

InputFormat = Literal["lines", "jsonl", "raw"]

LENGTH = struct.Struct(">I")
"""The length of an event in the format "raw": four bytes, the most significant first."""

_LINE_END_BYTES = 2


class Record(NamedTuple):
    """An event and its routing key."""

    routing_key: str | None
    event: bytes


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the routing key of an event comes from: the same for all, a part of the line, or a field of the JSON."""

    constant: str | None = None
    separator: str | None = None
    field: str | None = None


class CountedInput:
    """A source of bytes that counts what was read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        """Reads `size` bytes, fewer only at the end of the source."""
        parts: list[bytes] = []
        while size > 0 and (part := self._source.read(size)):
            parts.append(part)
            size -= len(part)
            self.bytes_read += len(part)
        return b"".join(parts)

    def readline(self, size: int) -> bytes:
        line = self._source.readline(size)
        self.bytes_read += len(line)
        return line


def records(source: CountedInput, form: InputFormat, keys: Keys) -> Iterator[Record]:
    """Yields the events of `source` in order.

    Raises:
        InvalidRequestError: an event is too large, incomplete, or has no routing key where it must have one.
    """
    if form == "raw":
        return ((Record(keys.constant, event)) for event in _with_lengths(source))
    key_of = _key_reader(form, keys)
    return (record for number, line in _lines(source) for record in key_of(number, line))


def _lines(source: CountedInput) -> Iterator[tuple[int, bytes]]:
    """Each line with its number. LF and CRLF end a line and do not belong to it."""
    number = 0
    while line := source.readline(EVENT_BYTES_MAX_LARGE + _LINE_END_BYTES + 1):
        number += 1
        event = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        if len(event) > EVENT_BYTES_MAX_LARGE:
            raise InvalidRequestError(
                f"line {number} has more than {EVENT_BYTES_MAX_LARGE} bytes", code="event_too_large"
            )
        yield number, event


def _with_lengths(source: CountedInput) -> Iterator[bytes]:
    number = 0
    while header := source.read(LENGTH.size):
        number += 1
        if len(header) < LENGTH.size:
            raise InvalidRequestError(f"the input ends inside the length of event {number}")
        (size,) = LENGTH.unpack(header)
        if size > EVENT_BYTES_MAX_LARGE:
            raise InvalidRequestError(
                f"event {number} has {size} bytes: at most {EVENT_BYTES_MAX_LARGE} are allowed; is the input really "
                "in the format raw?",
                code="event_too_large",
            )
        event = source.read(size)
        if len(event) < size:
            raise InvalidRequestError(f"the input ends inside event {number}: {len(event)} of {size} bytes")
        yield event


def _key_reader(form: InputFormat, keys: Keys) -> Callable[[int, bytes], Iterator[Record]]:
    if form == "jsonl":
        return lambda number, line: _of_json(number, line, keys)
    if keys.separator is None:
        return lambda number, line: iter((Record(keys.constant, line),))
    separator = keys.separator
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
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"line {number} is not JSON: {error}") from None
    if keys.field is None:
        yield Record(keys.constant, line)
        return
    value = document.get(keys.field) if isinstance(document, dict) else None
    if value is None:
        raise InvalidRequestError(f"line {number} has no field {keys.field!r} with the routing key")
    yield Record(value if isinstance(value, str) else json.dumps(value, sort_keys=True), line)
