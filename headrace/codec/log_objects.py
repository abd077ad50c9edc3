"""Objects of a log that S3 acknowledges: their names and their layout.

An object holds consecutive entries of one ledger. It is written with one PUT and never changes.

| offset | size | field |
|---|---|---|
| 0 | 8 | mark `HRLOGOBJ` |
| 8 | 2, 2 | version, window: the number of objects that the writer has in flight at most |
| 12 | 4 | container |
| 16 | 8, 8 | epoch of the ledger, sequence of the object |
| 32 | 8 | first entry |
| 40 | 8 | truncation point: entries before it are not needed |
| 48 | 8 | oldest sequence of the ledger that is needed |
| 56 | 4, 4 | number of entries, bytes of their records |
| 64 | 4, 4 | CRC-32C of the index, CRC-32C over bytes 0-67 |

The records follow, each with the header of `log_record_header` (salt and commit start are 0). At the end there is an
index: the position of each record in the object, 4 bytes each.

An object of 0 bytes is a tombstone: it closes its ledger before its sequence.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.codec.log_record_header import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    RecordKind,
    check_payload,
    decode_record_header,
    encode_record_header,
)
from headrace.deployment_defaults import LOG_OBJECTS_PREFIX
from headrace.model.errors import CorruptError

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG_OBJECT_MARK: Final = b"HRLOGOBJ"
LOG_OBJECT_VERSION: Final = 1

_FIELDS: Final = struct.Struct(">8sHHIQQQQQIII")
_CHECKSUM: Final = struct.Struct(">I")
_POSITION: Final = struct.Struct(">I")
LOG_OBJECT_HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size

LOG_OBJECT_BYTES_MAX: Final = 64 << 20
"""A larger object is not read: it is not one of ours."""

LOG_OBJECT_OVERHEAD_BYTES: Final = RECORD_HEADER_BYTES + _POSITION.size
"""Of each entry, besides its payload."""

_NAME: Final = re.compile(LOG_OBJECTS_PREFIX + r"container-(\d{4,9})/(\d{10,20})-(\d{10,20})")


class LogObjectHeader(NamedTuple):
    """The header of an object. `end` is the entry behind its last one."""

    container: int
    epoch: int
    sequence: int
    first_entry: int
    truncated_before: int
    oldest_sequence: int
    entry_count: int
    record_bytes: int
    index_crc: int
    window: int

    @property
    def end(self) -> int:
        return self.first_entry + self.entry_count


class EncodedEntry(NamedTuple):
    """An entry for an object: its record header, then `parts` with `length` bytes."""

    header: bytes
    parts: Sequence[Buffer]
    length: int


def container_log_prefix(container: int) -> str:
    """The prefix of the names of all objects of a container's log."""
    return f"{LOG_OBJECTS_PREFIX}container-{container:04d}/"


def ledger_prefix(container: int, epoch: int) -> str:
    """The prefix of the names of one ledger's objects."""
    return f"{container_log_prefix(container)}{epoch:010d}-"


def log_object_name(container: int, epoch: int, sequence: int) -> str:
    return f"{ledger_prefix(container, epoch)}{sequence:010d}"


