"""Bytes of a journal file: a header block, then records without gaps, then whatever the file held before.

Files are recycled, so what follows the last record is old data. Three fields tell it apart without trust in luck:
a random salt of the file's current use is in each of its records; a record carries where its commit began, so that a
valid record behind a damaged one proves whether the damage was a torn commit (cut it) or rot of durable bytes (refuse
to start); and the header of the next file says where this one ended.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.model.errors import CorruptError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER_BYTES: Final = 4096
"""A block of its own: records never share a disk block with the header."""

FORMAT_VERSION: Final = 1
_FILE_MAGIC: Final = b"HRJOURNL"
_FILE_HEADER = struct.Struct(">8sIQQQ")
_CHECKSUM = struct.Struct(">I")

_RECORD_MAGIC: Final = 0x48524A52
_RECORD_MARK = struct.Struct(">IQ")
_RECORD_FIELDS = struct.Struct(">IIQQQQ")
RECORD_HEADER_BYTES: Final = _RECORD_MARK.size + _CHECKSUM.size + _RECORD_FIELDS.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """`previous_end` is where the records of the file with the sequence number before this one end."""

    sequence: int
    salt: int
    previous_end: int


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """What the journal notes beside an entry. `commit_start`: everything before this position of the file was durable
    when the record was written. `truncated_before`: the container's truncation point at that time."""

    container: int
    epoch: int
    entry: int
    truncated_before: int
    commit_start: int
    length: int


@dataclass(frozen=True, slots=True)
class Record:
    header: RecordHeader
    position: int
    """Of the payload, in the file."""


def encode_file_header(header: FileHeader) -> bytes:
    """One whole header block."""
    fields = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, header.sequence, header.salt, header.previous_end)
    return (fields + _CHECKSUM.pack(crc32c(fields))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(block: bytes, name: str) -> FileHeader:
    """Raises CorruptError if the block is no header; `name` is for the message."""
    fields = block[: _FILE_HEADER.size]
    checksum = block[_FILE_HEADER.size : _FILE_HEADER.size + _CHECKSUM.size]
    if len(block) < FILE_HEADER_BYTES or checksum != _CHECKSUM.pack(crc32c(fields)):
        raise CorruptError(f"journal file {name} has a damaged header: restore it or take the volume out of service")
    magic, version, sequence, salt, previous_end = _FILE_HEADER.unpack(fields)
    if magic != _FILE_MAGIC or version != FORMAT_VERSION:
        raise CorruptError(f"journal file {name} has format {magic!r} version {version}, known is {FORMAT_VERSION}")
    return FileHeader(sequence, salt, previous_end)


def encode_record_header(salt: int, header: RecordHeader, parts: Sequence[Buffer]) -> bytes:
    """The bytes before the payload `parts`, with the checksum over both."""
    mark = _RECORD_MARK.pack(_RECORD_MAGIC, salt)
    fields = _RECORD_FIELDS.pack(
        header.container, header.length, header.epoch, header.entry, header.truncated_before, header.commit_start
    )
    checksum = crc32c(fields, crc32c(mark))
    for part in parts:
        checksum = crc32c(part, checksum)
    return mark + _CHECKSUM.pack(checksum) + fields


def scan_records(content: memoryview, salt: int, end: int | None, name: str) -> tuple[list[Record], int]:
    """The records of a whole file and the position after the last one.

    `end` is known for a file that has a successor: then every byte up to it must check out. Otherwise the records end
    at the first one that does not check out, if nothing proves that it had been durable.

    Raises:
        CorruptError: durable records are damaged.
    """
    records: list[Record] = []
    position = FILE_HEADER_BYTES
    limit = len(content) if end is None else end
    while position < limit:
        record = _record_at(content, position, limit, salt)
        if record is None:
            if end is not None:
                raise CorruptError(f"journal file {name} is damaged at {position}, its records go on to {end}")
            _prove_torn(content, position, salt, name)
            break
        records.append(record)
        position = record.position + record.header.length
    return records, position


def _record_at(content: memoryview, position: int, limit: int, salt: int) -> Record | None:
    payload = position + RECORD_HEADER_BYTES
    if payload > limit or content[position : position + _RECORD_MARK.size] != _RECORD_MARK.pack(_RECORD_MAGIC, salt):
        return None
    fields_at = position + _RECORD_MARK.size + _CHECKSUM.size
    container, length, epoch, entry, truncated_before, commit_start = _RECORD_FIELDS.unpack_from(content, fields_at)
    if payload + length > limit:
        return None
    (stored,) = _CHECKSUM.unpack_from(content, position + _RECORD_MARK.size)
    computed = crc32c(content[position : position + _RECORD_MARK.size])
    if stored != crc32c(content[fields_at : payload + length], computed):
        return None
    return Record(RecordHeader(container, epoch, entry, truncated_before, commit_start, length), payload)


def _prove_torn(content: memoryview, position: int, salt: int, name: str) -> None:
    """Raise CorruptError if a later valid record shows that the bytes at `position` had been durable."""
    mark = _RECORD_MARK.pack(_RECORD_MAGIC, salt)
    haystack = content.obj if isinstance(content.obj, bytes) else bytes(content)
    found = haystack.find(mark, position + 1)
    while found >= 0:
        record = _record_at(content, found, len(content), salt)
        if record is not None and record.header.commit_start > position:
            raise CorruptError(
                f"journal file {name} is damaged at {position}: a later commit from {record.header.commit_start} on "
                "is whole, so this is not the torn end of a write",
                details={"file": name, "position": position},
            )
        found = haystack.find(mark, found + 1)
