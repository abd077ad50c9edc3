"""The ledger port on the journal of one node: one copy of each entry, and fencing within the process.

Two other mechanisms fence other processes: the container's claim in the metadata store, and the lock of the journal's
directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.model.errors import CorruptError, FencedError, InvalidRequestError, UnavailableError
from headrace.model.log_space import LogSpace
from headrace.ports.ledger import Done, LedgerEntry
from headrace.segmentstore.log.file_copies import PendingEntry
from headrace.segmentstore.log.journal import Journal
from headrace.segmentstore.log.journal_format import RECORD_HEADER_BYTES
from headrace.segmentstore.log.recovered_entries import RecoveredEntries

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MARK_EVERY_BYTES: Final = 1 << 20

FILES_HELD_BY_IDLE_CONTAINER_MAX: Final = 2
"""If the journal's oldest file is this many files behind the active one, containers that need it must truncate."""


class JournalLedger:
    """One container's entries in the shared journal.

    `first_entry` is the first entry number of a container without a log; it continues the numbers of a forgotten log.
    """

    def __init__(self, journal: Journal, container: int, epoch: int, first_entry: int = 0) -> None:
        self._journal = journal
        self._container = container
        self._epoch = epoch
        self._fenced_by: int | None = None
        self._held_bytes = 0
        self._bytes_before: list[tuple[int, int]] = []  # (entry, bytes held before it), sparse
        self._truncated_before = first_entry
        self._recovered = recovered = journal.recovered.get(container)
        self._next_entry = recovered.next_entry if recovered else first_entry
        self._found_epoch = recovered.epoch if recovered else None
        if recovered:
            self._truncated_before = recovered.truncated_before
            recovered.check()
            for entry, length in recovered.lengths():
                self._count(entry, length)
            # Last: if an earlier line refuses the log, a later attempt must find it again instead of an empty one.
            del journal.recovered[container]

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
        if self._recovered is None:
            return iter(())
        found = self._recovered.read(first_entry)
        # An empty entry only carries a truncation point.
        return (LedgerEntry(entry, payload) for entry, payload in found if payload)

    def append(self, parts: Sequence[Buffer], done: Done) -> int:
        if self._fenced_by is not None:
            raise FencedError(f"container {self._container} epoch {self._epoch} was fenced by {self._fenced_by}")
        length = sum(map(len, parts))  # type: ignore[arg-type]
        if length > self._journal.entry_bytes_max:
            raise InvalidRequestError(f"a log entry of {length} bytes exceeds {self._journal.entry_bytes_max}")
        entry = self._next_entry
        self._journal.submit(
            PendingEntry(self._container, self._epoch, entry, self._truncated_before, parts, length, done)
        )
        self._next_entry = entry + 1
        self._recovered = None
        self._count(entry, length)
        return entry

    def truncate(self, before_entry: int) -> None:
        if before_entry <= self._truncated_before:
            return
        self._truncated_before = before_entry
        # An entry without payload makes the truncation point durable. Before that the journal frees no file.
        self.append((), _ignore)
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
        self._recovered = None
        entry, self._next_entry = self._next_entry, self._next_entry + 1
        self._truncated_before = self._next_entry  # after the entry below too, so that no file is kept for it
        self._journal.submit(PendingEntry(self._container, self._epoch, entry, self._next_entry, (), 0, _ignore))
        return self._next_entry

    @property
    def unread(self) -> RecoveredEntries | None:
        """The entries found when the ledger was opened; None if there were none, or if it was written since."""
        return self._recovered

    def settle(self) -> None:
        """Accept no more entries, and block until all accepted ones are durable. Do not call it on the event loop.

        Raises:
            UnavailableError: the journal has failed.
        """
        self.close()
        written: Future[None] = Future()
        entry, self._next_entry = self._next_entry, self._next_entry + 1
        self._recovered = None
        done = partial(_tell, written)
        self._journal.submit(PendingEntry(self._container, self._epoch, entry, self._truncated_before, (), 0, done))
        written.result()

    def _count(self, entry: int, length: int) -> None:
        if not self._bytes_before or self._held_bytes - self._bytes_before[-1][1] >= _MARK_EVERY_BYTES:
            self._bytes_before.append((entry, self._held_bytes))
        self._held_bytes += length + RECORD_HEADER_BYTES


