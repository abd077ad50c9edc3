"""Format 2 of a journal: a header block in each file, then records without gaps, then old data of an earlier use.

A record has a header of 80 bytes and a payload. The header is also the header of an entry on the wire. Three of its
fields belong to the journal that writes it: the salt, the position where the commit began, and the checksum over the
header. The rest is made once, by the owner of the container, and has a checksum of its own over the payload.

Files are recycled, so old records may follow the last record. Three fields tell old data and damage apart:

- Each record has the random salt of the file's current use.
- Each record has the position where its commit began. A valid record after a damaged one then proves whether the
  damage is a torn commit, which is cut off, or a loss of durable bytes.
- The header of the next file has the position where this file ended.

The files of format 1 have the versions 1 and 2 in their headers (`journal_format_1`), those of format 2 have 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.codec.log_record_header import (
    RECORD_CHECKSUM,
    RECORD_FIELDS,
    RECORD_FIELDS_AT,
    RECORD_FLAG_COPIED,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    RECORD_START,
    Codec,
    RecordKind,
)
from headrace.model.errors import CorruptError

FILE_HEADER_BYTES: Final = 4096
"""The header fills a whole block, so that no record shares a disk block with it."""

ENTRY_BYTES_MAX: Final = 17 << 20
"""Larger than today's entries: a file of version 1 may have an append of a whole wire frame as one entry."""

FILE_VERSION: Final = 3
REPLICA_ID_BYTES: Final = 16

FILE_MAGIC: Final = b"HRJOURNL"
_FILE_HEADER: Final = struct.Struct(">8sIQQQ16s")

_SALT_AT: Final = 4
_COMMIT_START_AT: Final = 64
_POSITION: Final = struct.Struct(">Q")


class LostRecordsError(CorruptError):
    """Durable records are lost, and nothing says which. A journal that lost them is not the same replica any more."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file.

    `previous_end` is the position where the records of the preceding file end. `replica_id` names the journal that
    wrote the file; files of format 1 have none. New files always get the newest version.
    """

    sequence: int
    salt: int
    previous_end: int
    replica_id: bytes = bytes(REPLICA_ID_BYTES)
    version: int = FILE_VERSION


class RecordHeader(NamedTuple):
    """The header of a record.

    (`container`, `epoch`, `entry`) is the identity of an entry: the epoch is that of its ledger. `writer_epoch` is that
    of the owner that sent the record, which may copy entries of an earlier owner. `truncated_before` and
    `acknowledged_before` are the first entry that is needed and the first that is not acknowledged, as the writer knew
    them. `commit_start` is the start of the record's commit: all bytes of the file before it were durable when the
    record was written. A `copied` record repeats an entry of an older file, so that this file can be freed. It may
    follow later entries of its container.
    """

    kind: RecordKind
    container: int
    epoch: int
    writer_epoch: int
    entry: int
    truncated_before: int
    acknowledged_before: int
    commit_start: int
    length: int
    payload_checksum: int
    copied: bool = False
    codec: Codec = Codec.PLAIN


