"""A journal disk whose syncs wait: what was logged is not durable as long as a test says so."""

from __future__ import annotations

import threading

from headrace.adapters.memory.journal_disk import MemoryJournalDisk

WAIT_S = 20.0


class HeldDisk:
    """Syncs wait until `release`."""

    def __init__(self, disk: MemoryJournalDisk) -> None:
        self._released = threading.Event()
        disk.before = self._before

    def _before(self, step: str) -> None:
        if step == "sync":
            assert self._released.wait(WAIT_S)

    def release(self) -> None:
        self._released.set()
