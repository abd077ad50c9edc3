"""The ledger port on the journal of one node: one copy of each entry, and fencing within the process.

Two other mechanisms fence other processes: the container's claim in the metadata store, and the lock of the journal's
directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import FencedError, InvalidRequestError, UnavailableError
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Done, LedgerEntry, Released
from headrace.segmentstore.log.journal.entry_runs import HeldBytes
from headrace.segmentstore.log.journal.journal_interface import EntryJournal, holds_back_files
from headrace.segmentstore.log.journal.journal_reader import StoredEntry
from headrace.segmentstore.log.journal.pending_records import PendingRecord, drop_record, ignore, truncation_record

if TYPE_CHECKING:
    from typing_extensions import Buffer


class OneCopyLedger:
    """One container's entries in the shared journal.

    The entries before `first_entry` are not needed, even if the journal still has them: their log was forgotten.
    """

    def __init__(self, journal: EntryJournal, container: int, epoch: int, first_entry: int = 0) -> None:
        self._journal = journal
        self._container = container
        self._epoch = epoch
        self._fenced_by: int | None = None
        self._held = HeldBytes()
        self._index = index = journal.index
        self._next_entry = max(first_entry, index.next_entry(container))
        self._truncated_before = max(first_entry, index.truncated_before.get(container, 0))
        self._found_epoch = index.epochs()[container] if _has_log(journal, container, first_entry) else None
        if self._found_epoch is not None:
            self._held.count_parts(index.chain(container, self._truncated_before)[0])

    @property
    def next_entry(self) -> int:
        return self._next_entry

    @property
    def entry_bytes_max(self) -> int:
        return self._journal.entry_bytes_max

    @property
    def found_epoch(self) -> int | None:
        return self._found_epoch

    @property
    def held_bytes(self) -> int:
        return self._held.total

    @property
    def unacknowledged_fill(self) -> float:
        return 0.0

    @property
    def lag_fill(self) -> float:
        return 0.0

    @property
    def wants_truncation(self) -> bool:
        return holds_back_files(self._journal, self._container)

    @property
    def continued_at(self) -> None:
        """No operator accepts the loss of a part of such a log."""
        return None

    def knows(self, epoch: int, entry: int) -> bool:
        """True: only such a loss ends with entries that the log does not know."""
        return True

    def recover(self, first_entry: int = 0) -> Iterator[LedgerEntry]:
        if self._found_epoch is None:
            return iter(())
        parts = self._journal.reader.chain(self._container, max(first_entry, self._truncated_before))
        return map(_entry, parts)

    def append(self, parts: Sequence[Buffer], done: Done, released: Released | None = None) -> int:
        if self._fenced_by is not None:
            raise FencedError(f"container {self._container} epoch {self._epoch} was fenced by {self._fenced_by}")
        length = sum(map(len, parts))  # type: ignore[arg-type]
        journal = self._journal
        if length > journal.entry_bytes_max:
            raise InvalidRequestError(f"a log entry of {length} bytes exceeds {journal.entry_bytes_max}")
        entry, container, epoch = self._next_entry, self._container, self._epoch
        journal.submit(
            PendingRecord(
                RecordKind.ENTRY,
                container,
                epoch,
                epoch,
                entry,
                self._truncated_before,
                self._index.next_entry(container),  # with one copy, what is durable here is acknowledged
                parts,
                length,
                done,
                released,
            )
        )
        self._next_entry = entry + 1
        self._held.count(entry, length + RECORD_HEADER_BYTES)
        return entry

    def truncate(self, before_entry: int) -> None:
        if before_entry <= self._truncated_before:
            return
        if self._fenced_by is not None:
            raise FencedError(f"container {self._container} epoch {self._epoch} was fenced by {self._fenced_by}")
        # Before the record is durable the journal frees no file. If it is lost, recovery only reads more entries.
        self._journal.submit(truncation_record(self._container, self._epoch, before_entry, ignore))
        self._truncated_before = before_entry
        self._held.truncate(before_entry)

    def fence(self, epoch: int) -> None:
        """Reject further appends, because a newer epoch owns the container."""
        self._fenced_by = epoch

    def close(self) -> None:
        if self._fenced_by is None:
            self.fence(self._epoch)

    def forget(self) -> int:
        """Allow the journal to free every entry; return the number of the next one."""
        self.close()
        self._journal.submit(drop_record(self._container, self._epoch, ignore))
        return self._next_entry

    def settle(self) -> None:
        """Accept no more entries, and block until all accepted ones are durable. Do not call it on the event loop.

        Raises:
            UnavailableError: the journal has failed.
        """
        self.close()
        written: Future[None] = Future()
        self._journal.when_durable(partial(_tell, written))
        written.result()


def _has_log(journal: EntryJournal, container: int, first_entry: int) -> bool:
    """Whether the journal has a log of the container besides the entries before `first_entry`, which were forgotten."""
    return container in journal.index and (not first_entry or journal.index.next_entry(container) > first_entry)


def _tell(written: Future[None], error: Exception | None) -> None:
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


class OneCopyLedgers:
    """All ledgers on one journal. Its methods may block; OneCopyLedgerStore is the port for the event loop."""

    def __init__(self, journal: EntryJournal) -> None:
        self._journal = journal
        self._open: dict[int, tuple[int, OneCopyLedger]] = {}
        self._released: dict[int, int] = {}  # epochs; the log of a container that wrote nothing is not in the index
        self._first_entries: dict[int, int] = {}  # of containers whose log was forgotten
        self._lock = Lock()  # a ledger may be released in another thread

    def open(self, container: int, epoch: int) -> OneCopyLedger:
        """As in the port. If the ledger is still open, fence that one, too."""
        if container in self._open:
            self._fence(container, epoch)
        journal, first_entry = self._journal, self._first_entries.get(container, 0)
        if _has_log(journal, container, first_entry):
            last_epoch = journal.index.epochs()[container]
            if last_epoch > epoch:
                raise FencedError(
                    f"container {container} was written with epoch {last_epoch}, it cannot be opened with {epoch}"
                )
        ledger = OneCopyLedger(journal, container, epoch, first_entry)
        self._open[container] = (epoch, ledger)
        self._released.pop(container, None)
        return ledger

    def release(self, container: int) -> None:
        """As in the port. Blocks until every entry that the ledger accepted is durable."""
        with self._lock:
            held = self._open.get(container)
        if held is None:
            return
        held[1].settle()
        with self._lock:
            now = self._open.get(container)
            if now is not None and now[1] is held[1]:
                self._released[container] = held[0]
                del self._open[container]

    def epochs(self) -> dict[int, int]:
        """As in the port."""
        epochs = {
            container: epoch
            for container, epoch in self._journal.index.epochs().items()
            if _has_log(self._journal, container, self._first_entries.get(container, 0))
        }
        return epochs | self._released | {container: epoch for container, (epoch, _) in self._open.items()}

    def space(self) -> LogSpace:
        """As in the port."""
        return self._journal.space()

    def forget(self, container: int) -> None:
        """As in the port."""
        with self._lock:
            held = self._open.pop(container, None)
        ledger = None if held is None else held[1]
        if ledger is None and (epoch := self.epochs().get(container)) is not None:
            self._released.pop(container, None)
            ledger = OneCopyLedger(self._journal, container, epoch, self._first_entries.get(container, 0))
        if ledger is not None:
            self._first_entries[container] = ledger.forget()

    def _fence(self, container: int, epoch: int) -> NoReturn:
        held_epoch, ledger = self._open[container]
        if held_epoch >= epoch:
            raise FencedError(
                f"container {container} is open with epoch {held_epoch}, it cannot be opened with {epoch}"
            )
        ledger.fence(epoch)
        raise UnavailableError(f"the log of container {container} is still open in this process: try again")


def _entry(stored: StoredEntry) -> LedgerEntry:
    return LedgerEntry(stored.header.entry, stored.content())


class OneCopyLedgerStore:
    """The port of a store with one copy of each entry."""

    def __init__(self, journal: EntryJournal) -> None:
        self._ledgers = OneCopyLedgers(journal)

    def needs_lease(self, container: int) -> bool:
        return True

    async def open(self, container: int, epoch: int) -> OneCopyLedger:
        return self._ledgers.open(container, epoch)

    async def release(self, container: int) -> None:
        await asyncio.to_thread(self._ledgers.release, container)

    def epochs(self) -> dict[int, int]:
        return self._ledgers.epochs()

    def space(self) -> LogSpace:
        return self._ledgers.space()

    async def forget(self, container: int) -> None:
        self._ledgers.forget(container)
