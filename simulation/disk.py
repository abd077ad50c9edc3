"""A simulated volume: sectors, writes that are durable only after a sync, failures, and bytes that rot."""

from __future__ import annotations

from headrace.model.ensembles import ReplicaId
from simulation.draws import Draws


class DiskError(Exception):
    """A write, sync or read of the volume failed."""


class SimulatedDisk:
    """One append-mostly file on one volume, with the id of the replica that was made with it.

    `content` is what the process sees. `durable` is what a power failure leaves, with some of the unsynced sectors.
    """

    def __init__(self, replica: ReplicaId, actor: int, sector_bytes: int, draws: Draws) -> None:
        self.replica = replica
        self.content = bytearray()
        self.durable = bytearray()
        self.is_destroyed = False
        self.is_full = False
        self.fail_next_write = False
        self.fail_next_sync = False
        self._actor = actor
        self._sector_bytes = sector_bytes
        self._dirty: set[int] = set()
        self._draws = draws

    def write(self, position: int, data: bytes) -> None:
        """Write without sync. A write that fails may have changed some of its sectors."""
        if self.is_destroyed:
            raise DiskError("the volume is gone")
        fails, self.fail_next_write = self.fail_next_write, False
        if fails:
            data = data[: self._draws.below(len(data) + 1, "part of a write", self._actor)]
        end, size = position + len(data), self._sector_bytes
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
        self.content[position:end] = data
        self._dirty.update(range(position // size, (end + size - 1) // size))
        if fails:
            raise DiskError("the write failed")

    def sync(self) -> None:
        """Make all writes durable. After a failed sync nothing is known about them."""
        if self.is_destroyed:
            raise DiskError("the volume is gone")
        if self.fail_next_sync:
            self.fail_next_sync = False
            self._resolve_dirty()
            self.content = bytearray(self.durable)
            raise DiskError("the sync failed")
        for sector in self._dirty:
            self._make_durable(sector)
        self._dirty.clear()

    def cut_power(self) -> None:
        """Unsynced sectors are kept or lost, each by itself: a write may be torn."""
        self._resolve_dirty()
        self.content = bytearray(self.durable)

    def truncate(self, end: int) -> None:
        """Cut the file, durably."""
        del self.content[end:]
        self._dirty.clear()
        self.durable = bytearray(self.content)

    def rot(self, position: int) -> None:
        """Change a durable byte."""
        for image in (self.content, self.durable):
            if position < len(image):
                image[position] ^= 0x5A

    def _resolve_dirty(self) -> None:
        keeps_all = self._draws.happens(0.2, "all sectors kept", self._actor)
        for sector in sorted(self._dirty):
            if keeps_all or self._draws.happens(0.5, "sector kept", self._actor):
                self._make_durable(sector)
        self._dirty.clear()

    def _make_durable(self, sector: int) -> None:
        start, end = sector * self._sector_bytes, (sector + 1) * self._sector_bytes
        part = self.content[start:end]
        if len(self.durable) < start + len(part):
            self.durable.extend(bytes(start + len(part) - len(self.durable)))
        self.durable[start : start + len(part)] = part
