"""Scans the records of a journal file, in bounded memory, around blocks that the disk cannot read any more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalFile
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2, LostRecordsError, RecordHeader

# Reads a journal file around blocks that the disk cannot read any more.
#
# One such block fails every read that touches it. If the error ended the scan, it would cost the whole journal, where
# wrong bytes in the same block cost one entry. So the block is read as zeros, and the checksums decide what is damaged.

UNREADABLE: Final = frozenset({errno.EIO, errno.ENODATA})
"""What a read of a bad block ends with: the second one is Linux's error for the medium."""

BLOCK_BYTES: Final = 512
"""Blocks are searched for in pieces of this size: the smallest that a disk reads."""

UNREADABLE_BYTES_MAX: Final = 1 << 20
"""In one read. A disk with more bad blocks is not trusted, and each failed read takes time."""


class ReadBytes(NamedTuple):
    """What was read, and the parts of the file that could not be read, as first position and end."""

    content: bytes
    unreadable: tuple[tuple[int, int], ...] = ()


def read_around(file: JournalFile, position: int, length: int) -> ReadBytes:
    """Up to `length` bytes from `position`, fewer only at the end of the file, with zeros for unreadable blocks.

    Raises:
        OSError: the disk fails in another way, or most of these bytes are unreadable.
    """
    try:
        return ReadBytes(file.read(position, length))
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return _read_blocks(file, position, max(0, min(length, file.size_bytes - position)), error)


def _read_blocks(file: JournalFile, position: int, length: int, error: OSError) -> ReadBytes:
    content = bytearray(length)
    if not length:
        return ReadBytes(b"")
    unreadable: list[tuple[int, int]] = []
    unreadable_bytes = 0
    left = [(position, position + length)]  # parts whose read has failed, the next one last
    while left:
        start, end = left.pop()
        if start // BLOCK_BYTES == (end - 1) // BLOCK_BYTES:
            unreadable_bytes += end - start
            if unreadable_bytes > UNREADABLE_BYTES_MAX:
                raise error
            if unreadable and unreadable[-1][1] == start:
                start = unreadable.pop()[0]
            unreadable.append((start, end))
            continue
        middle = (start + end) // 2 // BLOCK_BYTES * BLOCK_BYTES
        if middle <= start:
            middle += BLOCK_BYTES
        failed: list[tuple[int, int]] = []
        for first, after in ((start, middle), (middle, end)):
            try:
                content[first - position : after - position] = file.read(first, after - first)
            except OSError as problem:
                if problem.errno not in UNREADABLE:
                    raise
                failed.append((first, after))
        left += reversed(failed)
    return ReadBytes(bytes(content), tuple(unreadable))


def write_again(file: JournalFile, position: int, length: int) -> None:
    """Write bytes of a file to their places again, except for those that cannot be read. Raises OSError."""
    content, unreadable = read_around(file, position, length)
    start = position
    for end, after in (*unreadable, (position + len(content), 0)):
        if start < end:
            file.write(start, [content[start - position : end - position]])
        start = after


WINDOW_BYTES: Final = 4 << 20

DAMAGED_ENTRIES_MAX: Final = 10_000
"""A scan that tolerates damage accepts so many damaged entries in a file. A disk with more of them is not trusted."""


class Record(NamedTuple):
    """A record whose header is intact. `position` is that of its payload, `is_damaged` whether that is damaged."""

    header: RecordHeader
    position: int
    is_damaged: bool = False


