"""The header of a log record: the same 80 bytes on the wire between replicas and in their journals.

The layout is here; `segmentstore.log.journal_format` encodes it for the files of a journal, in which one mark with its
salt and checksum is the start of all records.

Two checksums separate what is local to a journal from what is end to end: the owner computes the payload's checksum
once, and each journal computes the header's checksum again after it has filled in its salt and its commit start.

| offset | size | field |
|---|---|---|
| 0 | 4 | mark `HRJ2` |
| 4 | 8 | salt of the use of the file, filled in by the journal |
| 12 | 4 | CRC-32C over bytes 0-11 and 16-79 |
| 16 | 1, 1, 2 | kind, codec, flags |
| 20 | 4 | container |
| 24 | 8 | ledger epoch |
| 32 | 8 | writer epoch |
| 40 | 8 | entry |
| 48 | 8, 8 | truncation point and last acknowledged entry plus one, as the writer knew them |
| 64 | 8 | commit start, filled in by the journal |
| 72 | 4, 4 | payload length, payload CRC-32C |
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.model.errors import CorruptError

ENTRY_BYTES_MAX: Final = (1 << 20) + (64 << 10)
"""One data frame: the largest payload and its framing."""

RECORD_FLAG_COPIED: Final = 1
_FLAGS_KNOWN: Final = RECORD_FLAG_COPIED

RECORD_MARK: Final = b"HRJ2"
RECORD_START: Final = struct.Struct(">4sQ")
RECORD_CHECKSUM: Final = struct.Struct(">I")
RECORD_FIELDS: Final = struct.Struct(">BBHIQQQQQQII")
RECORD_FIELDS_AT: Final = RECORD_START.size + RECORD_CHECKSUM.size
RECORD_HEADER_BYTES: Final = RECORD_FIELDS_AT + RECORD_FIELDS.size


class RecordKind(IntEnum):
    """What a record says. The numbers are on disks and are never reused."""

    ENTRY = 1
    """An entry of a container's log."""
    PROMISE = 2
    """The replica accepts nothing of an owner with a lower epoch than the record's writer epoch."""
    TRUNCATION = 3
    """The entries before the record's truncation point are not needed any more."""
    DROP = 4
    """No record of the container before this one is needed any more, except its promise."""


class Codec(IntEnum):
    """How a payload is compressed. The numbers are on disks and are never reused."""

    PLAIN = 0
    ZSTD = 1


_KINDS_KNOWN: Final = frozenset(RecordKind)
_CODECS_KNOWN: Final = frozenset(Codec)


class RecordHeader(NamedTuple):
    """The fields of a record. `acknowledged_before` is the entry behind the last acknowledged one, so 0 means none.

    `writer_epoch` is the epoch of the owner that sent the record, `epoch` that of the entry's ledger. They differ
    when an owner sends entries of earlier ledgers. A promise has its epoch in both. The fields have the names of
    `journal_format.RecordHeader`.
    """

    kind: RecordKind
    container: int
    epoch: int
    writer_epoch: int
    entry: int
    truncated_before: int
    acknowledged_before: int
    length: int
    payload_checksum: int
    codec: int = 0
    flags: int = 0
    salt: int = 0
    commit_start: int = 0


def encode_record_header(header: RecordHeader) -> bytes:
    """The 80 bytes of a header."""
    start = RECORD_START.pack(RECORD_MARK, header.salt)
    fields = RECORD_FIELDS.pack(
        header.kind,
        header.codec,
        header.flags,
        header.container,
        header.epoch,
        header.writer_epoch,
        header.entry,
        header.truncated_before,
        header.acknowledged_before,
        header.commit_start,
        header.length,
        header.payload_checksum,
    )
    return start + RECORD_CHECKSUM.pack(crc32c(fields, crc32c(start))) + fields


def decode_record_header(raw: memoryview) -> RecordHeader:
    """Raises CorruptError: these bytes are not a header, or one with a kind, codec or flag of a newer version."""
    if len(raw) < RECORD_HEADER_BYTES:
        raise CorruptError(f"a log record has {len(raw)} bytes, its header alone has {RECORD_HEADER_BYTES}")
    mark, salt = RECORD_START.unpack_from(raw)
    (checksum,) = RECORD_CHECKSUM.unpack_from(raw, RECORD_START.size)
    fields = raw[RECORD_FIELDS_AT:RECORD_HEADER_BYTES]
    if mark != RECORD_MARK or checksum != crc32c(fields, crc32c(raw[: RECORD_START.size])):
        raise CorruptError("the header of a log record does not have its mark and its checksum")
    kind, codec, flags, container, ledger, writer, entry, truncated_before, acknowledged_before, commit, length, crc = (
        RECORD_FIELDS.unpack(fields)
    )
    if kind not in _KINDS_KNOWN or codec not in _CODECS_KNOWN or flags & ~_FLAGS_KNOWN:
        raise CorruptError(
            f"a log record has kind {kind}, codec {codec}, flags {flags}, which this version does not know"
        )
    if length > ENTRY_BYTES_MAX:
        raise CorruptError(f"a log record claims {length} bytes, at most {ENTRY_BYTES_MAX} are allowed")
    return RecordHeader(
        RecordKind(kind),
        container,
        ledger,
        writer,
        entry,
        truncated_before,
        acknowledged_before,
        length,
        crc,
        codec,
        flags,
        salt,
        commit,
    )


def check_payload(header: RecordHeader, payload: memoryview | bytes) -> None:
    """Raises CorruptError: the payload is not the one that the owner encoded."""
    if len(payload) != header.length or crc32c(payload) != header.payload_checksum:
        named = f"entry {header.entry} of container {header.container}, epoch {header.epoch}"
        raise CorruptError(f"{named}, does not have its checksum")
