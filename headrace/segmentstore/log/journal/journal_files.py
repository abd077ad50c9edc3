"""The files of a journal: the active one, older ones that are still needed, spare ones, and journals in quarantine.

Files are freed oldest first, so the sequence numbers of the files in use have no gap. All methods of `JournalFiles` are
called from one thread, except that any thread may pin files. Spare files are used again.
"""

from __future__ import annotations

import errno
import logging
import os
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalDisk, JournalFile
from headrace.segmentstore.log.journal import journal_format
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, FileHeader, Format2, LostRecordsError
from headrace.segmentstore.log.journal.journal_scan import read_around
from headrace.segmentstore.log.journal.replica_identity import IDENTITY_NAME, create_identity, load_identity

# Journals in quarantine: the names of their files begin with `aside-`, and no process reads them.
#
# A journal that lost records which it cannot name is not the same replica any more. Its files stay on the volume so
# that an operator can look at them, but only one set, and only while the volume has much room.

_QUARANTINE_PREFIX: Final = "aside-"
_JOURNAL_PREFIX: Final = "journal-"
_QUARANTINED_IDENTITY: Final = _QUARANTINE_PREFIX + IDENTITY_NAME

FREE_PARTS: Final = 4
"""The files in quarantine are removed when less than this part of the volume is free."""


def quarantine(disk: JournalDisk) -> None:
    """Rename the files of the journal, and remove an earlier set.

    The identity is first. From then on the other files belong to no journal, and a process that finds such files
    continues here (`finish_quarantine`).
    """
    _remove(disk)
    if IDENTITY_NAME in disk.names():
        disk.rename(IDENTITY_NAME, _QUARANTINED_IDENTITY)
    _rename_files(disk)
    make_room(disk)


def finish_quarantine(disk: JournalDisk) -> None:
    """Continue if an earlier process ended while it put a journal into quarantine."""
    names = disk.names()
    if _QUARANTINED_IDENTITY in names and IDENTITY_NAME not in names:
        _rename_files(disk)


def make_room(disk: JournalDisk) -> None:
    """Remove the files in quarantine if little of the volume is free."""
    total_bytes, free_bytes = disk.space()
    if free_bytes < total_bytes // FREE_PARTS:
        _remove(disk)


def _rename_files(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_JOURNAL_PREFIX):
            disk.rename(name, _QUARANTINE_PREFIX + name)


def _remove(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_QUARANTINE_PREFIX):
            disk.remove(name)


# Spare files of a journal: created and zeroed once, and used again and again.
#
# The last spare file is for emergencies: the journal takes it only when the volume has no room for another one. As many
# freed files are kept as the journal has recently needed at once. A log that grows and shrinks with each checkpoint
# then creates no files: zeroing one takes the disk as long as a whole file of commits.

_log = logging.getLogger(__name__)

SPARE_PREFIX: Final = "spare-"

SPARE_FILES_READY: Final = 2
"""One file for the next rotation, and one for emergencies."""

SPARE_FILES_KEPT: Final = 4
"""As many are kept in any case: a few files that are freed together are needed again soon."""

RECENT_ROTATIONS: Final = 64
"""The greatest number of files in use at one of these rotations is the backlog for which spare files are kept."""

ROOM_PARTS: Final = 2
"""More spare files than SPARE_FILES_KEPT are kept only while all files take at most half of the journal's room."""


class SpareFiles:
    """The spare files of one journal. `prepare` may run in any thread, the other methods in the journal's only."""

    def __init__(self, disk: JournalDisk, file_bytes: int, logs_on_volume: int = 1) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._logs_on_volume = logs_on_volume
        self._names: deque[str] = deque()
        self._last_number = 0
        self._recent: deque[int] = deque(maxlen=RECENT_ROTATIONS)
        self._lock = Lock()  # guards the names
        self._creating = Lock()  # held while a file is created, so that a rotation waits for it

    def __len__(self) -> int:
        return len(self._names)

    @property
    def is_low(self) -> bool:
        """Whether `prepare` has something to do."""
        return len(self._names) < SPARE_FILES_READY

    def load(self, name: str, number: int) -> None:
        """Keep a spare file that was found on the disk, if it has the configured size; else remove it."""
        self._last_number = max(self._last_number, number)
        file = self._disk.open(name)
        file.close()
        if file.size_bytes == self._file_bytes:
            self._names.append(name)
        else:
            self._disk.remove(name)

    def take(self) -> str:
        """Take a spare file; create one if there are too few. Raises OSError if that is not possible."""
        try:
            self.prepare()
        except OSError as error:
            if not self._names:
                raise
            _log.warning("event=journal_spare_file_taken left=%d error=%r", len(self._names) - 1, error)
        with self._lock:
            return self._names.popleft()

    def prepare(self) -> None:
        """Create the missing spare files, which takes as long as writing whole files.

        Raises:
            OSError: there is no room for them.
        """
        if not self.is_low:
            return
        with self._creating:
            while self.is_low:
                with self._lock:
                    name = self._new_name()
                make_room(self._disk)
                if self._disk.space().free_bytes < self._file_bytes:  # do not fill the volume to find out
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._disk.create(name, self._file_bytes)
                with self._lock:
                    self._names.append(name)

    def note_in_use(self, files_in_use: int) -> None:
        """Note how many files are in use, at a start and at each rotation."""
        self._recent.append(files_in_use)

    def remove_surplus(self, files_in_use: int) -> None:
        """Remove a spare file that no recent backlog would have needed."""
        if len(self._names) > max(SPARE_FILES_READY, self._wanted(files_in_use)):
            with self._lock:
                name = self._names.pop()
            self._disk.remove(name)

    def give(self, name: str, size_bytes: int, files_in_use: int) -> None:
        """Make a spare file of a log file that is not needed any more, or remove it."""
        with self._lock:
            keep = len(self._names) < self._wanted(files_in_use) and size_bytes == self._file_bytes
            spare = self._new_name()
        if keep:
            self._disk.rename(name, spare)
            with self._lock:
                self._names.append(spare)
        else:
            self._disk.remove(name)

    def _wanted(self, files_in_use: int) -> int:
        """How many spare files to keep while so many files are in use."""
        backlog = max(self._recent, default=files_in_use) - files_in_use
        total_bytes, _ = self._disk.space()
        files_max = total_bytes // self._logs_on_volume // ROOM_PARTS // self._file_bytes
        return max(SPARE_FILES_KEPT, min(backlog + SPARE_FILES_READY, files_max - files_in_use))

    def _new_name(self) -> str:
        self._last_number += 1
        return f"{SPARE_PREFIX}{self._last_number:016d}"


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
        by_container = {}
        for container, stretches in self.stretches.items():
            before = truncated_before.get(container, 0)
            needed = [stretch for stretch in stretches if stretch.last_entry >= before]
            if needed:
                by_container[container] = needed
        return by_container


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