class FileWindow:
    """Views of a file. Views of positions close to each other cost one read, of at least `ahead` bytes.

    Blocks that the disk cannot read are zeros, so that they are damage and not the end of everything.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._start = 0
        self._content = memoryview(b"")
        self._unreadable: tuple[tuple[int, int], ...] = ()

    def has(self, position: int, length: int) -> bool:
        """Whether a view of these bytes costs no read."""
        return 0 <= position - self._start <= len(self._content) - length

    def view(self, position: int, length: int, ahead: int | None = None) -> memoryview:
        """`length` bytes, or fewer at the end of the file."""
        if not self.has(position, length):
            self._start = position
            read_bytes = max(length, WINDOW_BYTES if ahead is None else ahead)
            content, self._unreadable = read_around(self._file, position, read_bytes)
            self._content = memoryview(content)
        skipped = position - self._start
        return self._content[skipped : skipped + length]

    def is_readable(self, position: int, length: int) -> bool:
        """Whether the disk could read all of these bytes. `view` gives zeros for the others."""
        self.view(position, length)
        return all(end <= position or position + length <= start for start, end in self._unreadable)


class RecordScan:
    """The records of one file, in order, from `start` on, where a record must begin.

    After the scan `end` is the position after the last record, and `commit_start` the position where the last commit
    began. `torn_bytes` is the number of bytes after `end` in which parts of a torn commit were found.

    For a file with a successor the parameter `end` is known, and every byte before it was durable. Otherwise the
    records end at the first invalid one, unless a later record proves that this one had been durable, or it cannot be
    read. Damage of what was durable is an error. With `tolerates_damage`, an entry of which only the payload is damaged
    is a record, too.
    """

    def __init__(
        self,
        file: JournalFile,
        layout: Format2,
        end: int | None,
        name: str,
        start: int = FILE_HEADER_BYTES,
        *,
        tolerates_damage: bool = False,
    ) -> None:
        self.end = self.commit_start = start
        self.torn_bytes = 0
        self.damaged_entries = 0
        self._layout = layout
        self._header_bytes = layout.header_bytes
        self._window = FileWindow(file)
        self._size_bytes = file.size_bytes
        self._known_end = end
        self._durable_until = start if end is None else end
        self._tolerates_damage = tolerates_damage
        self._name = name

    def __iter__(self) -> Iterator[Record]:
        """Records in order.

        Raises:
            LostRecordsError: durable records are damaged, and it cannot be told which.
            CorruptError: durable records are damaged and that is not tolerated, or newer software wrote a record.
        """
        limit = self._size_bytes if self._known_end is None else self._known_end
        while self.end < limit:
            record = self._record_at(self.end, limit)
            if record is None:
                if self.end >= self._durable_until and not self._prove_durable() and not self._prove_unreadable():
                    return
                yield self._skip_damaged_entry()
                continue
            self.end = record.position + record.header.length
            self.commit_start = record.header.commit_start
            yield record

    def payload(self, record: Record) -> memoryview:
        """The payload of the record that the scan yielded last; its checksum was checked."""
        return self._window.view(record.position, record.header.length)

    def _header_at(self, position: int, limit: int) -> RecordHeader | None:
        """The header at this position, if the record fits before `limit`. Its payload may be damaged."""
        room = limit - position - self._header_bytes
        if room < 0:
            return None
        header = self._layout.decode(self._window.view(position, self._header_bytes))
        if header is None or header.length > ENTRY_BYTES_MAX or header.length > room:
            return None
        return header

    def _record_at(self, position: int, limit: int) -> Record | None:
        header = self._header_at(position, limit)
        if header is None:
            return None
        whole = self._layout.checked(header, self._window.view(position, self._header_bytes + header.length))
        return None if whole is None else Record(whole, position + self._header_bytes)

    def _skip_damaged_entry(self) -> Record:
        """Go on after the damaged entry at `end`.

        Raises:
            LostRecordsError: its header is damaged, too, or there are too many of them.
            CorruptError: damage is not tolerated.
        """
        problem = (
            f"journal file {self._name} is damaged at {self.end}: its bytes up to {self._durable_until} were durable, "
            "so the damage is not a torn write"
        )
        details = {"file": self._name, "position": self.end}
        if not self._tolerates_damage:  # then no other journal has these entries
            raise CorruptError(problem, details=details)
        header = self._header_at(self.end, self._durable_until)
        if header is None or self.damaged_entries >= DAMAGED_ENTRIES_MAX:
            raise LostRecordsError(problem, details=details)
        damaged = Record(header, self.end + self._header_bytes, is_damaged=True)
        self.damaged_entries += 1
        self.end = damaged.position + header.length
        self.commit_start = header.commit_start
        return damaged

    def _prove_durable(self) -> bool:
        """Whether a later whole record proves that the invalid bytes at `end` had been durable.

        If so, all bytes before the commit of that record had been. If not, the bytes are a torn commit.
        """
        for mark in self._marks(self.end, self._size_bytes):
            record = self._record_at(mark, self._size_bytes)
            if record is not None and record.header.commit_start > self.end:
                self._durable_until = record.header.commit_start
                self.torn_bytes = 0
                return True
            self.torn_bytes = self._torn_record_end(mark) - self.end
        return False

    def _prove_unreadable(self) -> bool:
        """Whether the invalid bytes at `end` could not be read: a power cut tears a write, and does not cause that.

        They may have been durable, so they count as damage and are never cut.
        """
        header = self._header_at(self.end, self._size_bytes)
        length = self._header_bytes + (0 if header is None else header.length)
        if self._window.is_readable(self.end, min(length, self._size_bytes - self.end)):
            return False
        self._durable_until = self.end + length
        self.torn_bytes = 0
        return True

    def _marks(self, position: int, limit: int) -> Iterator[int]:
        """The positions from `position` on at which the mark of a record is."""
        while position + self._header_bytes <= limit:
            content = self._window.view(position, min(WINDOW_BYTES, limit - position)).tobytes()
            at = content.find(self._layout.mark)
            while at >= 0:
                yield position + at
                at = content.find(self._layout.mark, at + 1)
            position += len(content) - len(self._layout.mark) + 1

    def _torn_record_end(self, position: int) -> int:
        """Where the record with a mark at `position` would end; the end of its header if its length is not known."""
        payload = position + self._header_bytes
        if payload > self._size_bytes:
            return self._size_bytes
        header = self._layout.decode(self._window.view(position, self._header_bytes))
        length = header.length if header is not None and header.length <= ENTRY_BYTES_MAX else 0
        return min(payload + length, self._size_bytes)
