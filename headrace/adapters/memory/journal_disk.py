"""A journal disk in memory that can fail and lose power as real ones do, for tests and simulations.

The caller injects faults, and the effects of a power cut follow from a seed, so that every run can be repeated.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from headrace.ports.journal_disk import DiskSpace, JournalFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES: Final = 512
"""The disk writes sectors in any order until it is synced, whole or not at all for the most part."""

CAPACITY_BYTES: Final = 1 << 40
"""More than any test writes."""

TORN_SHARE: Final = 0.05
"""Of the sectors that a power cut does not keep: their begin is new, the rest is old."""


@dataclass(slots=True)
class _Content:
    """`durable` is what a power cut leaves for sure; `unsynced` what it may leave, sector by sector."""

    data: bytearray
    durable: bytearray
    unsynced: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)


class MemoryJournalFile(JournalFile):
    """One open file of the disk."""

    def __init__(self, disk: MemoryJournalDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    @property
    def size_bytes(self) -> int:
        return len(self._content.data)

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        self._write(position, parts)

    def sync(self) -> None:
        self._sync(self._content.unsynced)

    def write_durably(self, position: int, parts: Sequence[Buffer]) -> None:
        self._sync(self._write(position, parts))

    def read(self, position: int, length: int) -> bytes:
        bad = self._content.unreadable
        last = min(position + length, self.size_bytes) - 1
        if bad and not bad.isdisjoint(range(position // SECTOR_BYTES, last // SECTOR_BYTES + 1)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self._content.data[position : position + length])

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, position: int, parts: Sequence[Buffer]) -> set[int]:
        """Return the sectors that were written.

        Raises:
            OSError: a part of an unreadable sector would be written, whose rest the kernel cannot read.
        """
        self._disk.before("write")
        data = b"".join(parts)
        end = position + len(data)
        parts_of_sectors = {at // SECTOR_BYTES for at in (position, end) if at % SECTOR_BYTES}
        if data and not self._content.unreadable.isdisjoint(parts_of_sectors):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sectors = set(range(position // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES))
        with self._disk.lock:
            self._content.data[position:end] = data
            self._content.unsynced |= sectors
            # A disk puts a new sector in the place of a bad one that is written whole.
            whole = range((position + SECTOR_BYTES - 1) // SECTOR_BYTES, end // SECTOR_BYTES)
            self._content.unreadable.difference_update(whole)
        return sectors

    def _sync(self, sectors: set[int]) -> None:
        self._disk.before("sync")
        with self._disk.lock:
            for sector in sectors:
                self._keep(sector)
            self._content.unsynced -= sectors

    def _keep(self, sector: int) -> None:
        first, last = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
        self._content.durable[first:last] = self._content.data[first:last]


class MemoryJournalDisk:
    """`before` is called with "write", "sync", "create" or "rename" before each; raise OSError there to let it fail.

    `capacity_bytes` is the size of the volume: a file that does not fit is not created. The power may be cut by another
    thread than the one that writes; `lock` keeps each operation whole.
    """

    def __init__(self, before: Callable[[str], None] | None = None, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.before: Callable[[str], None] = before or _no_fault
        self.capacity_bytes = capacity_bytes
        self.lock = threading.RLock()
        self._files: dict[str, _Content] = {}

    def names(self) -> list[str]:
        with self.lock:
            return sorted(self._files)

    def create(self, name: str, size_bytes: int) -> None:
        self.before("create")
        with self.lock:
            if name in self._files:
                raise FileExistsError(name)
            if size_bytes > self.space().free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._files[name] = _Content(bytearray(size_bytes), bytearray(size_bytes))

    def open(self, name: str) -> MemoryJournalFile:
        if name not in self._files:
            raise FileNotFoundError(name)
        return MemoryJournalFile(self, self._files[name])

    def rename(self, old: str, new: str) -> None:
        self.before("rename")
        with self.lock:
            self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        with self.lock:
            self._files.pop(name, None)

    def space(self) -> DiskSpace:
        with self.lock:
            used_bytes = sum(len(content.data) for content in self._files.values())
        return DiskSpace(self.capacity_bytes, max(0, self.capacity_bytes - used_bytes))

    def cut_power(self, seed: int) -> MemoryJournalDisk:
        """What is left on a disk that lost power now: of unsynced sectors all, none or some, a few of them torn."""
        with self.lock:
            return self._left(Random(seed))

    def _left(self, random: Random) -> MemoryJournalDisk:
        left = MemoryJournalDisk(capacity_bytes=self.capacity_bytes)
        kept_share = random.choice((0.0, 0.5, 0.9, 1.0))
        for name in sorted(self._files):
            content = self._files[name]
            survived = bytearray(content.durable)
            for sector in sorted(content.unsynced):
                first, last = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
                chance = random.random()
                if kept_share <= chance < kept_share + TORN_SHARE:
                    last = random.randint(first, last)
                if chance < kept_share + TORN_SHARE:
                    survived[first:last] = content.data[first:last]
            left._files[name] = _Content(survived, bytearray(survived), unreadable=set(content.unreadable))
        return left

    def forget_unsynced(self) -> None:
        """Take what was written for synced, though it is not: so does a kernel after a sync that failed."""
        for content in self._files.values():
            content.unsynced.clear()

    def damage(self, name: str, position: int, length: int = 1) -> None:
        """Flip bits of durable bytes, as rot does."""
        content = self._files[name]
        for index in range(position, position + length):
            content.data[index] ^= 0xFF
            content.durable[index] ^= 0xFF

    def written_sectors(self, name: str) -> list[int]:
        """The positions of the sectors of a file that are not all zeros."""
        data = self._files[name].data
        positions = range(0, len(data), SECTOR_BYTES)
        return [position for position in positions if any(data[position : position + SECTOR_BYTES])]

    def make_unreadable(self, name: str, position: int) -> None:
        """Let reads of the sector at this position fail until it is written again."""
        self._files[name].unreadable.add(position // SECTOR_BYTES)


def _no_fault(_step: str) -> None:
    """The disk works."""
