"""Files of a journal that are not in use: spare ones, which are used again, and journals in quarantine."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from threading import Lock
from typing import Final

from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log.journal.replica_identity import IDENTITY_NAME

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
