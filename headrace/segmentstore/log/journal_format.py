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
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.model.errors import CorruptError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER_BYTES: Final = 4096
"""A block of its own: records never share a disk block with the header."""

ENTRY_BYTES_MAX: Final = 17 << 20
"""Up to 0.1.0 an append of a whole wire frame was one entry."""

FORMAT_VERSION: Final = 2
FORMAT_VERSIONS_KNOWN: Final = (1, 2)
"""Files of version 1 have no copied records. Software that does not know these must not start on a journal with them:
it would take a container for an empty one whose entries are all copies."""

_FILE_MAGIC: Final = b"HRJOURNL"
_FILE_HEADER = struct.Struct(">8sIQQQ")
_CHECKSUM = struct.Struct(">I")

_RECORD_MAGIC: Final = 0x48524A52
_RECORD_MARK = struct.Struct(">IQ")
_RECORD_FIELDS = struct.Struct(">IIQQQQ")
_COPIED: Final = 1 << 31
"""In the field of the container, whose numbers are far below."""

_FIELDS_AT: Final = _RECORD_MARK.size + _CHECKSUM.size
RECORD_HEADER_BYTES: Final = _FIELDS_AT + _RECORD_FIELDS.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """`previous_end` is where the records of the file with the sequence number before this one end. `version` is that
    of a file that was read; files are written with the newest one."""

    sequence: int
    salt: int
    previous_end: int
    version: int = FORMAT_VERSION

    @property
    def takes_copies(self) -> bool:
        """Whether software that takes the file knows of copied records."""
        return self.version > 1


class RecordHeader(NamedTuple):
    """What the journal notes beside an entry. `commit_start`: everything before this position of the file was durable
    when the record was written. `truncated_before`: the container's truncation point at that time.

    A `copied` record repeats an entry of an older file, so that this file is not needed any more: it may come behind
    later entries of its container.
    """

    container: int
    epoch: int
    entry: int
    truncated_before: int
    commit_start: int
    length: int
    copied: bool = False


class Record(NamedTuple):
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
    if magic != _FILE_MAGIC or version not in FORMAT_VERSIONS_KNOWN:
        raise CorruptError(
            f"journal file {name} has format {magic!r} version {version}, known are {FORMAT_VERSIONS_KNOWN}"
        )
    return FileHeader(sequence, salt, previous_end, version)


def record_mark(salt: int) -> bytes:
    """How every record of a file begins in its present use."""
    return _RECORD_MARK.pack(_RECORD_MAGIC, salt)


def encode_record_header(salt: int, header: RecordHeader, parts: Sequence[Buffer]) -> bytes:
    """The bytes before the payload `parts`, with the checksum over both."""
    mark = record_mark(salt)
    container = header.container | _COPIED if header.copied else header.container
    fields = _RECORD_FIELDS.pack(
        container, header.length, header.epoch, header.entry, header.truncated_before, header.commit_start
    )
    checksum = crc32c(fields, crc32c(mark))
    for part in parts:
        checksum = crc32c(part, checksum)
    return mark + _CHECKSUM.pack(checksum) + fields


def decode_record_header(raw: memoryview, salt: int) -> RecordHeader | None:
    """What the RECORD_HEADER_BYTES before a payload say, unchecked; None if they are none of this use of the file."""
    if raw[: _RECORD_MARK.size] != record_mark(salt):
        return None
    container, length, epoch, entry, truncated_before, commit_start = _RECORD_FIELDS.unpack_from(raw, _FIELDS_AT)
    copied = container >= _COPIED
    return RecordHeader(
        container & ~_COPIED if copied else container, epoch, entry, truncated_before, commit_start, length, copied
    )


def is_whole(record: memoryview) -> bool:
    """Whether the checksum of a record, header and payload, is right."""
    (stored,) = _CHECKSUM.unpack_from(record, _RECORD_MARK.size)
    return bool(stored == crc32c(record[_FIELDS_AT:], crc32c(record[: _RECORD_MARK.size])))
