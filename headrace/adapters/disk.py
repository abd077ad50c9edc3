"""Journal files in a directory: positional vectored writes, syncs, and a lock against a second process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.model.errors import UnavailableError
from headrace.ports.journal_disk import DiskSpace, JournalFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


_PARTS_PER_WRITE_MAX: Final = 1024  # IOV_MAX of Linux
_ZEROS: Final = bytes(1 << 20)
_SYNC_EVERY_BYTES: Final = 8 << 20
_LOCK_NAME: Final = ".lock"
_UNFINISHED_SUFFIX: Final = ".unfinished"


class DiskJournalFile(JournalFile):
    """One open file; its size never changes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size_bytes = os.fstat(self._descriptor).st_size

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        for first in range(0, len(parts), _PARTS_PER_WRITE_MAX):
            position = _write_all(self._descriptor, position, parts[first : first + _PARTS_PER_WRITE_MAX])

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def write_durably(self, position: int, parts: Sequence[Buffer]) -> None:
        if len(parts) > _PARTS_PER_WRITE_MAX:
            super().write_durably(position, parts)  # one sync for all calls
        else:
            # One call instead of two: after each of them the thread waits for Python's lock.
            _write_all(self._descriptor, position, parts, os.RWF_DSYNC)

    def read(self, position: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0:
            piece = os.pread(self._descriptor, length, position)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DiskJournalDisk:
    """A directory that belongs to one process at a time.

    Raises:
        UnavailableError: another process holds the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UnavailableError(
                f"the journal directory {directory} is in use by another process: stop it or choose another directory"
            ) from error
        for left in directory.glob("*" + _UNFINISHED_SUFFIX):  # by a process that ended in the middle
            left.unlink()

    def names(self) -> list[str]:
        return sorted(
            entry.name
            for entry in self._directory.iterdir()
            if not entry.name.startswith(".") and not entry.name.endswith(_UNFINISHED_SUFFIX)
        )

    def create(self, name: str, size_bytes: int) -> None:
        # Every block is written once now: the first write of a merely allocated block costs a journal transaction of
        # the file system, and half of the speed of each commit. Piece by piece: a commit of the file in use that comes
        # meanwhile would wait for all of this file's bytes otherwise.
        unfinished = self._directory / (name + _UNFINISHED_SUFFIX)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for position in range(0, size_bytes, len(_ZEROS)):
                _write_all(descriptor, position, [_ZEROS[: min(len(_ZEROS), size_bytes - position)]])
                if position % _SYNC_EVERY_BYTES == 0:
                    os.fdatasync(descriptor)
            os.fsync(descriptor)
        except OSError:
            unfinished.unlink()  # a full disk must not be left fuller
            raise
        finally:
            os.close(descriptor)
        unfinished.rename(self._directory / name)
        self._sync_directory()

    def open(self, name: str) -> DiskJournalFile:
        return DiskJournalFile(self._directory / name)

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)
        self._sync_directory()

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)
        self._sync_directory()

    def space(self) -> DiskSpace:
        volume = os.statvfs(self._directory)
        return DiskSpace(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)

    def close(self) -> None:
        """Give the directory back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, position: int, parts: Sequence[Buffer], flags: int = 0) -> int:
    """Write the parts from `position` on, also when the system takes only some of them; the position after them."""
    pending = [memoryview(part) for part in parts]
    while pending:
        written = os.pwritev(descriptor, pending, position, flags)
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending[0])
            del pending[0]
        if pending and written:
            pending[0] = pending[0][written:]
    return position
