"""Which format a journal file has, by the version in its header."""

from __future__ import annotations

from typing import Final, Protocol

from headrace.model.errors import CorruptError
from headrace.segmentstore.log import journal_format, journal_format_1
from headrace.segmentstore.log.journal_format import FILE_VERSION, FileHeader, Format2, LostRecordsError, RecordHeader
from headrace.segmentstore.log.journal_format_1 import Format1

VERSIONS_KNOWN: Final = (*journal_format_1.FILE_VERSIONS, FILE_VERSION)


class RecordLayout(Protocol):
    """How the records of a file are laid out during one use of it."""

    @property
    def header_bytes(self) -> int: ...

    @property
    def checks_headers(self) -> bool:
        """Whether a header has a checksum of its own, so that it can be trusted if the payload is damaged."""
        ...

    @property
    def mark(self) -> bytes:
        """The bytes with which each record of the file begins, with the salt of this use."""
        ...

    def decode(self, raw: memoryview) -> RecordHeader | None:
        """Decode a record's header; None if it is not whole, as far as the format can tell without the payload."""
        ...

    def checked(self, header: RecordHeader, record: memoryview) -> RecordHeader | None:
        """The header of a whole record, with the checksum of its payload; None if the record is damaged."""
        ...


def decode_file_header(block: bytes, name: str) -> FileHeader:
    """Decode the header block of the file `name`.

    Raises:
        LostRecordsError: the header is damaged.
        CorruptError: the file has a version that this release does not know.
    """
    header = journal_format_1.decode_file_header(block) or journal_format.decode_file_header(block)
    if header is None:
        raise LostRecordsError(
            f"journal file {name} has a damaged header: restore it or take the volume out of service"
        )
    if header.version not in VERSIONS_KNOWN:
        raise CorruptError(
            f"journal file {name} has format version {header.version}, known are {VERSIONS_KNOWN}: start the release "
            "that wrote it"
        )
    return header


def layout_of(header: FileHeader) -> RecordLayout:
    """The layout of the records in a file with this header."""
    return Format2(header.salt) if header.version == FILE_VERSION else Format1(header.salt)
