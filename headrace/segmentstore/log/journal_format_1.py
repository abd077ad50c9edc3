"""Format 1 of a journal, which release 0.1.0 wrote. It is only read; `journal_format` has the format that is written.

A record has one checksum over its header, with the salt, and its payload. Each record is an entry; an entry without a
payload only carries a truncation point. Files of version 2 may have copied records, those of version 1 have none.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from headrace.codec.log_record_header import RecordKind
from headrace.segmentstore.log.journal_format import FILE_HEADER_BYTES, FILE_MAGIC, FileHeader, RecordHeader

FILE_VERSIONS: Final = (1, 2)

_FILE_HEADER: Final = struct.Struct(">8sIQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_MARK: Final = struct.Struct(">4sQ")
_RECORD_MAGIC: Final = b"HRJR"
_FIELDS: Final = struct.Struct(">IIQQQQ")
_FIELDS_AT: Final = _MARK.size + _CHECKSUM.size
_COPIED: Final = 1 << 31
"""A flag in the container's field. Container numbers are far below it."""


def decode_file_header(block: bytes) -> FileHeader | None:
    """Decode the header block of a file of format 1; None if it is damaged or of another format."""
    fields = block[: _FILE_HEADER.size]
    checksum = block[_FILE_HEADER.size : _FILE_HEADER.size + _CHECKSUM.size]
    if len(block) < FILE_HEADER_BYTES or checksum != _CHECKSUM.pack(crc32c(fields)):
        return None
    magic, version, sequence, salt, previous_end = _FILE_HEADER.unpack(fields)
    if magic != FILE_MAGIC or version not in FILE_VERSIONS:
        return None
    return FileHeader(sequence, salt, previous_end, version=version)


class Format1:
    """The layout of the records of format 1 in a file with this salt."""

    header_bytes: Final = _FIELDS_AT + _FIELDS.size
    checks_headers: Final = False

    def __init__(self, salt: int) -> None:
        self.mark = _MARK.pack(_RECORD_MAGIC, salt)
        self._mark_checksum = crc32c(self.mark)

    def decode(self, raw: memoryview) -> RecordHeader | None:
        """Decode a record's header without its checksum, which covers the payload too; None if the mark is not right.

        The owner that wrote an entry is the owner of its ledger. The checksum of the payload is not known yet.
        """
        if raw[: _MARK.size] != self.mark:
            return None
        container, length, epoch, entry, truncated_before, commit_start = _FIELDS.unpack_from(raw, _FIELDS_AT)
        return RecordHeader(
            RecordKind.ENTRY,
            container & ~_COPIED,
            epoch,
            epoch,
            entry,
            truncated_before,
            0,
            commit_start,
            length,
            0,
            container >= _COPIED,
        )

    def checked(self, header: RecordHeader, record: memoryview) -> RecordHeader | None:
        """The header of a whole record, with the payload's checksum; None if the record is damaged."""
        (stored,) = _CHECKSUM.unpack_from(record, _MARK.size)
        if stored != crc32c(record[_FIELDS_AT:], self._mark_checksum):
            return None
        return header._replace(payload_checksum=crc32c(record[self.header_bytes :]))
