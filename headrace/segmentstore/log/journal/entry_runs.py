"""The entries of one ledger that a journal holds: their places in files, oldest record first.

A run may have several records of one entry: a copy in a newer file, or an entry that was sent again because the first
record was damaged. The newest record counts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal.journal_files import LogFile
from headrace.segmentstore.log.journal.journal_format import RecordHeader
from headrace.segmentstore.log.journal.pending_records import PendingRecord

NotedRecord = RecordHeader | PendingRecord
"""A record that is durable now, as it was read or as it was written."""

Range = tuple[int, int]
"""Entries from the first number up to, but without, the second."""


class EntryPiece:
    """Records of consecutive entries of one ledger in one file."""

    __slots__ = ("first_entry", "lengths", "log_file", "positions")

    def __init__(self, log_file: LogFile, first_entry: int) -> None:
        self.log_file = log_file
        self.first_entry = first_entry
        self.positions = array("Q")  # of the payloads
        self.lengths = array("I")

    @property
    def next_entry(self) -> int:
        return self.first_entry + len(self.positions)

    def clipped(self, first_entry: int, end_entry: int) -> EntryPiece:
        """This piece, or one with only the entries in this range."""
        low, high = max(first_entry, self.first_entry), min(end_entry, self.next_entry)
        if (low, high) == (self.first_entry, self.next_entry):
            return self
        piece = EntryPiece(self.log_file, low)
        piece.positions = self.positions[low - self.first_entry : max(high, low) - self.first_entry]
        piece.lengths = self.lengths[low - self.first_entry : max(high, low) - self.first_entry]
        return piece


class EntryPart(NamedTuple):
    """The entries of a piece from `first_entry` up to, but without, `end_entry`."""

    epoch: int
    piece: EntryPiece
    first_entry: int
    end_entry: int

    @property
    def log_file(self) -> LogFile:
        return self.piece.log_file

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Entry number, position of the payload, and length."""
        piece = self.piece
        for entry in range(self.first_entry, self.end_entry):
            index = entry - piece.first_entry
            yield entry, piece.positions[index], piece.lengths[index]

    def lengths(self) -> array[int]:
        first = self.piece.first_entry
        return self.piece.lengths[self.first_entry - first : self.end_entry - first]


class EntryRun:
    """The entries of one ledger that the journal holds."""

    __slots__ = ("_copies", "_tail", "epoch", "first_entry", "next_entry", "pieces")

    def __init__(self, epoch: int, first_entry: int) -> None:
        self.epoch = epoch
        self.first_entry = first_entry  # the least entry that was ever noted, damaged and truncated ones included
        self.next_entry = first_entry  # after the greatest one
        self.pieces: list[EntryPiece] = []  # oldest record first
        self._tail: EntryPiece | None = None
        self._copies: EntryPiece | None = None

    def note(self, entry: int) -> None:
        """Note that the journal has or had this entry."""
        if entry >= self.next_entry:
            self.next_entry = entry + 1
        elif entry < self.first_entry:
            self.first_entry = entry

    def add(self, log_file: LogFile, record: NotedRecord, position: int) -> None:
        copied, entry = record.copied, record.entry
        piece = self._copies if copied else self._tail
        if piece is None or piece.log_file is not log_file or piece.first_entry + len(piece.positions) != entry:
            piece = EntryPiece(log_file, entry)
            self.pieces.append(piece)
            if copied:
                self._copies = piece
            else:
                self._tail = piece
        piece.positions.append(position)
        piece.lengths.append(record.length)
        self.note(entry)

    def keep(self, pieces: Iterable[EntryPiece]) -> None:
        """Keep only these pieces."""
        self.pieces = list(pieces)
        if self._tail not in self.pieces:
            self._tail = None
        if self._copies not in self.pieces:
            self._copies = None

    def clip(self, first_entry: int, end_entry: int | None) -> None:
        """Keep only the entries in this range; without an end, all from the first on.

        A piece is replaced, not changed, because a reading may be under way.
        """
        end = self.next_entry if end_entry is None else min(end_entry, self.next_entry)
        self.first_entry = max(self.first_entry, first_entry)
        self.next_entry = max(end, self.first_entry)
        clipped = [piece.clipped(self.first_entry, self.next_entry) for piece in self.pieces]
        self.keep([piece for piece in clipped if piece.positions])

    def find(self, first_entry: int, end_entry: int) -> tuple[list[EntryPart], list[Range]]:
        """The newest record of each entry in this range, in order, and the entries that are not there."""
        parts: list[EntryPart] = []
        missing = [(first_entry, end_entry)] if first_entry < end_entry else []
        for piece in reversed(self.pieces):
            left: list[Range] = []
            for start, end in missing:
                low, high = max(start, piece.first_entry), min(end, piece.next_entry)
                if low >= high:
                    left.append((start, end))
                    continue
                parts.append(EntryPart(self.epoch, piece, low, high))
                left += [each for each in ((start, low), (high, end)) if each[0] < each[1]]
            missing = left
            if not missing:
                break
        return sorted(parts, key=_first_of), sorted(missing)

    def position(self, entry: int) -> tuple[LogFile, int] | None:
        """The file and position of the newest record of an entry; None if it is not there."""
        for piece in reversed(self.pieces):
            index = entry - piece.first_entry
            if 0 <= index < len(piece.positions):
                return piece.log_file, piece.positions[index]
        return None

    def check(self, container: int) -> None:
        """Raises CorruptError if two records of one entry have different lengths."""
        pieces = sorted(self.pieces, key=lambda piece: piece.first_entry)
        for index, piece in enumerate(pieces):
            for other in pieces[index + 1 :]:
                if other.first_entry >= piece.next_entry:
                    break
                skipped = other.first_entry - piece.first_entry
                both = min(len(piece.lengths) - skipped, len(other.lengths))
                if piece.lengths[skipped : skipped + both] != other.lengths[:both]:
                    raise CorruptError(
                        f"the entries of container {container} from {other.first_entry} on are in "
                        f"{piece.log_file.name} and in {other.log_file.name}, and differ"
                    )


