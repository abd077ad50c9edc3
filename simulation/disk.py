"""A simulated volume: files of sectors, writes that are durable only after a sync, failures, and bytes that rot.

It is the disk of the real journal (`ports.journal_disk`). Renames and removals are durable at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.ports.journal_disk import DiskSpace, JournalFile
from simulation.draws import Draws

if TYPE_CHECKING:
    from typing_extensions import Buffer

_VOLUME_BYTES: Final = 1 << 20
READ_BLOCK_BYTES: Final = 512


class DiskError(Exception):
    """A write, sync or read of the volume failed."""


class ProcessEnded(OSError):
    """The process ended in the middle of a commit: nothing is written after this."""


class SimulatedFile(JournalFile):
    """`content` is what the process sees. `durable` is what a power failure leaves, with some unsynced sectors."""

    def __init__(self, disk: SimulatedDisk, size_bytes: int) -> None:
        self.content = bytearray(size_bytes)
        self.durable = bytearray(size_bytes)
        self.has_lost_writes = False
        self.unreadable: set[int] = set()
        """Blocks, of READ_BLOCK_BYTES, that cannot be read until they are written again."""
        self._disk = disk
        self._dirty: set[int] = set()

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    @property
    def is_durable(self) -> bool:
        """Whether everything that was written is durable."""
        return not self._dirty and not self.has_lost_writes

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write without sync. A write that fails may have changed some of its sectors.

        To write a part of a block the kernel reads its rest, so that such a write fails if the block is unreadable.
        """
        disk = self._disk
        disk.check("write")
        fails, disk.fail_next_write = disk.fail_next_write, False
        data = b"".join(parts)
        parts_of_blocks = {at // READ_BLOCK_BYTES for at in (position, position + len(data)) if at % READ_BLOCK_BYTES}
        if data and not self.unreadable.isdisjoint(parts_of_blocks):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fails:
            data = data[: disk.draws.below(len(data) + 1, "part of a write", disk.actor)]
        end, size = position + len(data), disk.sector_bytes
        self.content[position:end] = data
        self._dirty.update(range(position // size, (end + size - 1) // size))
        whole = range((position + READ_BLOCK_BYTES - 1) // READ_BLOCK_BYTES, end // READ_BLOCK_BYTES)
        self.unreadable.difference_update(whole)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self) -> None:
        """Make all writes durable. After a failed sync nothing is known about them."""
        self._disk.check("sync")
        if self._disk.fail_next_sync:
            self._disk.fail_next_sync = False
            self.lose_writes()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for sector in self._dirty:
            self._make_durable(sector)
        self._dirty.clear()

    def read(self, position: int, length: int) -> bytes:
        self._disk.check("read")
        last = min(position + length, self.size_bytes) - 1
        touched = range(position // READ_BLOCK_BYTES, last // READ_BLOCK_BYTES + 1)
        if self.unreadable and not self.unreadable.isdisjoint(touched):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self.content[position : position + length])

    def close(self) -> None:
        """Nothing is held."""

    def lose_writes(self) -> None:
        """Unsynced sectors are kept or lost, each by itself: a write may be torn."""
        disk = self._disk
        keeps_all = disk.draws.happens(0.2, "all sectors kept", disk.actor)
        for sector in sorted(self._dirty):
            if keeps_all or disk.draws.happens(0.5, "sector kept", disk.actor):
                self._make_durable(sector)
            else:
                self.has_lost_writes = True
        self._dirty.clear()
        self.content[:] = self.durable

    def _make_durable(self, sector: int) -> None:
        start, end = sector * self._disk.sector_bytes, (sector + 1) * self._disk.sector_bytes
        self.durable[start:end] = self.content[start:end]


class SimulatedDisk:
    """One volume. `steps_left` is the number of writes, syncs and changes of names after which the process ends."""

    def __init__(self, actor: int, sector_bytes: int, draws: Draws) -> None:
        self.actor = actor
        self.sector_bytes = sector_bytes
        self.draws = draws
        self.is_destroyed = False
        self.is_full = False
        self.fail_next_write = False
        self.fail_next_sync = False
        self.fail_next_create = False
        self.steps_left: int | None = None
        self.files: dict[str, SimulatedFile] = {}
        self._used_bytes = 0

    def check(self, step: str) -> None:
        """Raises OSError: the volume is gone, or the process ends before this step."""
        if self.is_destroyed:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if self.steps_left is None or step == "read":
            return
        if not self.steps_left:
            raise ProcessEnded
        self.steps_left -= 1

    def start_process(self) -> None:
        """A new process sees what is there."""
        self.steps_left = None
        for file in self.files.values():
            file.has_lost_writes = False

    def names(self) -> list[str]:
        self.check("read")
        return sorted(self.files)

    def create(self, name: str, size_bytes: int) -> None:
        self.check("create")
        if self.fail_next_create:
            self.fail_next_create = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if size_bytes > self.space().free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert name not in self.files
        self.files[name] = SimulatedFile(self, size_bytes)
        self._used_bytes += size_bytes

    def open(self, name: str) -> SimulatedFile:
        return self.files[name]

    def rename(self, old: str, new: str) -> None:
        self.check("rename")
        replaced = self.files.get(new)
        if replaced is not None:
            self._used_bytes -= replaced.size_bytes
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        self.check("remove")
        removed = self.files.pop(name, None)
        if removed is not None:
            self._used_bytes -= removed.size_bytes

    def space(self) -> DiskSpace:
        return DiskSpace(_VOLUME_BYTES, 0 if self.is_full else max(0, _VOLUME_BYTES - self._used_bytes))

    def cut_power(self) -> None:
        """What was not synced is kept or lost, sector by sector."""
        for name in sorted(self.files):
            self.files[name].lose_writes()

    def make_unreadable(self, name: str, position: int) -> range:
        """Let reads of the block at this position fail; the positions in it."""
        block = position // READ_BLOCK_BYTES
        self.files[name].unreadable.add(block)
        return range(block * READ_BLOCK_BYTES, (block + 1) * READ_BLOCK_BYTES)

    def rot(self, name: str, position: int) -> None:
        """Change a durable byte."""
        file = self.files[name]
        for image in (file.content, file.durable):
            image[position] ^= 0x5A