def parse_log_object_name(name: str) -> tuple[int, int, int] | None:
    """Container, epoch and sequence; None if this is not the name of a log's object."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parts = int(match[1]), int(match[2]), int(match[3])
    return parts if log_object_name(*parts) == name else None


def encode_entry(
    container: int, epoch: int, entry: int, truncated_before: int, parts: Sequence[Buffer]
) -> EncodedEntry:
    """An entry with its record header; reads all of `parts` once, for the checksum."""
    checksum = length = 0
    for part in parts:
        checksum = crc32c(part, checksum)
        length += memoryview(part).nbytes
    header = RecordHeader(RecordKind.ENTRY, container, epoch, epoch, entry, truncated_before, 0, length, checksum)
    return EncodedEntry(encode_record_header(header), parts, length)


def encode_log_object(header: LogObjectHeader, entries: Sequence[EncodedEntry]) -> list[Buffer]:
    """The parts of an object. `entry_count`, `record_bytes` and `index_crc` of the header are filled in."""
    parts: list[Buffer] = [b""]
    positions, position = bytearray(), LOG_OBJECT_HEADER_BYTES
    for entry in entries:
        positions += _POSITION.pack(position)
        parts.append(entry.header)
        parts.extend(entry.parts)
        position += RECORD_HEADER_BYTES + entry.length
    index = bytes(positions)
    fields = _FIELDS.pack(
        LOG_OBJECT_MARK,
        LOG_OBJECT_VERSION,
        header.window,
        header.container,
        header.epoch,
        header.sequence,
        header.first_entry,
        header.truncated_before,
        header.oldest_sequence,
        len(entries),
        position - LOG_OBJECT_HEADER_BYTES,
        crc32c(index),
    )
    parts[0] = fields + _CHECKSUM.pack(crc32c(fields))
    parts.append(index)
    return parts


def decode_log_object_header(name: str, raw: memoryview | bytes) -> LogObjectHeader:
    """The header of the object with this name.

    Raises:
        CorruptError: these bytes are not a header, or that of another object, or of a newer version.
    """
    if len(raw) < LOG_OBJECT_HEADER_BYTES:
        raise CorruptError(f"object {name} has {len(raw)} bytes, the header of a log's object alone has more")
    (checksum,) = _CHECKSUM.unpack_from(raw, _FIELDS.size)
    mark, version, window, container, epoch, sequence, first, truncated_before, oldest, *sizes = _FIELDS.unpack_from(
        raw
    )
    if mark != LOG_OBJECT_MARK or checksum != crc32c(memoryview(raw)[: _FIELDS.size]):
        raise CorruptError(f"object {name} does not begin with the mark and the checksum of a log's object")
    if version != LOG_OBJECT_VERSION:
        raise CorruptError(f"object {name} has version {version}, which this version of Headrace does not know")
    entry_count, record_bytes, index_crc = sizes
    header = LogObjectHeader(
        container, epoch, sequence, first, truncated_before, oldest, entry_count, record_bytes, index_crc, window
    )
    if log_object_name(header.container, header.epoch, header.sequence) != name:
        raise CorruptError(
            f"object {name} says that it is object {header.sequence} of container {header.container}, "
            f"epoch {header.epoch}"
        )
    is_possible = header.oldest_sequence <= header.sequence and header.truncated_before <= header.first_entry and window
    if not is_possible or header.record_bytes > LOG_OBJECT_BYTES_MAX:
        raise CorruptError(f"the header of object {name} contradicts itself: {header}")
    return header


def decode_log_object(name: str, raw: bytes) -> Iterator[tuple[int, memoryview]]:
    """The entries of an object, with their numbers, in order.

    Raises:
        CorruptError: the object is damaged.
    """
    header = decode_log_object_header(name, raw)
    index_at = LOG_OBJECT_HEADER_BYTES + header.record_bytes
    index = raw[index_at:]
    if len(index) != header.entry_count * _POSITION.size or crc32c(index) != header.index_crc:
        raise CorruptError(
            f"object {name} of {len(raw)} bytes does not end with the index of {header.entry_count} entries"
        )
    view, position = memoryview(raw), LOG_OBJECT_HEADER_BYTES
    for number, (expected,) in enumerate(_POSITION.iter_unpack(index), header.first_entry):
        if position != expected or position + RECORD_HEADER_BYTES > index_at:
            raise CorruptError(f"entry {number} is at {position} of object {name}, its index says {expected}")
        record = decode_record_header(view[position:])
        start = position + RECORD_HEADER_BYTES
        position = start + record.length
        named = (record.container, record.epoch, record.entry)
        if named != (header.container, header.epoch, number) or position > index_at:
            raise CorruptError(f"object {name} has another record at the place of entry {number}: {record}")
        payload = view[start:position]
        check_payload(record, payload)
        yield number, payload
    if position != index_at:
        raise CorruptError(f"object {name} has {index_at - position} bytes behind its last entry")
