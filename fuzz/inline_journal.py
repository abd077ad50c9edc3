"""The real commits, files and index of a journal, driven by the event loop instead of threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fuzz.randomness import Random
from headrace.model.errors import UnavailableError
from headrace.model.store_volume import LogSpace
from headrace.ports.journal_disk import JournalDisk
from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_interface import CommitsOfJournal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, barrier

FILE_BYTES: Final = 128 << 10
_REPORT_S: Final = 0.0002
"""Between a sync and the report of it. A store that is killed then has entries that it does not know as durable."""


class InlineJournal(CommitsOfJournal):
    """`segmentstore.log.journal_interface.EntryJournal`. It copies no old files.

    `sync_s` says how long the next sync takes, `is_full` whether the volume has no room for clients.
    """

    def __init__(
        self, disk: JournalDisk, random: Random, sync_s: Callable[[], float], is_full: Callable[[], bool]
    ) -> None:
        super().__init__(JournalCommits(disk, lambda: random.getrandbits(64), file_bytes=FILE_BYTES))
        self._commits.load(_go_on)
        self._commits.begin()
        self._sync_s = sync_s
        self._is_full = is_full
        self._queue: list[PendingRecord] = []
        self._committed: deque[list[PendingRecord]] = deque()
        self._is_syncing = False
        self._has_ended = False

    @property
    def commit_under_way(self) -> int | None:
        """None: a commit begins and ends in one call."""
        return None

    def submit(self, pending: PendingRecord) -> None:
        if self._has_ended:
            raise UnavailableError("the journal is closed")
        self._queue.append(pending)
        self._begin_sync()

    def when_durable(self, done: Done) -> None:
        """Make everything durable at once: a caller in another thread would block until then."""
        self.submit(barrier(done))
        self._commit()
        while self._committed:
            self._report()

    def space(self) -> LogSpace:
        space = self._commits.space()
        return replace(space, log_bytes=space.room_bytes) if self._is_full() else space

    def close(self) -> None:
        """Commit what is queued, and end."""
        self._commit()
        self.kill()

    def kill(self) -> None:
        """End. What is queued is lost, and no report arrives any more."""
        self._has_ended = True
        self._queue.clear()
        self._committed.clear()
        self._commits.files.close()

    def _begin_sync(self) -> None:
        if not self._is_syncing:
            self._is_syncing = True
            asyncio.get_running_loop().call_later(self._sync_s(), self._end_sync)

    def _end_sync(self) -> None:
        self._is_syncing = False
        if self._has_ended:
            return
        self._commit()
        if self._commits.files.spares.is_low:
            self._commits.files.spares.prepare()

    def _commit(self) -> None:
        batch, self._queue = self._queue, []
        self._commits.commit(batch, self._report_later)

    def _report_later(self, committed: list[PendingRecord]) -> None:
        self._committed.append(committed)
        asyncio.get_running_loop().call_later(_REPORT_S, self._report)

    def _report(self) -> None:
        for pending in self._committed.popleft() if self._committed else ():
            if pending.released is not None:
                pending.released()
            pending.done(None)


def _go_on() -> None:
    """No other thread ends the scan."""
