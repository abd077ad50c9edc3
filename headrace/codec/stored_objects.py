"""Objects as Pravega's clients store them: their fields, the entries of state synchronizers, and watermarks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import positions_of

# Fields inside Pravega's stored objects: numbers, text, collections, and objects of several revisions.
#
# `versioned_serializer.py` has the envelope of objects with one revision. All numbers are big-endian. What comes in is
# not trusted: every length is checked against the bytes that are there before memory is taken for it.

# The envelope in which Pravega stores objects, and its numbers of variable length. All numbers are big-endian.
#
# An object of version v with one revision r: format version 0, v, revision count 1, r (a byte each), length of the
# data (4 bytes), data. Data that a newer revision appends is passed over by readers that do not know it.

_ENVELOPE = struct.Struct(">bbBbi")
COMPACT_INT_MAX = (1 << 30) - 1


def enveloped(data: bytes, *, version: int = 0, revision: int = 0) -> bytes:
    """The stored form of an object whose only revision holds `data`."""
    return _ENVELOPE.pack(_FORMAT_VERSION, version, 1, revision, len(data)) + data


def data_of_envelope(view: memoryview, *, version: int = 0) -> tuple[memoryview, memoryview]:
    """The data of an object's first revision, and what follows the object.

    Raises:
        CorruptError: this is not an object of that version, or it ends too early.
    """
    if len(view) < _ENVELOPE.size:
        raise CorruptError(f"a stored object has {len(view)} bytes: that is less than its envelope")
    format_version, stored_version, revisions, _, length = _ENVELOPE.unpack_from(view)
    if (format_version, stored_version) != (_FORMAT_VERSION, version) or revisions < 1:
        raise CorruptError(
            f"a stored object is of format {format_version}, version {stored_version}: expected 0, {version}"
        )
    data, rest = _cut(view[_ENVELOPE.size :], length)
    for _ in range(revisions - 1):
        if len(rest) < 5:
            raise CorruptError("a stored object ends before its last revision")
        _, rest = _cut(rest[5:], int.from_bytes(rest[1:5], signed=True))
    return data, rest


def compact_int(number: int) -> bytes:
    """1, 2 or 4 bytes, told by the two highest bits; for numbers from 0 to COMPACT_INT_MAX."""
    if number < 1 << 7:
        return bytes([number])
    if number < 1 << 14:
        return (0x8000 | number).to_bytes(2)
    return (0xC0000000 | number).to_bytes(4)


def read_compact_int(view: memoryview) -> tuple[int, memoryview]:
    """The number at the begin of `view`, and what follows it; raises CorruptError if it is cut off."""
    size = 1 if not view or view[0] < 0x80 else 2 if view[0] < 0xC0 else 4
    if len(view) < size:
        raise CorruptError("a stored object ends inside a number")
    return int.from_bytes(view[:size]) & ((1 << (8 * size - (0, 1, 2, 0, 2)[size])) - 1), view[size:]


def _cut(view: memoryview, length: int) -> tuple[memoryview, memoryview]:
    if not 0 <= length <= len(view):
        raise CorruptError(f"a stored object claims {length} bytes where {len(view)} are left")
    return view[:length], view[length:]


K = TypeVar("K")
V = TypeVar("V")

TEXT_BYTES_MAX = 0xFFFF
_FORMAT_VERSION = 0
_LENGTH = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
_TEXT_LENGTH = struct.Struct(">H")
_LONG_SIZES = (1, 2, 4, 8)


def stored_object(revisions: Iterable[bytes], *, version: int = 0, kind: int | None = None) -> bytes:
    """The stored form of an object with these revisions, numbered from 0.

    `kind` is the type of the object where one place can hold objects of several types.
    """
    datas = list(revisions)
    head = [_FORMAT_VERSION, version, len(datas)] if kind is None else [_FORMAT_VERSION, kind, version, len(datas)]
    parts = [bytes(head)]
    for number, data in enumerate(datas):
        parts += [bytes([number]), _LENGTH.pack(len(data)), data]
    return b"".join(parts)


def int64(number: int) -> bytes:
    return _INT64.pack(number)


def int32(number: int) -> bytes:
    return _LENGTH.pack(number)


def double(number: float) -> bytes:
    return _DOUBLE.pack(number)


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def text(value: str) -> bytes:
    """Java's modified UTF-8 after its length. Raises InvalidRequestError if it has more than TEXT_BYTES_MAX bytes."""
    if value.isascii() and "\0" not in value:
        encoded = value.encode("ascii")
    else:
        units = value.encode("utf-16-be", "surrogatepass")
        as_units = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
        encoded = as_units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(encoded) > TEXT_BYTES_MAX:
        raise InvalidRequestError(f"text of {len(encoded)} bytes is too long to be stored: at most {TEXT_BYTES_MAX}")
    return _TEXT_LENGTH.pack(len(encoded)) + encoded


