"""Reading logs again while the journal runs: one pass, even if it copies, drops or closes logs meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.model.errors import CorruptError, UnavailableError
from headrace.segmentstore.log.journal import Journal
from headrace.segmentstore.log.journal_ledgers import JournalLedger, JournalLedgers
from headrace.segmentstore.log.recovered_entries import RecoveredEntries

FILE_BYTES = 64 << 10
WAIT_S = 20
TRIES = 2000
"""Each writes a file, and the copying goes on meanwhile: far more than it needs."""

IDLE, BUSY = 0, 1


class Reads:
    """Counts reads of journal files by the test's own thread; `before[n]` is called before the one of this number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: dict[int, Callable[[], None]] = {}
        own, honest = threading.get_ident(), MemoryJournalFile.read

        def read(file: MemoryJournalFile, position: int, length: int) -> bytes:
            if threading.get_ident() == own:
                self.count += 1
                self.before.pop(self.count - 1, lambda: None)()
            return honest(file, position, length)

        monkeypatch.setattr(MemoryJournalFile, "read", read)

    def start(self, before: dict[int, Callable[[], None]]) -> None:
        self.count, self.before = 0, before


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = make_journal(MemoryJournalDisk())
    made.start()
    yield made
    made.close()


@pytest.fixture
def ledgers(journal: Journal) -> JournalLedgers:
    return JournalLedgers(journal)


def make_journal(disk: MemoryJournalDisk, seed: int = 0) -> Journal:
    random = Random(seed)
    return Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=FILE_BYTES)


def append(ledger: JournalLedger, *payloads: bytes) -> None:
    reached = threading.Semaphore(0)
    for payload in payloads:
        ledger.append([payload], lambda _error: reached.release())
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)


def write_until(ledger: JournalLedger, condition: Callable[[], Any]) -> None:
    """Fill files with entries that are not needed any more."""
    for _ in range(TRIES):
        if condition():
            return
        for _ in range(3):
            append(ledger, bytes(20_000))
            ledger.truncate(ledger.next_entry)
    raise AssertionError("it never came to that")


def payloads_of(ledger: JournalLedger) -> list[bytes]:
    return [bytes(entry.payload) for entry in ledger.recover()]


@pytest.mark.parametrize("files_read", [0, 1])
def test_file_copied_during_a_reread_is_not_taken_for_damaged(journal, ledgers, reads, files_read):
    """Before the pass has come to it, or after: the copying ends, and the file would be free to be written again."""
    idle, busy = ledgers.open(IDLE, 1), ledgers.open(BUSY, 1)
    append(idle, b"one", b"two")
    write_until(busy, lambda: journal.active_sequence >= 4)
    ledgers.release(IDLE)
    assert not journal.copied_bytes

    def copy() -> None:
        write_until(busy, lambda: journal.copied_bytes and journal.active_sequence >= 30)

    reads.start({files_read: copy})
    ledgers.prepare(IDLE)
    assert not reads.before
    write_until(busy, lambda: journal.active_sequence >= 60)
    ledger = ledgers.open(IDLE, 2)
    assert payloads_of(ledger) == [b"one", b"two"]
    append(ledger, b"three")


def test_one_pass_finds_the_logs_of_all_containers(journal, ledgers, reads):
    opened = {container: ledgers.open(container, 1) for container in range(100)}
    for text in (b"one", b"two"):
        for ledger in opened.values():
            append(ledger, text + bytes(1_000))
    files = journal.active_sequence
    assert files >= 3
    for container in opened:
        ledgers.release(container)
    reads.start({})
    for container in opened:
        ledgers.prepare(container)
    assert reads.count == files, "each file is read once, in one window"
    for container in opened:
        assert [each[:3] for each in payloads_of(ledgers.open(container, 2))] == [b"one", b"two"]


def test_a_log_that_is_forgotten_during_a_pass_stays_forgotten(ledgers, reads):
    for container in (0, 1):
        append(ledgers.open(container, 1), b"old")
        ledgers.release(container)
    reads.start({0: lambda: ledgers.forget(1)})
    ledgers.prepare(0)
    assert not reads.before
    assert sorted(ledgers.epochs()) == [0]
    ledgers.prepare(1)
    assert payloads_of(ledgers.open(0, 2)) == [b"old"]
    assert payloads_of(ledgers.open(1, 2)) == []


def test_a_contradiction_in_one_log_concerns_no_other(ledgers, monkeypatch):
    for container in (0, 1):
        append(ledgers.open(container, 1), b"old")
        ledgers.release(container)
    honest = RecoveredEntries.add

    def add(self: RecoveredEntries, *arguments: Any) -> None:
        if self.container == 1:
            raise CorruptError("entries are missing")
        honest(self, *arguments)

    monkeypatch.setattr(RecoveredEntries, "add", add)
    ledgers.prepare(0)
    assert payloads_of(ledgers.open(0, 2)) == [b"old"]
    with pytest.raises(CorruptError, match="entries are missing"):
        ledgers.prepare(1)
    monkeypatch.setattr(RecoveredEntries, "add", honest)
    ledgers.prepare(1)
    assert payloads_of(ledgers.open(1, 2)) == [b"old"]


def test_a_pass_ends_when_the_journal_is_closed(journal, ledgers, reads):
    """Its files are closed after that only."""
    append(ledgers.open(0, 1), b"kept")
    ledgers.release(0)
    closer = threading.Thread(target=journal.close)
    reads.start({0: lambda: begin_closing(journal, closer)})
    with pytest.raises(UnavailableError, match="closed while its files were being read"):
        ledgers.prepare(0)
    closer.join()


def begin_closing(journal: Journal, closer: threading.Thread) -> None:
    closer.start()
    while not journal._closing:
        time.sleep(0)
