"""Promises outlive the files that they are in; truncations and drops free files and take nothing else."""

from __future__ import annotations

import threading
from random import Random

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal.journal_files import RECENT_ROTATIONS
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, drop_record, promise_record
from headrace.segmentstore.log.journal.replica_identity import IDENTITY_NAME
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger, OneCopyLedgers

FILE_BYTES = 16 << 10
WAIT_S = 20


def start(disk: MemoryJournalDisk, seed: int = 1, **settings: int) -> tuple[Journal, OneCopyLedgers]:
    random = Random(seed)
    journal = Journal(
        disk, lambda: random.getrandbits(64), lambda call: call(), **{"file_bytes": FILE_BYTES, **settings}
    )
    journal.start()
    return journal, OneCopyLedgers(journal)


def submit(journal: Journal, make, *arguments: int) -> None:
    reached = threading.Event()
    record: PendingRecord = make(*arguments, lambda _error: reached.set())
    journal.submit(record)
    assert reached.wait(WAIT_S)


def append(ledger: OneCopyLedger, payload: bytes) -> None:
    reached = threading.Event()
    ledger.append([payload], lambda _error: reached.set())
    assert reached.wait(WAIT_S)


def write_files(ledger: OneCopyLedger, journal: Journal, files: int) -> None:
    """Write so many files of entries that are not needed any more."""
    end = journal.active_sequence + files
    while journal.active_sequence < end:
        append(ledger, bytes(4000))
        ledger.truncate(ledger.next_entry)


def log_files(disk: MemoryJournalDisk) -> list[str]:
    return [name for name in disk.names() if name.startswith("journal-0")]


def test_promises_survive_restarts_and_the_reuse_of_their_files():
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk)
    for container, epoch in [(3, 7), (4, 2), (3, 9), (4, 5)]:
        submit(journal, promise_record, container, epoch)
    expected = {3: 9, 4: 5}
    for seed in range(2, 6):
        assert journal.index.promises == expected
        write_files(ledgers.open(0, seed), journal, 6)
        assert len(log_files(disk)) <= 3
        journal.close()
        disk = disk.cut_power(seed)
        journal, ledgers = start(disk, seed)
    journal.close()


def test_a_promise_never_falls():
    disk = MemoryJournalDisk()
    journal, _ = start(disk)
    submit(journal, promise_record, 3, 9)
    submit(journal, promise_record, 3, 7)
    assert journal.index.promises == {3: 9}
    journal.close()
    journal, _ = start(disk, seed=2)
    assert journal.index.promises == {3: 9}
    journal.close()


def test_a_promise_alone_needs_no_old_file():
    """It is written again, so that the files after it can be freed."""
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk)
    submit(journal, promise_record, 3, 9)
    write_files(ledgers.open(0, 1), journal, 10)
    assert len(log_files(disk)) <= 3
    journal.close()


def test_a_drop_takes_the_entries_and_keeps_the_promise():
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk)
    submit(journal, promise_record, 0, 4)
    ledger = ledgers.open(0, 1)
    append(ledger, b"old")
    append(ledger, b"older epoch, same number later")
    submit(journal, drop_record, 0, 1)
    assert (0 in journal.index, journal.index.next_entry(0), journal.index.ledgers(0)) == (False, 0, [])
    journal.close()
    journal, ledgers = start(disk, seed=2)
    assert journal.index.promises == {0: 4}
    assert ledgers.epochs() == {}
    again = ledgers.open(0, 5)
    assert (again.next_entry, list(again.recover())) == (0, [])
    append(again, b"new")
    journal.close()
    journal, ledgers = start(disk, seed=3)
    assert [bytes(entry.payload) for entry in ledgers.open(0, 6).recover()] == [b"new"]
    journal.close()


def test_a_truncation_takes_no_entry_number():
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk)
    ledger = ledgers.open(0, 1)
    for number in range(3):
        append(ledger, b"%d" % number)
    ledger.truncate(2)
    assert ledger.next_entry == 3
    append(ledger, b"3")
    journal.close()
    journal, ledgers = start(disk, seed=2)
    assert [(entry.entry, bytes(entry.payload)) for entry in ledgers.open(0, 2).recover()] == [(2, b"2"), (3, b"3")]
    journal.close()