def _ignore(_error: Exception | None) -> None:
    """Ignore the result: if a truncation point is lost, recovery only reads more entries."""


def _tell(written: Future[None], error: Exception | None) -> None:
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


class JournalLedgers:
    """All ledgers on one journal.

    The journal finds its entries once, when it starts. If a ledger was written and then released, its entries must be
    found in the files again before it can be opened. One pass over the files serves all released ledgers.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: dict[int, tuple[int, JournalLedger]] = {}
        self._released: dict[int, tuple[int, JournalLedger]] = {}
        self._forgotten: dict[int, int] = {}
        self._preparing = Lock()  # a caller that waited finds its ledger prepared by the preceding pass
        self._lock = Lock()  # a ledger may be forgotten while a pass looks for it

    def open(self, container: int, epoch: int) -> JournalLedger:
        """As in the port. If the ledger is still open, also fence that one and raise UnavailableError."""
        if container in self._open:
            self._fence(container, epoch)
        if container in self._released:
            raise UnavailableError(f"the log of container {container} has not been read again since its release")
        recovered = self._journal.recovered.get(container)
        if recovered is not None and recovered.epoch > epoch:
            raise FencedError(
                f"container {container} was written with epoch {recovered.epoch}, it cannot be opened with {epoch}"
            )
        try:
            ledger = JournalLedger(self._journal, container, epoch, self._forgotten.get(container, 0))
        except CorruptError:
            if recovered is not None:  # keep it, so that the next attempt does not take the log for empty
                self._journal.recovered[container] = recovered
            raise
        self._forgotten.pop(container, None)
        self._open[container] = (epoch, ledger)
        return ledger

    def release(self, container: int) -> None:
        """As in the port."""
        if container not in self._open:
            return
        _, ledger = self._open[container]
        ledger.close()
        if ledger.unread is not None:
            self._journal.recovered[container] = ledger.unread
        else:
            ledger.settle()
            self._released[container] = self._open[container]
        del self._open[container]

    def prepare(self, container: int) -> None:
        """As in the port."""
        with self._preparing:
            if container not in self._released:
                return
            asked = dict(self._released)
            found = self._journal.read_again(asked)
            with self._lock:
                for each, held in asked.items():
                    if self._released.get(each) is held:
                        self._prepared(each, held[1], found.get(each))
            error = found.get(container)
            if isinstance(error, CorruptError):
                raise error

    def _prepared(self, container: int, ledger: JournalLedger, entries: RecoveredEntries | CorruptError | None) -> None:
        if isinstance(entries, CorruptError):
            return  # it stays released, and the next `prepare` looks for it again
        if entries is None:  # all its entries were truncated
            self._forgotten[container] = ledger.next_entry
        else:
            self._journal.recovered[container] = entries
        del self._released[container]

    def epochs(self) -> dict[int, int]:
        """As in the port."""
        found = {container: entries.epoch for container, entries in list(self._journal.recovered.items())}
        held = self._released | self._open
        return found | {container: epoch for container, (epoch, _) in held.items()}

    def space(self) -> LogSpace:
        """As in the port."""
        return self._journal.space()

    def forget(self, container: int) -> None:
        """As in the port."""
        with self._lock:
            held = self._open.pop(container, None) or self._released.pop(container, None)
        ledger = None if held is None else held[1]
        recovered = self._journal.recovered.get(container)
        if ledger is None and recovered is not None:
            ledger = JournalLedger(self._journal, container, recovered.epoch)
        if ledger is not None:
            self._forgotten[container] = ledger.forget()

    def _fence(self, container: int, epoch: int) -> NoReturn:
        held_epoch, ledger = self._open[container]
        if held_epoch >= epoch:
            raise FencedError(
                f"container {container} is open with epoch {held_epoch}, it cannot be opened with {epoch}"
            )
        ledger.fence(epoch)
        raise UnavailableError(f"the log of container {container} is still open in this process: try again")
