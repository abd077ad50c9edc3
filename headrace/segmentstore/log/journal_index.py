"""Where each entry is that a journal holds: its file, position and length, from the scan and from each commit.

Entries are kept by container and epoch. A run may have several records of one entry: a copy in a newer file, or an
entry that was sent again because the first record was damaged. The newest record counts.

Any thread may read while the journal's thread adds. An entry costs 12 bytes of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final, NamedTuple

from headrace.codec.log_record_header import RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal_files import LogFile, Pin
from headrace.segmentstore.log.journal_format import RecordHeader
from headrace.segmentstore.log.journal_scan import DamagedPlace
from headrace.segmentstore.log.pending_records import PendingRecord

_ENTRY: Final = RecordKind.ENTRY

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

    __slots__ = ("_copies", "_tail", "epoch", "next_entry", "pieces")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_entry = 0  # after the greatest entry that was ever noted, damaged ones included
        self.pieces: list[EntryPiece] = []  # oldest record first
        self._tail: EntryPiece | None = None
        self._copies: EntryPiece | None = None

    @property
    def first_entry(self) -> int:
        return min((piece.first_entry for piece in self.pieces), default=self.next_entry)

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
        if entry >= self.next_entry:
            self.next_entry = entry + 1

    def keep(self, pieces: Iterable[EntryPiece]) -> None:
        """Keep only these pieces."""
        self.pieces = list(pieces)
        if self._tail not in self.pieces:
            self._tail = None
        if self._copies not in self.pieces:
            self._copies = None

    def find(self, first_entry: int, end_entry: int) -> tuple[list[EntryPart], list[Range]]:
        """The newest record of each entry in this range, in order, and the entries that are not there."""
        found: list[EntryPart] = []
        missing = [(first_entry, end_entry)] if first_entry < end_entry else []
        for piece in reversed(self.pieces):
            left: list[Range] = []
            for start, end in missing:
                low, high = max(start, piece.first_entry), min(end, piece.next_entry)
                if low >= high:
                    left.append((start, end))
                    continue
                found.append(EntryPart(self.epoch, piece, low, high))
                left += [each for each in ((start, low), (high, end)) if each[0] < each[1]]
            missing = left
            if not missing:
                break
        return sorted(found, key=_first_of), sorted(missing)

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
        for index, one in enumerate(pieces):
            for other in pieces[index + 1 :]:
                if other.first_entry >= one.next_entry:
                    break
                skipped = other.first_entry - one.first_entry
                both = min(len(one.lengths) - skipped, len(other.lengths))
                if one.lengths[skipped : skipped + both] != other.lengths[:both]:
                    raise CorruptError(
                        f"the entries of container {container} from {other.first_entry} on are in {one.log_file.name} "
                        f"and in {other.log_file.name}, and differ"
                    )


class LedgerState(NamedTuple):
    """What a replica may say about one ledger of a container.

    It holds every entry from `first_entry` up to, but without, `next_entry`. `had_before` is the first entry that it
    never had: it is greater than `next_entry` if entries in between are damaged.
    """

    epoch: int
    first_entry: int
    next_entry: int
    had_before: int


class ContainerEntries:
    """The entries of one container that the journal holds.

    `epoch` and `next_entry` belong to the newest entry. They and the truncation point never decrease.
    """

    def __init__(self, container: int) -> None:
        self.container = container
        self.epoch = 0
        self.next_entry = 0
        self.truncated_before = 0
        self.runs: dict[int, EntryRun] = {}
        self.damage_seen = 0

    def run(self, epoch: int) -> EntryRun:
        run = self.runs.get(epoch)
        if run is None:
            run = self.runs[epoch] = EntryRun(epoch)
            self.epoch = max(self.epoch, epoch)
        return run

    @property
    def in_order(self) -> list[EntryRun]:
        return [self.runs[epoch] for epoch in sorted(self.runs)]

    def truncate(self, before_entry: int) -> None:
        self.truncated_before = before_entry
        self.next_entry = max(self.next_entry, before_entry)
        for run in list(self.runs.values()):
            if any(piece.next_entry <= before_entry for piece in run.pieces):
                self._keep(run, [piece for piece in run.pieces if piece.next_entry > before_entry])

    def forget_file(self, log_file: LogFile) -> None:
        for run in list(self.runs.values()):
            if any(piece.log_file is log_file for piece in run.pieces):
                self._keep(run, [piece for piece in run.pieces if piece.log_file is not log_file])

    def _keep(self, run: EntryRun, pieces: Sequence[EntryPiece]) -> None:
        run.keep(pieces)
        if not pieces and run.next_entry <= self.truncated_before:
            del self.runs[run.epoch]

    def chain(self, first_entry: int) -> list[EntryPart]:
        """The entries of all ledgers from `first_entry` or the truncation point on, each once and in order.

        Raises:
            CorruptError: an entry is missing, or is there twice with different content.
        """
        end = self.truncated_before
        found: list[EntryPart] = []
        before: EntryRun | None = None
        for run in self.in_order:
            run.check(self.container)
            if run.next_entry <= self.truncated_before:
                continue
            first = max(run.first_entry, self.truncated_before)
            if first > end:
                raise self._missing(end, first)
            if first < end and before is not None:
                raise CorruptError(
                    f"entry {first} of container {self.container} is in the ledgers of the epochs {before.epoch} and "
                    f"{run.epoch}, and differs"
                )
            parts, missing = run.find(first, run.next_entry)
            if missing:
                raise self._missing(*missing[0])
            found += parts
            before, end = run, run.next_entry
        if end < self.next_entry:
            raise self._missing(end, self.next_entry)
        return [
            part._replace(first_entry=max(part.first_entry, first_entry))
            for part in found
            if part.end_entry > first_entry
        ]

    def _missing(self, entry: int, found: int) -> CorruptError:
        return CorruptError(
            f"the log of container {self.container} is needed from entry {self.truncated_before} on, but its entries "
            f"from {entry} to {found - 1} are not there: older journal files are missing"
        )


class JournalIndex:
    """The index of one journal. `promises` has the highest epoch that the replica promised, by container."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.promises: dict[int, int] = {}
        self.truncated_before: dict[int, int] = {}
        self._containers: dict[int, ContainerEntries] = {}
        self._damaged_places = 0  # those in which records of any container may have been

    # For the journal, which holds `lock` once it has started

    def add(self, log_file: LogFile, record: NotedRecord, position: int) -> bool:
        """Note a durable record. Call it in the order of the files.

        Returns whether it ends the need for earlier records.
        """
        container, kind = record.container, record.kind
        entries = self._containers.get(container)
        if kind is _ENTRY:
            if entries is None:
                entries = self._containers[container] = ContainerEntries(container)
            run = entries.runs.get(record.epoch)
            if run is None:
                run = entries.run(record.epoch)
            run.add(log_file, record, position)
            if record.entry >= entries.next_entry:
                entries.next_entry = record.entry + 1
            if not record.copied:
                entries.damage_seen = self._damaged_places
        elif kind is RecordKind.PROMISE:
            self.promises[container] = max(self.promises.get(container, 0), record.writer_epoch)
            return False
        elif kind is RecordKind.DROP:
            self._containers.pop(container, None)
            self.truncated_before.pop(container, None)
            return True
        elif entries is None:
            entries = self._containers[container] = ContainerEntries(container)
        if record.truncated_before <= entries.truncated_before:
            return False
        entries.epoch = max(entries.epoch, record.epoch)
        self.truncated_before[container] = record.truncated_before
        entries.truncate(record.truncated_before)
        return True

    def note_damage(self, place: DamagedPlace) -> None:
        """Note that durable records are damaged, which come next in the order of the files."""
        header = place.header
        if header is None:
            self._damaged_places += 1
            return
        if header.kind is RecordKind.ENTRY:
            entries = self._containers.setdefault(header.container, ContainerEntries(header.container))
            run = entries.run(header.epoch)
            run.next_entry = max(run.next_entry, header.entry + 1)
            entries.next_entry = max(entries.next_entry, header.entry + 1)

    def forget_file(self, log_file: LogFile) -> None:
        """Forget the records in a file that is about to be used again."""
        for entries in self._containers.values():
            entries.forget_file(log_file)

    def is_at(self, header: RecordHeader, log_file: LogFile, position: int) -> bool:
        """Whether an entry is needed, and its record at this place is the one that counts."""
        entries = self._containers.get(header.container)
        run = entries.runs.get(header.epoch) if entries is not None else None
        if entries is None or run is None or header.entry < entries.truncated_before:
            return False
        return run.position(header.entry) == (log_file, position)

    # For readers, in any thread

    def __contains__(self, container: object) -> bool:
        return container in self._containers

    def next_entry(self, container: int) -> int:
        """The number after the newest entry of the container that is durable here; 0 if it has none."""
        entries = self._containers.get(container)
        return 0 if entries is None else entries.next_entry

    def epochs(self) -> Mapping[int, int]:
        """The containers that have records here, and the epoch of the newest."""
        with self.lock:
            return {number: entries.epoch for number, entries in self._containers.items()}

    def ledgers(self, container: int) -> list[LedgerState]:
        """What the journal holds of the ledgers of a container, oldest ledger first."""
        with self.lock:
            entries = self._containers.get(container)
            if entries is None:
                return []
            return [_state(run, entries.truncated_before) for run in entries.in_order]

    def may_lack_entries(self, container: int) -> bool:
        """Whether records at the end of the container's log may be lost by damage, so that `ledgers` is not certain.

        An entry after the damage proves that the gaps before it are all that is missing.
        """
        with self.lock:
            entries = self._containers.get(container)
            return self._damaged_places > (0 if entries is None else entries.damage_seen)

    def chain(self, container: int, first_entry: int = 0) -> tuple[list[EntryPart], Pin]:
        """The entries of all ledgers of a container, and a pin of their files.

        Raises:
            CorruptError: an entry is missing, or is there twice with different content.
        """
        with self.lock:
            entries = self._containers.get(container)
            parts = [] if entries is None else entries.chain(first_entry)
            return parts, Pin({part.log_file for part in parts})

    def ledger(self, container: int, epoch: int, first_entry: int, end_entry: int) -> tuple[list[EntryPart], Pin]:
        """The entries of one ledger in this range that are here, and a pin of their files."""
        with self.lock:
            entries = self._containers.get(container)
            run = None if entries is None else entries.runs.get(epoch)
            parts = [] if run is None else run.find(first_entry, end_entry)[0]
            return parts, Pin({part.log_file for part in parts})


def _first_of(part: EntryPart) -> int:
    return part.first_entry


def _state(run: EntryRun, truncated_before: int) -> LedgerState:
    first = max(run.first_entry, truncated_before)
    _, missing = run.find(first, run.next_entry)
    gapless = missing[0][0] if missing else max(run.next_entry, first)
    return LedgerState(run.epoch, first, gapless, max(run.next_entry, first))
