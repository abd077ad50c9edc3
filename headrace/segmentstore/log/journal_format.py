"""The format of a journal file: a header block, then records without gaps, then old data of an earlier use.

Files are recycled, so old records may follow the last record. Three fields tell old data and damage apart:

- Each record has the random salt of the file's current use.
- Each record has the position where its commit began. A valid record after a damaged one then proves whether the
  damage is a torn commit, which is cut off, or a loss of durable bytes, which stops the start.
- The header of the next file has the position where this file ended.
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
"""The header fills a whole block, so that no record shares a disk block with it."""

ENTRY_BYTES_MAX: Final = 17 << 20
"""Larger than today's entries: up to version 0.1.0 an append of a whole wire frame was one entry."""

FORMAT_VERSION: Final = 2
FORMAT_VERSIONS_KNOWN: Final = (1, 2)
"""Files of version 1 have no copied records. Software that knows version 1 only must not start on newer files: if all
entries of a container are copies, it would take the container for empty."""

_FILE_MAGIC: Final = b"HRJOURNL"
_FILE_HEADER = struct.Struct(">8sIQQQ")
_CHECKSUM = struct.Struct(">I")

_RECORD_MAGIC: Final = 0x48524A52
_RECORD_MARK = struct.Struct(">IQ")
_RECORD_FIELDS = struct.Struct(">IIQQQQ")
_COPIED: Final = 1 << 31
"""A flag in the container's field. Container numbers are far below it."""

_FIELDS_AT: Final = _RECORD_MARK.size + _CHECKSUM.size
RECORD_HEADER_BYTES: Final = _FIELDS_AT + _RECORD_FIELDS.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file.

    `previous_end` is the position where the records of the preceding file end. `version` is the format version of a
    file that was read; new files always get the newest version.
    """

    sequence: int
    salt: int
    previous_end: int
    version: int = FORMAT_VERSION

    @property
    def takes_copies(self) -> bool:
        """Whether copied records may be written: software that accepts this version knows them."""
        return self.version > 1


class RecordHeader(NamedTuple):
    """The fields that the journal stores with an entry.

    `commit_start` is the start of the record's commit: all bytes of the file before it were durable when the record
    was written. `truncated_before` is the container's truncation point at that time. A `copied` record repeats an
    entry of an older file, so that this file can be freed. It may follow later entries of its container.
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
    """The position of the payload in the file."""


def encode_file_header(header: FileHeader) -> bytes:
    """Encode a header as one whole block."""
    fields = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, header.sequence, header.salt, header.previous_end)
    return (fields + _CHECKSUM.pack(crc32c(fields))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(block: bytes, name: str) -> FileHeader:
    """Decode the header block of the file `name`. Raises CorruptError if it is damaged or of an unknown format."""
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
    """The bytes with which each record of a file begins during the use that has this salt."""
    return _RECORD_MARK.pack(_RECORD_MAGIC, salt)


def encode_record_header(salt: int, header: RecordHeader, parts: Sequence[Buffer]) -> bytes:
    """Encode a record's header, with a checksum over the header and the payload `parts`."""
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
    """Decode a record's header without its checksum; None if its mark is not of this use of the file."""
    if raw[: _RECORD_MARK.size] != record_mark(salt):
        return None
    container, length, epoch, entry, truncated_before, commit_start = _RECORD_FIELDS.unpack_from(raw, _FIELDS_AT)
    copied = container >= _COPIED
    return RecordHeader(
        container & ~_COPIED if copied else container, epoch, entry, truncated_before, commit_start, length, copied
    )


def is_whole(record: memoryview) -> bool:
    """Whether the checksum over a record's header and payload is right."""
    (stored,) = _CHECKSUM.unpack_from(record, _RECORD_MARK.size)
    return bool(stored == crc32c(record[_FIELDS_AT:], crc32c(record[: _RECORD_MARK.size])))
