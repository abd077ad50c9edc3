"""The format of a journal: a header block in each file, then records without gaps, then old data of an earlier use.

A record has a header of 80 bytes and a payload. The header is also the header of an entry on the wire. Three of its
fields belong to the journal that writes it: the salt, the position where the commit began, and the checksum over the
header. The rest is made once, by the owner of the container, and has a checksum of its own over the payload.

Files are recycled, so old records may follow the last record. Three fields tell old data and damage apart:

- Each record has the random salt of the file's current use.
- Each record has the position where its commit began. A valid record after a damaged one then proves whether the
  damage is a torn commit, which is cut off, or a loss of durable bytes.
- The header of the next file has the position where this file ended.

It is the second format, and its files have version 3. The first one had the versions 1 and 2, and is not read any more.
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

FILE_VERSION: Final = 3
REPLICA_ID_BYTES: Final = 16

FILE_MAGIC: Final = b"HRJOURNL"
_FILE_HEADER: Final = struct.Struct(">8sIQQQ16s")
_FILE_VERSION: Final = struct.Struct(">8sI")
_CHECKSUMS_AT: Final = (_FILE_HEADER.size, 36)
"""Where the checksum of a header may be. The versions before 3 had it earlier: their files are not damaged ones."""

_SALT_AT: Final = 4
_COMMIT_START_AT: Final = 64
_POSITION: Final = struct.Struct(">Q")


class LostRecordsError(CorruptError):
    """Durable records are lost, and nothing says which. A journal that lost them is not the same replica any more."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file.

    `previous_end` is the position where the records of the preceding file end. `replica_id` names the journal that
    wrote the file.
    """

    sequence: int
    salt: int
    previous_end: int
    replica_id: bytes = bytes(REPLICA_ID_BYTES)


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


def decode_file_header(block: bytes, name: str) -> FileHeader:
    """Decode the header block of the file `name`.

    Later versions keep the places of these fields and of their checksum, so that a newer file is not taken for a
    damaged one.

    Raises:
        LostRecordsError: the header is damaged.
        CorruptError: the file has a version that this release does not know.
    """
    if len(block) < FILE_HEADER_BYTES or not block.startswith(FILE_MAGIC) or not _has_checksum(block):
        raise LostRecordsError(
            f"journal file {name} has a damaged header: restore it or take the volume out of service"
        )
    _, version = _FILE_VERSION.unpack_from(block)
    if version != FILE_VERSION:
        raise CorruptError(
            f"journal file {name} has format version {version}, known is {FILE_VERSION}: start the release that wrote "
            "it"
        )
    _, _, sequence, salt, previous_end, replica_id = _FILE_HEADER.unpack_from(block)
    return FileHeader(sequence, salt, previous_end, replica_id)


def _has_checksum(block: bytes) -> bool:
    return any(
        block[end : end + RECORD_CHECKSUM.size] == RECORD_CHECKSUM.pack(crc32c(block[:end])) for end in _CHECKSUMS_AT
    )


class Format2:
    """The layout of the records in a file with this salt."""

    header_bytes: Final = RECORD_HEADER_BYTES

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
