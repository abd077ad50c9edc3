"""Finds the records of a journal file again, in bounded memory."""

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
    """Views of a file. Those that lie near each other cost one read."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._start = 0
        self._content = memoryview(b"")

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes, or what is left of them at the end of the file."""
        skipped = position - self._start
        if not 0 <= skipped <= len(self._content) - length:
            self._start, skipped = position, 0
            self._content = memoryview(self._file.read(position, max(length, WINDOW_BYTES)))
        return self._content[skipped : skipped + length]


class RecordScan:
    """The records of one file, in order. Afterwards `end` is the position behind the last one, `commit_start` where
    the last commit began, and `torn_bytes` how far traces of a commit that was torn go beyond `end`.

    `end` is known beforehand for a file that has a successor: then every byte up to it must check out. Otherwise the
    records end at the first one that does not check out, if nothing proves that it had been durable.

    A scan may `start` at any record.
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
                        f"journal file {self._name} is damaged at {self.end}, its records go on to {self._known_end}"
                    )
                self._prove_torn()
                return
            self.end = record.position + record.header.length
            self.commit_start = record.header.commit_start
            yield record

    def payload(self, record: Record) -> memoryview:
        """The bytes of the record that came last, as they were checked."""
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
        """Raise CorruptError if a later valid record shows that the bytes at the end of the scan had been durable."""
        mark = journal_format.record_mark(self._salt)
        position = self.end
        while position + RECORD_HEADER_BYTES <= self._size_bytes:
            content = self._window.view(position, min(WINDOW_BYTES, self._size_bytes - position)).tobytes()
            found = content.find(mark)
            while found >= 0:
                record = self._record_at(position + found, self._size_bytes)
                if record is not None and record.header.commit_start > self.end:
                    raise CorruptError(
                        f"journal file {self._name} is damaged at {self.end}: a later commit from "
                        f"{record.header.commit_start} on is whole, so this is not the torn end of a write",
                        details={"file": self._name, "position": self.end},
                    )
                self.torn_bytes = self._torn_record_end(position + found) - self.end
                found = content.find(mark, found + 1)
            position += len(content) - len(mark) + 1

    def _torn_record_end(self, position: int) -> int:
        """Where a record that begins like one of this file would end; where its header does if that makes no sense."""
        payload = position + RECORD_HEADER_BYTES
        if payload > self._size_bytes:
            return self._size_bytes
        header = journal_format.decode_record_header(self._window.view(position, RECORD_HEADER_BYTES), self._salt)
        length = header.length if header is not None and header.length <= ENTRY_BYTES_MAX else 0
        return min(payload + length, self._size_bytes)
