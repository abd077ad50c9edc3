"""The disk of a simulated store, which outlives its processes: failing writes and syncs, and steps that a kill cuts."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final

from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.ports.journal_disk import DiskSpace, JournalFile
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND

_JOURNAL_FILE: Final = "journal-0"
_SLOW: Final = (50 * MS, SECOND)


class ProcessEndedError(Exception):
    """The process was killed in the middle of a write."""


class Volume:
    """A disk under a journal. `actor` is the number of the store in all decisions; `task` ends with the volume."""

    def __init__(self, draws: Draws, actor: int, commit_delay: int, generation: int = 0) -> None:
        self.disk = MemoryJournalDisk()
        self.generation = generation
        self.name = f"volume-{actor}-{generation}"
        self.task = f"task-{actor}-{generation}"
        self.slow_until = 0
        self.stalled_until = 0
        self._failing: set[str] = set()
        self._draws = draws
        self._actor = actor
        self._commit_delay = commit_delay

    def heal(self) -> None:
        self.slow_until = self.stalled_until = 0
        self._failing.clear()

    def fail_next(self, step: str) -> None:
        """Let the next "write" or "sync" fail."""
        self._failing.add(step)

    def take_failure(self, step: str) -> bool:
        if step not in self._failing:
            return False
        self._failing.discard(step)
        return True

    def commit_time(self, now: int) -> int:
        """How long the commit takes that begins now."""
        draws = self._draws
        slow = draws.between(*_SLOW, "slow commit", self._actor) if now < self.slow_until else 0
        return slow + draws.heavy_tail(self._commit_delay, SECOND // 5, "commit", self._actor)

    def cut_power(self) -> None:
        """Lose what was not synced, or parts of it."""
        self.disk = self.disk.cut_power(self._draws.number("power cut", self._actor))

    def lose_sector(self) -> bool:
        """Let the disk be unable to read a sector of a journal file any more. False if there is none."""
        found = [
            (name, position)
            for name in self.disk.names()
            if name.startswith(_JOURNAL_FILE)
            for position in self.disk.written_sectors(name)
        ]
        if found:
            self.disk.make_unreadable(*self._draws.one_of(found, "unreadable sector", self._actor))
        return bool(found)

    def forget_unsynced(self) -> None:
        """Take what was not synced for synced, as a kernel may after a failed sync."""
        if self._draws.happens(0.5, "unsynced forgotten", self._actor):
            self.disk.forget_unsynced()

    def part_of(self, length: int) -> int:
        """How much of a write gets through that is cut or fails."""
        return self._draws.below(length + 1, "part of a write", self._actor)


class VolumeDisk:
    """`ports.journal_disk.JournalDisk` of one process on a volume. `steps_left`: when it ends, if not negative."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.disk = volume.disk
        self.steps_left = -1

    def take_step(self) -> None:
        if self.steps_left == 0:
            raise ProcessEndedError
        self.steps_left -= 1

    def names(self) -> list[str]:
        return self.disk.names()

    def create(self, name: str, size_bytes: int) -> None:
        self.take_step()
        self.disk.create(name, size_bytes)

    def open(self, name: str) -> VolumeFile:
        return VolumeFile(self, self.disk.open(name))

    def rename(self, old: str, new: str) -> None:
        self.take_step()
        self.disk.rename(old, new)

    def remove(self, name: str) -> None:
        self.take_step()
        self.disk.remove(name)

    def space(self) -> DiskSpace:
        return self.disk.space()


class VolumeFile(JournalFile):
    """One open file of a `VolumeDisk`."""

    def __init__(self, disk: VolumeDisk, file: MemoryJournalFile) -> None:
        self._disk = disk
        self._file = file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def write(self, position: int, parts: Sequence[Any]) -> None:
        volume, error = self._disk.volume, None
        try:
            self._disk.take_step()
        except ProcessEndedError as ended:
            error = ended
        fails = volume.take_failure("write")
        if error is not None or fails:
            data = b"".join(parts)
            self._file.write(position, [data[: volume.part_of(len(data))]])
            raise error or _io_error()
        self._file.write(position, parts)

    def sync(self) -> None:
        self._disk.take_step()
        if self._disk.volume.take_failure("sync"):
            self._disk.volume.forget_unsynced()
            raise _io_error()
        self._file.sync()

    def read(self, position: int, length: int) -> bytes:
        return self._file.read(position, length)

    def close(self) -> None:
        self._file.close()


def _io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