class LedgerState(NamedTuple):
    """What a replica may say about one ledger of a container.

    It holds every entry from `first_entry` up to, but without, `next_entry`. `had_before` is the first entry that it
    never had: it is greater than `next_entry` if entries in between are damaged. If the first entries are damaged,
    `first_entry` and `next_entry` are the first of them.
    """

    epoch: int
    first_entry: int
    next_entry: int
    had_before: int


def _first_of(part: EntryPart) -> int:
    return part.first_entry


def ledger_state(run: EntryRun, truncated_before: int) -> LedgerState:
    """What is held of a run from the truncation point on."""
    first = max(run.first_entry, truncated_before)
    _, missing = run.find(first, run.next_entry)
    gapless = missing[0][0] if missing else max(run.next_entry, first)
    return LedgerState(run.epoch, first, gapless, max(run.next_entry, first))


# The number of bytes of a log between its truncation point and its end.

_MARK_EVERY_BYTES: Final = 1 << 20

_ENTRIES_COUNTED_AT_ONCE: Final = 256


class HeldBytes:
    """Counts entries with their headers. After a truncation the sum is too large by less than one mark."""

    def __init__(self) -> None:
        self.total = 0
        self._bytes_before: list[tuple[int, int]] = []  # (entry, bytes held before it), sparse

    def count(self, entry: int, stored_bytes: int) -> None:
        """Count the next entry, or several that begin with it."""
        if not self._bytes_before or self.total - self._bytes_before[-1][1] >= _MARK_EVERY_BYTES:
            self._bytes_before.append((entry, self.total))
        self.total += stored_bytes

    def count_parts(self, parts: Iterable[EntryPart]) -> None:
        """Count what the journal holds, in the order of the entries."""
        for part in parts:
            lengths, header_bytes = part.lengths(), part.log_file.layout.header_bytes
            for first in range(0, len(lengths), _ENTRIES_COUNTED_AT_ONCE):
                counted = lengths[first : first + _ENTRIES_COUNTED_AT_ONCE]
                self.count(part.first_entry + first, sum(counted) + len(counted) * header_bytes)

    def behind(self, entry: int) -> int:
        """About the bytes of the entries behind this one; too many by less than one mark."""
        marks = self._bytes_before
        index = bisect_right(marks, entry + 1, key=lambda mark: mark[0]) - 1
        return self.total - (marks[index][1] if index >= 0 else 0)

    def truncate(self, before_entry: int) -> None:
        """The entries before this one are not held any more."""
        kept = [(entry, before) for entry, before in self._bytes_before if entry >= before_entry]
        freed = kept[0][1] if kept else self.total
        self.total -= freed
        self._bytes_before = [(entry, before - freed) for entry, before in kept]
