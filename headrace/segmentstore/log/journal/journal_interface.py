"""What ledgers need of a journal: the real one with its threads, or one that a simulation drives."""

from __future__ import annotations

from typing import Final, Protocol

from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_reader import JournalReader
from headrace.segmentstore.log.journal.pending_records import PendingRecord

FILES_HELD_BY_IDLE_CONTAINER_MAX: Final = 2
"""If the journal's oldest file is this many files behind the active one, containers that need it must truncate."""


class EntryJournal(Protocol):
    """A journal that was started. The methods mean what they mean in `journal_thread.Journal`."""

    entry_bytes_max: int
    index: JournalIndex
    reader: JournalReader

    @property
    def replica_id(self) -> bytes: ...

    @property
    def oldest_sequence(self) -> int: ...

    @property
    def active_sequence(self) -> int: ...

    @property
    def oldest_needed_bytes(self) -> dict[int, int]: ...

    @property
    def commit_under_way(self) -> int | None:
        """A number of the commit that has begun and not ended; None if there is none."""
        ...

    def submit(self, pending: PendingRecord) -> None: ...

    def when_durable(self, done: Done) -> None: ...

    def space(self) -> LogSpace: ...


class CommitsOfJournal:
    """The part of `EntryJournal` that comes from the commits. Threads or a simulation drive these."""

    def __init__(self, commits: JournalCommits) -> None:
        self._commits = commits
        self.entry_bytes_max = commits.entry_bytes_max
        self.index = commits.index
        self.reader = JournalReader(commits.index)

    @property
    def replica_id(self) -> bytes:
        """The identity of this journal, which is made with it and lost with its volume."""
        return self._commits.files.replica_id

    @property
    def oldest_sequence(self) -> int:
        return self._commits.oldest_sequence

    @property
    def active_sequence(self) -> int:
        return self._commits.active_sequence

    @property
    def oldest_needed_bytes(self) -> dict[int, int]:
        """The bytes of the oldest file that each container needs."""
        return self._commits.oldest_needed_bytes


def holds_back_files(journal: EntryJournal, container: int) -> bool:
    """Whether entries of this container keep the journal from using old files again."""
    return (
        container in journal.oldest_needed_bytes
        and journal.active_sequence - journal.oldest_sequence >= FILES_HELD_BY_IDLE_CONTAINER_MAX
    )
