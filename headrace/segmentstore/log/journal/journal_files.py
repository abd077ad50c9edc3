"""The files of a journal: the active one, and older ones that are still needed.

Files are freed oldest first, so the sequence numbers of the files in use have no gap. All methods are called from one
thread, except that any thread may pin files.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol
from weakref import WeakSet

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalDisk, JournalFile
from headrace.segmentstore.log.journal import journal_format
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, FileHeader, Format2, LostRecordsError
from headrace.segmentstore.log.journal.journal_scan import read_around
from headrace.segmentstore.log.journal.replica_identity import IDENTITY_NAME, create_identity, load_identity
from headrace.segmentstore.log.journal.spare_files import SPARE_PREFIX, SpareFiles, finish_quarantine, quarantine

_log = logging.getLogger(__name__)

_LOG_PREFIX: Final = "journal-"

STRETCHES_PER_FILE: Final = 16
"""Stretches per file and container. More of them would tell more exactly what is needed, and cost memory per file."""

_ZEROS: Final = bytes(1 << 20)


class Pin:
    """Keeps files from being used again for as long as this object exists. Create it under the lock of the index."""

    __slots__ = ("__weakref__",)

    def __init__(self, log_files: Iterable[LogFile]) -> None:
        for log_file in log_files:
            log_file.pins.add(self)


class EntryPlaces(Protocol):
    """Consecutive entries in a file: the positions of their payloads, and their lengths."""

    first_entry: int
    positions: array[int]
    lengths: array[int]


@dataclass(slots=True)
class Stretch:
    """Records of one container in a part of a file: their positions, their size, and the greatest entry number."""

    start: int
    end: int
    record_bytes: int
    last_entry: int


@dataclass(slots=True, eq=False)
class LogFile:
    """A file in use. `stretches` has the entries in it, by container.

    `copied`: all needed entries of the file are durable in newer files too. `damaged`: its entries cannot be copied.
    """

    name: str
    sequence: int
    file: JournalFile
    layout: Format2
    end: int = FILE_HEADER_BYTES
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    copied: bool = False
    damaged: bool = False
    pins: WeakSet[Pin] = field(default_factory=WeakSet)

    def note(self, container: int, entry: int, start: int, end: int) -> None:
        """Note an entry's record from `start` to `end`, which follows all records noted before."""
        stretches = self.stretches.get(container)
        if stretches is None:
            stretches = self.stretches[container] = []
        if not stretches or start - stretches[-1].start >= self.file.size_bytes // STRETCHES_PER_FILE:
            stretches.append(Stretch(start, end, end - start, entry))
            return
        last = stretches[-1]
        last.end = end
        last.record_bytes += end - start
        if entry > last.last_entry:  # not always: a copied entry may follow newer entries
            last.last_entry = entry

    def replace(self, container: int, pieces: Iterable[EntryPlaces]) -> None:
        """Note again which entries of a container are in this file, because some are not needed any more."""
        stretches = [stretch for piece in pieces for stretch in self._stretches(piece)]
        if stretches:
            self.stretches[container] = sorted(stretches, key=lambda stretch: stretch.start)
        else:
            self.stretches.pop(container, None)

    def _stretches(self, piece: EntryPlaces) -> Iterator[Stretch]:
        positions, lengths, header_bytes = piece.positions, piece.lengths, self.layout.header_bytes
        first = 0
        while first < len(positions):
            end = bisect_left(positions, positions[first] + self.file.size_bytes // STRETCHES_PER_FILE, first + 1)
            record_bytes = sum(lengths[first:end]) + (end - first) * header_bytes
            start, last = positions[first] - header_bytes, positions[end - 1] + lengths[end - 1]
            yield Stretch(start, last, record_bytes, piece.first_entry + end - 1)
            first = end

    def needed(self, truncated_before: Mapping[int, int]) -> dict[int, list[Stretch]]:
        """The stretches with at least one needed entry, by container. They may hold truncated entries too."""
        if self.copied:
            return {}
        found = {}
        for container, stretches in self.stretches.items():
            before = truncated_before.get(container, 0)
            needed = [stretch for stretch in stretches if stretch.last_entry >= before]
            if needed:
                found[container] = needed
        return found


def needed_bytes(stretches: Iterable[list[Stretch]]) -> int:
    return sum(stretch.record_bytes for each in stretches for stretch in each)


class JournalFiles:
    """The files of one journal. `random_salt` returns unsigned 64-bit numbers.

    `format` has the layout of the active file once the journal writes.
    """

    def __init__(
        self, disk: JournalDisk, file_bytes: int, random_salt: Callable[[], int], logs_on_volume: int = 1
    ) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._random_salt = random_salt
        self._logs_on_volume = logs_on_volume
        self.spares = SpareFiles(disk, file_bytes, logs_on_volume)
        self.used: deque[LogFile] = deque()
        self.replica_id = b""
        self.format = Format2(0)

    @property
    def active(self) -> LogFile:
        return self.used[-1]

    def load(self) -> list[tuple[LogFile, FileHeader]]:
        """Find the files on disk; return those in use, oldest first. Their `end` is not known yet.

        Raises:
            LostRecordsError: a header or the identity is damaged, or a file is missing.
            CorruptError: a file belongs to another journal.
            OSError: the volume has no room for the identity of a journal that has none.
        """
        finish_quarantine(self._disk)
        replica_id = load_identity(self._disk)
        loaded: list[tuple[LogFile, FileHeader]] = []
        with ExitStack() as opened:
            self._open_files(replica_id, loaded, opened)
            opened.pop_all()
        self.replica_id = create_identity(self._disk, self._random_salt) if replica_id is None else replica_id
        self.used.extend(log_file for log_file, _ in loaded)
        self.spares.note_in_use(len(self.used))
        return loaded

    def _open_files(
        self, replica_id: bytes | None, loaded: list[tuple[LogFile, FileHeader]], opened: ExitStack
    ) -> None:
        for name in self._disk.names():
            if name.startswith(SPARE_PREFIX):
                self.spares.load(name, _number(name, SPARE_PREFIX))
            elif name.startswith(_LOG_PREFIX) and name != IDENTITY_NAME:
                file = self._disk.open(name)
                opened.callback(file.close)
                header = journal_format.decode_file_header(read_around(file, 0, FILE_HEADER_BYTES).content, name)
                loaded.append((LogFile(name, header.sequence, file, Format2(header.salt)), header))
                if header.replica_id != replica_id:
                    raise CorruptError(
                        f"journal file {name} belongs to the journal {header.replica_id.hex()}, but {IDENTITY_NAME} "
                        f"says {'nothing' if replica_id is None else replica_id.hex()}: restore the files that belong "
                        "together"
                    )
        for (before, _), (after, _) in pairwise(loaded):
            if after.sequence != before.sequence + 1:
                raise LostRecordsError(f"journal files between {before.name} and {after.name} are missing")

    def quarantine(self) -> None:
        """Put all files of the journal into quarantine, and forget its identity. Call `load` again."""
        self.close()
        self.used.clear()
        quarantine(self._disk)
        self.spares = SpareFiles(self._disk, self._file_bytes, self._logs_on_volume)

    def begin(self) -> None:
        """Choose the file to write into after `load`: a new one, or the last one if the volume has no room.

        Raises:
            OSError: neither is possible.
        """
        try:
            name = self.spares.take()
        except OSError as error:
            if not self.continue_last(self._file_bytes // STRETCHES_PER_FILE):
                raise
            _log.warning("event=journal_file_continued file=%r error=%r", self.active.name, error)
        else:
            self._activate(name)

    def activate_next(self) -> None:
        """Start a new file. The end of the file that was active before is final from now on."""
        self._activate(self.spares.take())

    def _activate(self, name: str) -> None:
        file = self._disk.open(name)
        previous = self.used[-1] if self.used else None
        sequence = previous.sequence + 1 if previous else 1
        header = FileHeader(sequence, self._random_salt(), previous.end if previous else 0, self.replica_id)
        file.write_durably(0, [journal_format.encode_file_header(header)])
        log_name = f"{_LOG_PREFIX}{sequence:016d}"
        self._disk.rename(name, log_name)
        self.format = Format2(header.salt)
        self.used.append(LogFile(log_name, sequence, file, self.format))
        self.spares.note_in_use(len(self.used))
        self.spares.remove_surplus(len(self.used))

    def continue_last(self, free_bytes: int) -> bool:
        """Continue in the file that was written last; return False if there is none, or it has less space free.

        This needs no space on the volume. The bytes after the file's end are wiped first: they may be parts of a torn
        commit, which a later scan must not mistake for new records.
        """
        if not self.used:
            return False
        self.format = self.active.layout
        if self.active.file.size_bytes - self.active.end < free_bytes:
            return False
        self.wipe_end()
        return True

    def wipe_end(self) -> None:
        """Write zeros behind the last record of the newest file. A disk replaces bad blocks that are written whole.

        Raises:
            OSError: the disk cannot be written.
        """
        file = self.active.file
        for position in range(self.active.end, file.size_bytes, len(_ZEROS)):
            file.write(position, [_ZEROS[: min(len(_ZEROS), file.size_bytes - position)]])
        file.sync()

    def room_for_copies(self, copied_bytes: int) -> bool:
        """Whether copies of so many bytes may be written.

        The last space of a full volume is kept for checkpoints and truncation points, which are certain to free files.
        """
        return copied_bytes <= self.active.file.size_bytes - self.active.end or len(self.spares) > 0

    @property
    def log_bytes(self) -> int:
        """Bytes from the start of the oldest file to the end of the last record."""
        return (len(self.used) - 1) * self._file_bytes + self.active.end if self.used else 0

    @property
    def volume_bytes(self) -> int:
        """Bytes that all files take on the volume, spare files included."""
        return (len(self.used) + len(self.spares)) * self._file_bytes

    def free_oldest(self) -> LogFile:
        """Free the oldest file."""
        log_file = self.used.popleft()
        self._free(log_file)
        return log_file

    def free_empty(self) -> None:
        """Free the newest files if nothing was written to them.

        Otherwise each start of a store that ends before it writes would use up another file of the volume.
        """
        while self.used and self.active.end == FILE_HEADER_BYTES:
            self._free(self.used.pop())

    def close(self) -> None:
        for log_file in self.used:
            log_file.file.close()

    def _free(self, log_file: LogFile) -> None:
        log_file.file.close()
        self.spares.give(log_file.name, log_file.file.size_bytes, len(self.used))


def _number(name: str, prefix: str) -> int:
    digits = name.removeprefix(prefix)
    if not digits.isdigit():
        raise CorruptError(f"{name} is not the name of a journal file: another program writes into this directory")
    return int(digits)