def uuid(value: str) -> bytes:
    return UUID(value).bytes


def blob(data: bytes) -> bytes:
    """Bytes after their number."""
    return _count(len(data)) + data


def items(values: Iterable[V], write: Callable[[V], bytes]) -> bytes:
    """A collection: the number of elements, then the elements."""
    written = [write(value) for value in values]
    return _count(len(written)) + b"".join(written)


def mapping(values: Mapping[K, V], write_key: Callable[[K], bytes], write_value: Callable[[V], bytes]) -> bytes:
    """A map: the number of entries, then each key with its value."""
    return _count(len(values)) + b"".join(write_key(key) + write_value(value) for key, value in values.items())


def compact_long(number: int) -> bytes:
    """1, 2, 4 or 8 bytes, told by the two highest bits; for numbers from 0 to 2^62 - 1."""
    for code, size in enumerate(_LONG_SIZES):
        bits = 8 * size - 2
        if 0 <= number < 1 << bits:
            return (code << bits | number).to_bytes(size)
    raise InvalidRequestError(f"{number} cannot be stored: it must be from 0 to 2^62 - 1")


def compact_signed_long(number: int) -> bytes:
    """1, 2, 4 or 8 bytes, told by the second and third bit; for numbers from -2^61 to 2^61 - 1."""
    sign, magnitude = (1, -number - 1) if number < 0 else (0, number)
    for code, size in enumerate(_LONG_SIZES):
        bits = 8 * size - 3
        if magnitude < 1 << bits:
            return (sign << (bits + 2) | code << bits | magnitude).to_bytes(size)
    raise InvalidRequestError(f"{number} cannot be stored: it must be from -2^61 to 2^61 - 1")


def _count(number: int) -> bytes:
    if number > COMPACT_INT_MAX:
        raise InvalidRequestError(f"{number} elements are too many to be stored: at most {COMPACT_INT_MAX}")
    return compact_int(number)


