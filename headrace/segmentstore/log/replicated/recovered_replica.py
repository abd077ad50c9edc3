"""What a replica knows of each container after a start, read from the index of its journal."""

from __future__ import annotations

from typing import Protocol

from headrace.codec.replica_messages import HeldRun
from headrace.replication.recovered_logs import RecoveredLog
from headrace.segmentstore.log.journal.journal_index import JournalIndex, KnownLog


class IndexedJournal(Protocol):
    """A journal that was loaded."""

    @property
    def index(self) -> JournalIndex: ...


def recovered_logs(journal: IndexedJournal) -> dict[int, RecoveredLog]:
    """The durable state of every container that the journal has a record of, by container.

    Call it after the start of the journal and before anything is queued.
    """
    return {container: _recovered(known) for container, known in journal.index.known().items()}


def _recovered(known: KnownLog) -> RecoveredLog:
    runs = (HeldRun(ledger.epoch, ledger.first_entry, ledger.next_entry, ledger.had_before) for ledger in known.ledgers)
    return RecoveredLog(
        known.promise,
        known.truncated_before,
        known.witness,
        tuple(run for run in runs if run.start < run.had_end),
    )
