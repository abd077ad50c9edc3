"""The files of a journal: the active one, older ones that are still needed, and spare ones for later use.

Files are freed oldest first, so the sequence numbers of the files in use have no gap. The last spare file is for
emergencies: the journal takes it only when the volume has no room for another one. All methods except
`prepare_spares` are called from one thread.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Final

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalDisk, JournalFile
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.journal_format import FILE_HEADER_BYTES, FileHeader

_log = logging.getLogger(__name__)

_LOG_PREFIX: Final = "journal-"
_SPARE_PREFIX: Final = "spare-"
SPARE_FILES_MAX: Final = 4
SPARE_FILES_READY: Final = 2
"""One file for the next rotation, and one for emergencies."""

STRETCHES_PER_FILE: Final = 16
"""Stretches per file and container. More of them would tell more exactly what is needed, and cost memory per file."""

_ZEROS: Final = bytes(1 << 20)


@dataclass(slots=True)
class Stretch:
    """Records of one container in a part of a file: their positions, their size, and the greatest entry number."""

    start: int
    end: int
    record_bytes: int
    last_entry: int


@dataclass(slots=True, eq=False)
class LogFile:
    """A file in use. `stretches` has the records in it, by container.

    `copied`: all needed entries of the file are durable in newer files too. `damaged`: copying the file failed.
    `takes_copies`: the file's format allows copied records.
    """

    name: str
    sequence: int
    salt: int
    file: JournalFile
    end: int = FILE_HEADER_BYTES
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    copied: bool = False
    damaged: bool = False
    takes_copies: bool = True

    def note(self, container: int, entry: int, start: int, end: int) -> None:
        """Note a record from `start` to `end`, which follows all records noted before."""
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
    """The files of one journal. `random_salt` returns unsigned 64-bit numbers."""

    def __init__(self, disk: JournalDisk, file_bytes: int, random_salt: Callable[[], int]) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._random_salt = random_salt
        self._spares: deque[str] = deque()
        self._spares_lock = Lock()
        self._next_spare = 0
        self.used: deque[LogFile] = deque()

    @property
    def active(self) -> LogFile:
        return self.used[-1]

    def load(self) -> list[tuple[LogFile, FileHeader]]:
        """Find the files on disk; return those in use, oldest first. Their `end` is not known yet.

        Raises:
            CorruptError: a header is damaged or a file between others is missing.
        """
        loaded: list[tuple[LogFile, FileHeader]] = []
        for name in self._disk.names():
            if name.startswith(_SPARE_PREFIX):
                self._next_spare = max(self._next_spare, _number(name, _SPARE_PREFIX))
                self._load_spare(name)
            elif name.startswith(_LOG_PREFIX):
                file = self._disk.open(name)
                header = journal_format.decode_file_header(file.read(0, FILE_HEADER_BYTES), name)
                log_file = LogFile(name, header.sequence, header.salt, file, takes_copies=header.takes_copies)
                loaded.append((log_file, header))
        for (before, _), (after, _) in pairwise(loaded):
            if after.sequence != before.sequence + 1:
                raise CorruptError(f"journal files between {before.name} and {after.name} are missing")
        self.used.extend(log_file for log_file, _ in loaded)
        return loaded

    def begin(self) -> None:
        """Choose the file to write into after `load`: a new one, or the last one if the volume has no room.

        Raises:
            OSError: neither is possible.
        """
        try:
            name = self._take_spare()
        except OSError as error:
            if not self._continue_last():
                raise
            _log.warning("event=journal_file_continued file=%r error=%r", self.active.name, error)
        else:
            self._activate(name)

    def activate_next(self) -> None:
        """Start a new file. The end of the file that was active before is final from now on."""
        self._activate(self._take_spare())

    def _activate(self, name: str) -> None:
        file = self._disk.open(name)
        previous = self.used[-1] if self.used else None
        sequence = previous.sequence + 1 if previous else 1
        header = FileHeader(sequence, self._random_salt(), previous.end if previous else 0)
        file.write(0, [journal_format.encode_file_header(header)])
        file.sync()
        log_name = f"{_LOG_PREFIX}{sequence:016d}"
        self._disk.rename(name, log_name)
        self.used.append(LogFile(log_name, sequence, header.salt, file))

    def _continue_last(self) -> bool:
        """Continue in the file that was written last; return False if too little of that file is free.

        This needs no space on the volume. The bytes after the file's end are wiped first: they may be parts of a torn
        commit, which a later scan must not mistake for new records.
        """
        if not self.used or self.active.file.size_bytes - self.active.end < self._file_bytes // STRETCHES_PER_FILE:
            return False
        file = self.active.file
        for position in range(self.active.end, file.size_bytes, len(_ZEROS)):
            file.write(position, [_ZEROS[: min(len(_ZEROS), file.size_bytes - position)]])
        file.sync()
        return True

    def room_for_copies(self, copied_bytes: int) -> bool:
        """Whether copies of so many bytes may be written.

        The last space of a full volume is kept for checkpoints and truncation points, which are certain to free files.
        """
        active = self.active
        fits = copied_bytes <= active.file.size_bytes - active.end
        return active.takes_copies and (fits or len(self._spares) > 0)

    @property
    def log_bytes(self) -> int:
        """Bytes from the start of the oldest file to the end of the last record."""
        return (len(self.used) - 1) * self._file_bytes + self.active.end if self.used else 0

    @property
    def volume_bytes(self) -> int:
        """Bytes that all files take on the volume, spare files included."""
        return (len(self.used) + len(self._spares)) * self._file_bytes

    def recycle_oldest(self, truncated_before: Mapping[int, int], is_read: Callable[[LogFile], bool]) -> None:
        """Free the oldest files while all their entries are before the truncation points of their containers.

        A file for which `is_read` is true stays, and so do all newer files.
        """
        while len(self.used) > 1 and not self.used[0].needed(truncated_before) and not is_read(self.used[0]):
            self._free(self.used.popleft())

    def free_empty(self) -> None:
        """Free the newest files if nothing was written to them.

        Otherwise each start of a store that ends before it writes would use up another file of the volume.
        """
        while self.used and self.active.end == FILE_HEADER_BYTES:
            self._free(self.used.pop())

    def prepare_spares(self) -> None:
        """Create the missing spare files. May run in another thread, since it takes as long as writing whole files.

        Raises:
            OSError: there is no room for them.
        """
        while True:
            with self._spares_lock:
                if len(self._spares) >= SPARE_FILES_READY:
                    return
                name = self._new_spare_name()
            if self._disk.space().free_bytes < self._file_bytes:  # checked first: do not fill the volume to find out
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._disk.create(name, self._file_bytes)
            with self._spares_lock:
                self._spares.append(name)

    def close(self) -> None:
        for log_file in self.used:
            log_file.file.close()

    def _free(self, log_file: LogFile) -> None:
        log_file.file.close()
        with self._spares_lock:
            keep = len(self._spares) < SPARE_FILES_MAX and log_file.file.size_bytes == self._file_bytes
            spare = self._new_spare_name()
        if keep:
            self._disk.rename(log_file.name, spare)
            with self._spares_lock:
                self._spares.append(spare)
        else:
            self._disk.remove(log_file.name)

    def _load_spare(self, name: str) -> None:
        """Keep a spare file if it has the configured size, else remove it."""
        file = self._disk.open(name)
        file.close()
        if file.size_bytes == self._file_bytes:
            self._spares.append(name)
        else:
            self._disk.remove(name)

    def _take_spare(self) -> str:
        """Take a spare file. Raises OSError if there is none and the volume has no room for one."""
        try:
            if len(self._spares) < SPARE_FILES_READY:
                self.prepare_spares()
        except OSError as error:
            if not self._spares:
                raise
            _log.warning("event=journal_spare_file_taken left=%d error=%r", len(self._spares) - 1, error)
        with self._spares_lock:
            return self._spares.popleft()

    def _new_spare_name(self) -> str:
        self._next_spare += 1
        return f"{_SPARE_PREFIX}{self._next_spare:016d}"


def _number(name: str, prefix: str) -> int:
    digits = name.removeprefix(prefix)
    if not digits.isdigit():
        raise CorruptError(f"{name} is not the name of a journal file: another program writes into this directory")
    return int(digits)