class FieldReader:
    """Reads fields one after the other. Every method raises CorruptError if the bytes end too early."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._left = memoryview(data)

    @property
    def left_bytes(self) -> int:
        return len(self._left)

    def take(self, length: int) -> memoryview:
        """The next `length` bytes."""
        if not 0 <= length <= len(self._left):
            raise CorruptError(f"a stored object claims {length} bytes where {len(self._left)} are left")
        taken, self._left = self._left[:length], self._left[length:]
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def boolean(self) -> bool:
        return self.byte() != 0

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), signed=True)

    def double(self) -> float:
        (number,) = _DOUBLE.unpack(self.take(_DOUBLE.size))
        return float(number)

    def text(self) -> str:
        encoded = bytes(self.take(int.from_bytes(self.take(_TEXT_LENGTH.size))))
        try:
            if encoded.isascii():
                return encoded.decode("ascii")
            as_units = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return as_units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        except UnicodeError as error:
            raise CorruptError(f"a stored object has text that is not UTF-8: {error}") from error

    def uuid(self) -> str:
        return str(UUID(bytes=bytes(self.take(16))))

    def compact_int(self) -> int:
        number, self._left = read_compact_int(self._left)
        return number

    def compact_long(self) -> int:
        size = _LONG_SIZES[self._peek() >> 6]
        return int.from_bytes(self.take(size)) & ((1 << (8 * size - 2)) - 1)

    def compact_signed_long(self) -> int:
        first = self._peek()
        size = _LONG_SIZES[first >> 5 & 3]
        magnitude = int.from_bytes(self.take(size)) & ((1 << (8 * size - 3)) - 1)
        return -magnitude - 1 if first & 0x80 else magnitude

    def blob(self) -> memoryview:
        return self.take(self.compact_int())

    def items(self, read: Callable[[], V]) -> list[V]:
        """A collection; `read` reads one element."""
        return [read() for _ in range(self._elements())]

    def mapping(self, read_key: Callable[[], K], read_value: Callable[[], V]) -> dict[K, V]:
        """A map. Its keys are read by `read_key`, each before its value."""
        return {read_key(): read_value() for _ in range(self._elements())}

    def stored_object(self, version: int = 0) -> list[FieldReader]:
        """The revisions of an object of this version, at least one."""
        if (format_version := self.byte()) != _FORMAT_VERSION:
            raise CorruptError(f"a stored object has format {format_version}: expected {_FORMAT_VERSION}")
        return self._revisions(version)

    def typed_object(self, version: int = 0) -> tuple[int, list[FieldReader]]:
        """The type and the revisions of an object of this version, where one place holds objects of several types."""
        if (format_version := self.byte()) != _FORMAT_VERSION:
            raise CorruptError(f"a stored object has format {format_version}: expected {_FORMAT_VERSION}")
        return self.byte(), self._revisions(version)

    def _revisions(self, version: int) -> list[FieldReader]:
        if (stored_version := self.byte()) != version:
            raise CorruptError(f"a stored object is of version {stored_version}: expected {version}")
        if not (count := self.byte()):
            raise CorruptError("a stored object has no revision")
        revisions = []
        for expected in range(count):
            if (number := self.byte()) != expected:
                raise CorruptError(f"a stored object has revision {number} in the place of revision {expected}")
            revisions.append(FieldReader(self.take(self.int32())))
        return revisions

    def _elements(self) -> int:
        """The number of elements that follow. Each takes at least a byte, so more than the bytes left cannot be."""
        count = self.compact_int()
        if count > len(self._left):
            raise CorruptError(f"a stored object claims {count} elements in {len(self._left)} bytes")
        return count

    def _peek(self) -> int:
        if not self._left:
            raise CorruptError("a stored object ends inside a number")
        return self._left[0]


# Entries of a state synchronizer's stream: an initial state, or updates that are applied together. Pravega's form.
#
# A number says which of both (4 bytes), then follow the bytes of the initial state, or each update after its length (4
# bytes). The forms of state and update are those of the application.

_INITIAL = 1
_UPDATES = 2


@dataclass(frozen=True, slots=True)
class InitialEntry:
    """A state with which everything begins again."""

    state: bytes | memoryview


@dataclass(frozen=True, slots=True)
class UpdatesEntry:
    """Updates that are applied in this order, all or none."""

    updates: Sequence[bytes | memoryview]


def entry_bytes(entry: InitialEntry | UpdatesEntry) -> bytes:
    """The stored form of an entry."""
    if isinstance(entry, InitialEntry):
        return b"".join((int32(_INITIAL), entry.state))
    return int32(_UPDATES) + b"".join(b"".join((int32(len(update)), update)) for update in entry.updates)


def parse_entry(data: bytes | memoryview) -> InitialEntry | UpdatesEntry:
    """Raises CorruptError: this is not an entry."""
    reader = FieldReader(data)
    kind = reader.int32()
    if kind == _INITIAL:
        return InitialEntry(reader.take(reader.left_bytes))
    if kind != _UPDATES:
        raise CorruptError(f"an entry of a state synchronizer has the kind {kind}: expected {_INITIAL} or {_UPDATES}")
    updates = []
    while reader.left_bytes:
        updates.append(reader.take(reader.int32()))
    return UpdatesEntry(tuple(updates))


# A watermark in a stream's mark segment: an event whose payload is Pravega's stored form of a watermark.
#
# Payload: an object with lower time and upper time (8 bytes each) and a map from a segment, itself an object of id (8
# bytes) and two doubles, to an offset (8 bytes).

_TIMES = struct.Struct(">qq")
_SEGMENT = struct.Struct(">qdd")
_OFFSET = struct.Struct(">q")


def watermark_payload(watermark: Watermark) -> bytes:
    """The payload of the event."""
    parts = [_TIMES.pack(watermark.lower_time, watermark.upper_time), compact_int(len(watermark.cut))]
    for position in watermark.cut:
        key_range = position.segment.key_range
        parts.append(enveloped(_SEGMENT.pack(position.segment.segment_id, key_range.low, key_range.high)))
        parts.append(_OFFSET.pack(position.offset))
    return enveloped(b"".join(parts))


def watermark_of_payload(payload: bytes | memoryview) -> Watermark:
    """Raises CorruptError: the event is not a watermark."""
    data, rest = data_of_envelope(memoryview(payload))
    if rest or len(data) < _TIMES.size:
        raise CorruptError("an event of a mark segment is not a watermark: it has too many or too few bytes")
    lower, upper = _TIMES.unpack_from(data)
    count, left = read_compact_int(data[_TIMES.size :])
    cut: dict[StreamSegment, int] = {}
    for _ in range(count):
        key, left = data_of_envelope(left)
        if len(key) < _SEGMENT.size or len(left) < _OFFSET.size:
            raise CorruptError("an event of a mark segment is not a watermark: it ends inside its cut")
        identifier, low, high = _SEGMENT.unpack_from(key)
        try:
            segment = StreamSegment(identifier, KeyRange(low, high))
        except HeadraceError as error:
            raise CorruptError(f"a watermark names segment {identifier} with no key range: {error}") from error
        (cut[segment],) = _OFFSET.unpack_from(left)
        left = left[_OFFSET.size :]
    return Watermark(lower, upper, positions_of(cut))
