"""The ledger port on the journal of one node: one copy of each entry, and fencing within the process.

Two other mechanisms fence other processes: the container's claim in the metadata store, and the lock of the journal's
directory. Entries of files of format 1 are entries of the ledgers of their epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import FencedError, InvalidRequestError, UnavailableError
from headrace.model.log_space import LogSpace
from headrace.ports.ledger import Done, LedgerEntry, Released
from headrace.segmentstore.log.journal_thread import Journal
from headrace.segmentstore.log.pending_records import PendingRecord, drop_record, ignore, truncation_record

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MARK_EVERY_BYTES: Final = 1 << 20

_ENTRIES_COUNTED_AT_ONCE: Final = 256

FILES_HELD_BY_IDLE_CONTAINER_MAX: Final = 2
"""If the journal's oldest file is this many files behind the active one, containers that need it must truncate."""


class OneCopyLedger:
    """One container's entries in the shared journal.

    The entries before `first_entry` are not needed, even if the journal still has them: their log was forgotten.
    """

    def __init__(self, journal: Journal, container: int, epoch: int, first_entry: int = 0) -> None:
        self._journal = journal
        self._container = container
        self._epoch = epoch
        self._fenced_by: int | None = None
        self._held_bytes = 0
        self._bytes_before: list[tuple[int, int]] = []  # (entry, bytes held before it), sparse
        self._index = index = journal.index
        self._next_entry = max(first_entry, index.next_entry(container))
        self._truncated_before = max(first_entry, index.truncated_before.get(container, 0))
        self._found_epoch = index.epochs()[container] if _has_log(journal, container, first_entry) else None
        if self._found_epoch is not None:
            self._count_found()

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
        return self._held_bytes

    @property
    def wants_truncation(self) -> bool:
        journal = self._journal
        return (
            self._container in journal.oldest_needed_bytes
            and journal.active_sequence - journal.oldest_sequence >= FILES_HELD_BY_IDLE_CONTAINER_MAX
        )

    def recover(self, first_entry: int = 0) -> Iterator[LedgerEntry]:
        if self._found_epoch is None:
            return iter(())
        found = self._journal.reader.chain(self._container, max(first_entry, self._truncated_before))
        # In files of format 1 an empty entry only carries a truncation point.
        return (LedgerEntry(stored.header.entry, stored.payload) for stored in found if stored.payload)

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
        self._count(entry, length + RECORD_HEADER_BYTES)
        return entry

    def truncate(self, before_entry: int) -> None:
        if before_entry <= self._truncated_before:
            return
        if self._fenced_by is not None:
            raise FencedError(f"container {self._container} epoch {self._epoch} was fenced by {self._fenced_by}")
        # Before the record is durable the journal frees no file. If it is lost, recovery only reads more entries.
        self._journal.submit(truncation_record(self._container, self._epoch, before_entry, ignore))
        self._truncated_before = before_entry
        kept = [(entry, before) for entry, before in self._bytes_before if entry >= before_entry]
        freed = kept[0][1] if kept else self._held_bytes
        self._held_bytes -= freed
        self._bytes_before = [(entry, before - freed) for entry, before in kept]

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

    def _count_found(self) -> None:
        parts, _ = self._journal.index.chain(self._container, self._truncated_before)
        for part in parts:
            lengths, header_bytes = part.lengths(), part.log_file.layout.header_bytes
            for first in range(0, len(lengths), _ENTRIES_COUNTED_AT_ONCE):
                counted = lengths[first : first + _ENTRIES_COUNTED_AT_ONCE]
                self._count(part.first_entry + first, sum(counted) + len(counted) * header_bytes)

    def _count(self, entry: int, stored_bytes: int) -> None:
        if not self._bytes_before or self._held_bytes - self._bytes_before[-1][1] >= _MARK_EVERY_BYTES:
            self._bytes_before.append((entry, self._held_bytes))
        self._held_bytes += stored_bytes


def _has_log(journal: Journal, container: int, first_entry: int) -> bool:
    """Whether the journal has a log of the container besides the entries before `first_entry`, which were forgotten."""
    return container in journal.index and (not first_entry or journal.index.next_entry(container) > first_entry)


def _tell(written: Future[None], error: Exception | None) -> None:
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


class OneCopyLedgers:
    """All ledgers on one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: dict[int, tuple[int, OneCopyLedger]] = {}
        self._released: dict[int, int] = {}  # epochs; the log of a container that wrote nothing is not in the index
        self._first_entries: dict[int, int] = {}  # of containers whose log was forgotten
        self._lock = Lock()  # a ledger may be released in another thread

    def open(self, container: int, epoch: int) -> OneCopyLedger:
        """As in the port. If the ledger is still open, also fence that one and raise UnavailableError."""
        if container in self._open:
            self._fence(container, epoch)
        journal, first_entry = self._journal, self._first_entries.get(container, 0)
        if _has_log(journal, container, first_entry):
            found = journal.index.epochs()[container]
            if found > epoch:
                raise FencedError(
                    f"container {container} was written with epoch {found}, it cannot be opened with {epoch}"
                )
        ledger = OneCopyLedger(journal, container, epoch, first_entry)
        self._open[container] = (epoch, ledger)
        self._released.pop(container, None)
        return ledger

    def release(self, container: int) -> None:
        """As in the port."""
        with self._lock:
            held = self._open.get(container)
        if held is None:
            return
        held[1].settle()
        with self._lock:
            if self._open.get(container) is held:
                self._released[container] = held[0]
                del self._open[container]

    def epochs(self) -> dict[int, int]:
        """As in the port."""
        found = {
            container: epoch
            for container, epoch in self._journal.index.epochs().items()
            if _has_log(self._journal, container, self._first_entries.get(container, 0))
        }
        return found | self._released | {container: epoch for container, (epoch, _) in self._open.items()}

    def space(self) -> LogSpace:
        """As in the port."""
        return self._journal.space()

    def forget(self, container: int) -> None:
        """As in the port."""
        with self._lock:
            held = self._open.pop(container, None)
        ledger = None if held is None else held[1]
        if ledger is None and (found := self.epochs().get(container)) is not None:
            self._released.pop(container, None)
            ledger = OneCopyLedger(self._journal, container, found, self._first_entries.get(container, 0))
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
