"""The files of a journal: one that is written, older ones that are still needed, spare ones that wait for their turn.

Files are used again from the oldest on, so that the sequence numbers of the needed ones never have a hole. All calls
but `prepare_spare` come from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Final

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalDisk, JournalFile
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.journal_format import FILE_HEADER_BYTES, FileHeader

_LOG_PREFIX: Final = "journal-"
_SPARE_PREFIX: Final = "spare-"
SPARE_FILES_MAX: Final = 4


@dataclass(slots=True)
class LogFile:
    """A file in use. `last_entries`: per container the number of its last entry in this file."""

    name: str
    sequence: int
    salt: int
    file: JournalFile
    end: int = FILE_HEADER_BYTES
    last_entries: dict[int, int] = field(default_factory=dict)


class JournalFiles:
    """`random_salt` gives unsigned 64-bit numbers."""

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
        """Find what is on disk; the files in use, oldest first. Their `end` is not known yet.

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
                loaded.append((LogFile(name, header.sequence, header.salt, file), header))
        for (before, _), (after, _) in pairwise(loaded):
            if after.sequence != before.sequence + 1:
                raise CorruptError(f"journal files between {before.name} and {after.name} are missing")
        self.used.extend(log_file for log_file, _ in loaded)
        return loaded

    def activate_next(self) -> LogFile:
        """Start a new file after the active one, whose end is final from now on."""
        name = self._take_spare()
        file = self._disk.open(name)
        previous = self.used[-1] if self.used else None
        sequence = previous.sequence + 1 if previous else 1
        header = FileHeader(sequence, self._random_salt(), previous.end if previous else 0)
        file.write(0, [journal_format.encode_file_header(header)])
        file.sync()
        log_name = f"{_LOG_PREFIX}{sequence:016d}"
        self._disk.rename(name, log_name)
        self.used.append(LogFile(log_name, sequence, header.salt, file))
        return self.used[-1]

    def recycle_oldest(self, truncated_before: dict[int, int]) -> None:
        """Free old files none of whose entries is needed: those before a container's truncation point are not."""
        while len(self.used) > 1:
            oldest = self.used[0]
            if any(last >= truncated_before.get(container, 0) for container, last in oldest.last_entries.items()):
                return
            self._free(self.used.popleft())

    def free_empty(self) -> None:
        """Free the newest files if nothing was written to them: stores that end before they serve must not use up the
        volume, one file for each start."""
        while self.used and self.active.end == FILE_HEADER_BYTES:
            self._free(self.used.pop())

    def prepare_spare(self) -> None:
        """Have a spare file ready; may run in another thread, since it takes as long as writing a whole file."""
        with self._spares_lock:
            if self._spares:
                return
            name = self._new_spare_name()
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
        """Keep a spare file, unless it was made for another size."""
        file = self._disk.open(name)
        file.close()
        if file.size_bytes == self._file_bytes:
            self._spares.append(name)
        else:
            self._disk.remove(name)

    def _take_spare(self) -> str:
        while True:
            with self._spares_lock:
                if self._spares:
                    return self._spares.popleft()
            self.prepare_spare()

    def _new_spare_name(self) -> str:
        self._next_spare += 1
        return f"{_SPARE_PREFIX}{self._next_spare:016d}"


def _number(name: str, prefix: str) -> int:
    digits = name.removeprefix(prefix)
    if not digits.isdigit():
        raise CorruptError(f"{name} is not the name of a journal file: something else writes into this directory")
    return int(digits)