def encode_file_header(header: FileHeader) -> bytes:
    """Encode a header as one whole block."""
    fields = _FILE_HEADER.pack(
        FILE_MAGIC, FILE_VERSION, header.sequence, header.salt, header.previous_end, header.replica_id
    )
    return (fields + RECORD_CHECKSUM.pack(crc32c(fields))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(block: bytes) -> FileHeader | None:
    """Decode the header block of a file; None if it is damaged. The caller checks the version.

    Later versions keep the places of these fields and of their checksum, so that a newer file is not taken for a
    damaged one.
    """
    fields = block[: _FILE_HEADER.size]
    checksum = block[_FILE_HEADER.size : _FILE_HEADER.size + RECORD_CHECKSUM.size]
    if len(block) < FILE_HEADER_BYTES or checksum != RECORD_CHECKSUM.pack(crc32c(fields)):
        return None
    magic, version, sequence, salt, previous_end, replica_id = _FILE_HEADER.unpack(fields)
    return FileHeader(sequence, salt, previous_end, replica_id, version) if magic == FILE_MAGIC else None


class Format2:
    """The layout of the records of format 2 in a file with this salt."""

    header_bytes: Final = RECORD_HEADER_BYTES
    checks_headers: Final = True

    def __init__(self, salt: int) -> None:
        self.mark = RECORD_START.pack(RECORD_MARK, salt)
        self._mark_checksum = crc32c(self.mark)

    def encode(
        self,
        kind: RecordKind,
        container: int,
        epoch: int,
        writer_epoch: int,
        entry: int,
        truncated_before: int,
        acknowledged_before: int,
        commit_start: int,
        length: int,
        payload_checksum: int,
        copied: bool = False,
        codec: Codec = Codec.PLAIN,
    ) -> bytes:
        """Encode a record's header, with its checksum."""
        fields = RECORD_FIELDS.pack(
            kind,
            codec,
            copied,
            container,
            epoch,
            writer_epoch,
            entry,
            truncated_before,
            acknowledged_before,
            commit_start,
            length,
            payload_checksum,
        )
        return self.mark + RECORD_CHECKSUM.pack(crc32c(fields, self._mark_checksum)) + fields

    def decode(self, raw: memoryview) -> RecordHeader | None:
        """Decode a record's header; None if its mark or its checksum is not right.

        Raises:
            CorruptError: the header is whole, but newer software wrote it.
        """
        if raw[: RECORD_START.size] != self.mark:
            return None
        (checksum,) = RECORD_CHECKSUM.unpack_from(raw, RECORD_START.size)
        if checksum != crc32c(raw[RECORD_FIELDS_AT:RECORD_HEADER_BYTES], self._mark_checksum):
            return None
        (
            kind,
            codec,
            flags,
            container,
            epoch,
            writer_epoch,
            entry,
            truncated_before,
            acknowledged_before,
            commit_start,
            length,
            payload_checksum,
        ) = RECORD_FIELDS.unpack_from(raw, RECORD_FIELDS_AT)
        if (
            kind not in _KINDS
            or codec not in _CODECS
            or flags > RECORD_FLAG_COPIED
            or (length and kind != RecordKind.ENTRY)
        ):
            raise CorruptError(
                f"a journal record of container {container} has kind {kind}, codec {codec}, flags {flags:#x} and "
                f"{length} bytes, which this release does not know: start the release that wrote it"
            )
        return RecordHeader(
            _KINDS[kind],
            container,
            epoch,
            writer_epoch,
            entry,
            truncated_before,
            acknowledged_before,
            commit_start,
            length,
            payload_checksum,
            flags == RECORD_FLAG_COPIED,
            _CODECS[codec],
        )

    def checked(self, header: RecordHeader, record: memoryview) -> RecordHeader | None:
        """The header of a record of which `decode` accepted the header; None if the payload is damaged."""
        return header if crc32c(record[RECORD_HEADER_BYTES:]) == header.payload_checksum else None


_KINDS: Final = {int(kind): kind for kind in RecordKind}
_CODECS: Final = {int(codec): codec for codec in Codec}


def set_local_fields(buffer: bytearray | memoryview, offset: int, salt: int, commit_start: int) -> None:
    """Fill in the fields of the journal that writes a received record, whose header begins at `offset`.

    The payload and its checksum stay as the owner made them.
    """
    _POSITION.pack_into(buffer, offset + _SALT_AT, salt)
    _POSITION.pack_into(buffer, offset + _COMMIT_START_AT, commit_start)
    view = memoryview(buffer)[offset : offset + RECORD_HEADER_BYTES]
    checksum = crc32c(view[RECORD_FIELDS_AT:], crc32c(view[: RECORD_START.size]))
    RECORD_CHECKSUM.pack_into(buffer, offset + RECORD_START.size, checksum)
