"""A journal without threads: what was queued is durable as soon as a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.codec.replica_messages import Entry
from headrace.model.errors import UnavailableError
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_reader import StoredEntry
from headrace.segmentstore.log.journal.pending_records import PendingRecord, barrier

ROOM_BYTES = 1 << 30
FILE_BYTES = 1 << 20


class ScriptedJournal:
    """The parts of `EntryJournal` that replicas and owners use. It is its own `reader`.

    `refuses` makes it a journal that has failed. `read` answers reads, from any thread.
    """

    replica_id = b"p" * 16
    entry_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.queued: list[PendingRecord] = []
        self.refuses = False
        self.log_bytes = 0
        self.read: Callable[[int, int, int, int, int], list[Entry]] = lambda *_asked: []
        self.reader = self
        self.ledger: Callable[[int, int, int, int], Iterable[StoredEntry]] = lambda *_asked: ()
        self.index = JournalIndex()
        self.oldest_needed_bytes: dict[int, int] = {}
        self.oldest_sequence = self.active_sequence = 1

    def submit(self, pending: PendingRecord) -> None:
        if self.refuses:
            raise UnavailableError("the journal has failed")
        self.queued.append(pending)

    def when_durable(self, done: Done) -> None:
        self.submit(barrier(done))

    def sync(self, count: int | None = None) -> list[PendingRecord]:
        """The first `count` records, or all, are durable. Returns them."""
        count = len(self.queued) if count is None else count
        done, self.queued = self.queued[:count], self.queued[count:]
        for record in done:
            record.done(None)
        return done

    def fail(self) -> None:
        """All queued records are lost."""
        lost, self.queued = self.queued, []
        for record in lost:
            record.done(UnavailableError("the journal has failed"))

    def space(self) -> LogSpace:
        return LogSpace(self.log_bytes, self.log_bytes, ROOM_BYTES, FILE_BYTES)

    def entries_to_send(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]:
        return self.read(container, epoch, first, last, bytes_max)