def test_a_log_without_needed_entries_continues_its_numbers():
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk)
    ledger = ledgers.open(0, 1)
    append(ledger, b"0")
    ledger.truncate(1)
    ledgers.release(0)
    assert ledgers.open(0, 2).next_entry == 1
    journal.close()
    journal, ledgers = start(disk, seed=2)
    ledger = ledgers.open(0, 3)
    assert (ledger.next_entry, ledger.held_bytes, list(ledger.recover())) == (1, 0, [])
    journal.close()


# The journal's identity


def test_a_journal_keeps_its_identity_with_its_volume():
    disk = MemoryJournalDisk()
    found = set()
    for seed in (1, 2, 3):
        journal, _ = start(disk, seed)
        found.add(journal.replica_id)
        journal.close()
    other, _ = start(MemoryJournalDisk(), seed=4)
    other.close()
    assert len(found) == 1
    assert len(other.replica_id) == 16
    assert other.replica_id not in found


def test_the_identity_is_durable_before_the_first_file():
    steps: list[str] = []
    disk = MemoryJournalDisk(before=steps.append)
    start(disk)[0].close()
    assert steps[:4] == ["create", "write", "sync", "rename"]
    survivor = MemoryJournalDisk()

    def fails(step: str) -> None:
        if step == "rename":
            raise OSError("killed here")

    survivor.before = fails
    with pytest.raises(OSError, match="killed here"):
        start(survivor)
    assert log_files(survivor) == []
    survivor.before = lambda _step: None
    start(survivor, seed=2)[0].close()
    assert [name for name in survivor.names() if "id" in name] == [IDENTITY_NAME]


def test_files_of_another_journal_are_refused():
    disk, other = MemoryJournalDisk(), MemoryJournalDisk()
    for seed, made in enumerate((disk, other)):
        journal, ledgers = start(made, seed)
        append(ledgers.open(0, 1), b"x")
        journal.close()
    identity = other.open(IDENTITY_NAME).read(0, 100)
    disk.open(IDENTITY_NAME).write(0, [identity])
    with pytest.raises(CorruptError, match="belongs to the journal"):
        start(disk)
    disk.remove(IDENTITY_NAME)
    with pytest.raises(CorruptError, match="says nothing"):
        start(disk)


def test_a_damaged_identity_is_refused():
    disk = MemoryJournalDisk()
    start(disk)[0].close()
    disk.damage(IDENTITY_NAME, 20)
    with pytest.raises(CorruptError, match="journal-id of the journal is damaged"):
        start(disk)


# Spare files


class Created:
    def __init__(self, disk: MemoryJournalDisk) -> None:
        self.files = 0
        disk.before = self._before

    def _before(self, step: str) -> None:
        self.files += step == "create"


def backlog(ledger: OneCopyLedger, journal: Journal, files: int) -> None:
    """Write so many files, then truncate all of them, as a checkpoint does."""
    end = journal.active_sequence + files
    while journal.active_sequence < end:
        append(ledger, bytes(4000))
    ledger.truncate(ledger.next_entry)
    append(ledger, b"x")  # the files are free


def test_a_log_that_grows_and_shrinks_creates_its_files_once():
    disk = MemoryJournalDisk()
    created = Created(disk)
    journal, ledgers = start(disk, copy_from_files=1000)
    ledger = ledgers.open(0, 1)
    backlog(ledger, journal, 20)
    made = created.files
    for _ in range(10):
        backlog(ledger, journal, 20)
    journal.close()
    assert created.files == made
    assert len(disk.names()) <= 26


def test_spare_files_of_an_old_backlog_are_removed():
    disk = MemoryJournalDisk()
    journal, ledgers = start(disk, copy_from_files=1000)
    ledger = ledgers.open(0, 1)
    backlog(ledger, journal, 20)
    assert len(disk.names()) > 20
    for _ in range(RECENT_ROTATIONS + 20):
        backlog(ledger, journal, 1)
    journal.close()
    assert len(disk.names()) <= 8


def test_spare_files_take_at_most_half_of_the_room():
    disk = MemoryJournalDisk(capacity_bytes=24 * FILE_BYTES)
    journal, ledgers = start(disk, copy_from_files=1000)
    ledger = ledgers.open(0, 1)
    for _ in range(3):
        backlog(ledger, journal, 18)
        assert journal.space().volume_bytes <= 12 * FILE_BYTES
    journal.close()
