"""Scans the records of a journal file, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalFile
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.journal_format import (
    ENTRY_BYTES_MAX,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Record,
)

WINDOW_BYTES: Final = 4 << 20


class FileWindow:
    """Views of a file. Views of positions close to each other cost one read."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._start = 0
        self._content = memoryview(b"")

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes, or fewer at the end of the file."""
        skipped = position - self._start
        if not 0 <= skipped <= len(self._content) - length:
            self._start, skipped = position, 0
            self._content = memoryview(self._file.read(position, max(length, WINDOW_BYTES)))
        return self._content[skipped : skipped + length]


class RecordScan:
    """The records of one file, in order, from `start` on, where a record must begin.

    After the scan `end` is the position after the last record, and `commit_start` the position where the last commit
    began. `torn_bytes` is the number of bytes after `end` in which parts of a torn commit were found.

    For a file with a successor the parameter `end` is known, and every record before it must be valid. Otherwise the
    records end at the first invalid one, unless a later record proves that this one had been durable.
    """

    def __init__(
        self, file: JournalFile, salt: int, end: int | None, name: str, start: int = FILE_HEADER_BYTES
    ) -> None:
        self.end = self.commit_start = start
        self.torn_bytes = 0
        self._window = FileWindow(file)
        self._size_bytes = file.size_bytes
        self._salt = salt
        self._known_end = end
        self._name = name

    def __iter__(self) -> Iterator[Record]:
        """Raises CorruptError: durable records are damaged."""
        limit = self._size_bytes if self._known_end is None else self._known_end
        while self.end < limit:
            record = self._record_at(self.end, limit)
            if record is None:
                if self._known_end is not None:
                    raise CorruptError(
                        f"journal file {self._name} is damaged at {self.end}, its records end at {self._known_end}"
                    )
                self._prove_torn()
                return
            self.end = record.position + record.header.length
            self.commit_start = record.header.commit_start
            yield record

    def payload(self, record: Record) -> memoryview:
        """The payload of the record that the scan yielded last; its checksum was checked."""
        return self._window.view(record.position, record.header.length)

    def _record_at(self, position: int, limit: int) -> Record | None:
        payload = position + RECORD_HEADER_BYTES
        if payload > limit:
            return None
        header = journal_format.decode_record_header(self._window.view(position, RECORD_HEADER_BYTES), self._salt)
        if header is None or header.length > min(ENTRY_BYTES_MAX, limit - payload):
            return None
        if not journal_format.is_whole(self._window.view(position, RECORD_HEADER_BYTES + header.length)):
            return None
        return Record(header, payload)

    def _prove_torn(self) -> None:
        """Raise CorruptError if a later valid record proves that the invalid bytes at `end` had been durable."""
        mark = journal_format.record_mark(self._salt)
        position = self.end
        while position + RECORD_HEADER_BYTES <= self._size_bytes:
            content = self._window.view(position, min(WINDOW_BYTES, self._size_bytes - position)).tobytes()
            found = content.find(mark)
            while found >= 0:
                record = self._record_at(position + found, self._size_bytes)
                if record is not None and record.header.commit_start > self.end:
                    raise CorruptError(
                        f"journal file {self._name} is damaged at {self.end}: a later commit at "
                        f"{record.header.commit_start} is intact, so the damage is not a torn write",
                        details={"file": self._name, "position": self.end},
                    )
                self.torn_bytes = self._torn_record_end(position + found) - self.end
                found = content.find(mark, found + 1)
            position += len(content) - len(mark) + 1

    def _torn_record_end(self, position: int) -> int:
        """Where the record with a mark at `position` would end; the end of its header if its length is not possible."""
        payload = position + RECORD_HEADER_BYTES
        if payload > self._size_bytes:
            return self._size_bytes
        header = journal_format.decode_record_header(self._window.view(position, RECORD_HEADER_BYTES), self._salt)
        length = header.length if header is not None and header.length <= ENTRY_BYTES_MAX else 0
        return min(payload + length, self._size_bytes)
