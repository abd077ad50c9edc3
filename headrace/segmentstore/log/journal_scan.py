"""Finds the records of a journal file again, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalFile
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.journal_files import LogFile
from headrace.segmentstore.log.journal_format import (
    ENTRY_BYTES_MAX,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Record,
    RecordHeader,
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
    """

    def __init__(self, file: JournalFile, salt: int, end: int | None, name: str) -> None:
        self.end = self.commit_start = FILE_HEADER_BYTES
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
        header = journal_format.decode_record_header(self._window.view(position, RECORD_HEADER_BYTES), self._salt)
        length = header.length if header is not None and header.length <= ENTRY_BYTES_MAX else 0
        return min(payload + length, self._size_bytes)


class RecoveredEntries:
    """Where the entries of one container lie: a few bytes for each, however many there are."""

    def __init__(self, container: int, first_entry: int) -> None:
        self.container = container
        self.first_entry = self.next_entry = first_entry
        self.epoch = 0
        self.truncated_before = 0
        self._files: list[tuple[LogFile, array[int], array[int]]] = []  # positions and lengths

    def add(self, log_file: LogFile, record: Record) -> None:
        """Raises CorruptError: this is not the next entry."""
        header: RecordHeader = record.header
        if header.entry != self.next_entry:
            raise CorruptError(
                f"journal file {log_file.name} goes on with entry {header.entry} of container {self.container}, "
                f"expected {self.next_entry}: entries are missing"
            )
        self.next_entry += 1
        self.epoch, self.truncated_before = header.epoch, header.truncated_before
        if not self._files or self._files[-1][0] is not log_file:
            self._files.append((log_file, array("Q"), array("I")))
        self._files[-1][1].append(record.position)
        self._files[-1][2].append(header.length)

    def lengths(self, first_entry: int) -> Iterator[tuple[int, int]]:
        """Number and length of each entry from this one on."""
        entry = self.first_entry
        for _, _, lengths in self._files:
            for index in range(max(first_entry - entry, 0), len(lengths)):
                yield entry + index, lengths[index]
            entry += len(lengths)

    def read(self, first_entry: int) -> Iterator[tuple[int, memoryview]]:
        """Number and payload of each entry from this one on; blocks while it reads.

        Raises:
            CorruptError: an entry is not as it was when the file was scanned.
        """
        entry = self.first_entry
        for log_file, positions, lengths in self._files:
            window = FileWindow(log_file.file)
            for index in range(max(first_entry - entry, 0), len(positions)):
                yield entry + index, self._checked(log_file, window, entry + index, positions[index], lengths[index])
            entry += len(positions)

    def _checked(self, log_file: LogFile, window: FileWindow, entry: int, position: int, length: int) -> memoryview:
        """The payload at this position. The scan has seen it whole, but the disk may give something else now."""
        record = window.view(position - RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + length)
        header = journal_format.decode_record_header(record, log_file.salt)
        if (
            header is None
            or (header.container, header.entry, header.length) != (self.container, entry, length)
            or not journal_format.is_whole(record)
        ):
            raise CorruptError(
                f"journal file {log_file.name} is damaged at {position}: entry {entry} of container {self.container} "
                "is not as it was at the start",
                details={"file": log_file.name, "position": position},
            )
        return record[RECORD_HEADER_BYTES:]
