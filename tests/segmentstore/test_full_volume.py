"""A journal on a volume without room starts, goes on, and frees its files."""

from __future__ import annotations

import threading
from random import Random

from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

FILE_BYTES = 64 << 10
WAIT_S = 20


def open_journal(disk, *, seed=0, **settings):
    random = Random(seed)
    journal = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=FILE_BYTES, **settings)
    journal.start()
    return journal, OneCopyLedgers(journal)


def append(ledger, *payloads):
    outcomes, reached = [], threading.Semaphore(0)

    def done(error):
        outcomes.append(error)
        reached.release()

    for payload in payloads:
        ledger.append([payload], done)
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)
    return outcomes


def fill_volume(disk):
    disk.capacity_bytes = sum(disk.open(name).size_bytes for name in disk.names())


def log_files(disk):
    return [name for name in disk.names() if name.startswith("journal-0")]


def test_full_volume_starts_repeatedly_and_frees_its_files():
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    expected = [bytes([number]) * 20_000 for number in range(12)]
    append(ledgers.open(0, 0), *expected)
    journal.close()
    fill_volume(disk)
    for epoch in range(1, 9):
        journal, ledgers = open_journal(disk, seed=epoch)
        ledger = ledgers.open(0, epoch)
        assert [bytes(entry.payload) for entry in ledger.recover()] == expected
        expected.append(b"start %d" % epoch)
        assert append(ledger, expected[-1]) == [None]
        journal.close()
        disk = disk.cut_power(epoch)
    journal, ledgers = open_journal(disk, seed=9)
    ledger = ledgers.open(0, 9)
    assert [bytes(entry.payload) for entry in ledger.recover()] == expected
    for number in range(60):  # tier 2 has it: the files are used again
        ledger.truncate(ledger.next_entry)
        assert append(ledger, bytes([number]) * 20_000) == [None]
    assert len(log_files(disk)) <= 3
    journal.close()


def test_the_last_spare_file_is_for_a_volume_without_room(caplog):
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    ledger = ledgers.open(0, 1)
    fill_volume(disk)
    payload = bytes(FILE_BYTES - FILE_HEADER_BYTES - RECORD_HEADER_BYTES)
    assert append(ledger, payload, payload, payload) == [None] * 3  # the first file and both spare ones
    assert "event=journal_spare_file_taken left=0" in caplog.text
    ledger.truncate(2)
    journal.close()
    assert "No space left" in str(journal.failure)


def test_a_torn_commit_is_wiped_before_its_file_is_continued():
    """Else its whole records would follow on new ones of the same lengths, and be taken for acknowledged."""
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    ledger = ledgers.open(0, 1)
    assert append(ledger, b"first") == [None]
    gathered = threading.Event()

    def hold(step):
        if step == "write":
            gathered.wait(WAIT_S)

    disk.before = hold
    reached = threading.Semaphore(0)
    for payload in (b"opens the commit", b"torn!", b"stale"):
        ledger.append([payload], lambda _error: reached.release())
    gathered.set()
    for _ in range(3):
        assert reached.acquire(timeout=WAIT_S)
    journal.close()
    start = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 5
    torn = start + RECORD_HEADER_BYTES + 16
    disk.before = lambda _step: None
    disk.damage("journal-0000000000000001", torn + RECORD_HEADER_BYTES)
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    fill_volume(disk)
    journal, ledgers = open_journal(disk, seed=1)
    ledger = ledgers.open(0, 2)
    assert [bytes(entry.payload) for entry in ledger.recover()] == [b"first", b"opens the commit"]
    assert append(ledger, b"fresh") == [None]
    journal.close()
    journal, ledgers = open_journal(disk, seed=2)
    assert log_files(disk) == ["journal-0000000000000001"]
    assert [bytes(entry.payload) for entry in ledgers.open(0, 3).recover()][2:] == [b"fresh"]
    journal.close()


def fill_log(disk, *, needed_bytes):
    """A log of which one container needs some of the oldest file; the volume has no room but the end of the last."""
    journal, ledgers = open_journal(disk, copy_from_files=1000)
    lags, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(lags, bytes(needed_bytes))
    while len(log_files(disk)) < 9:
        append(busy, bytes(20_000))
        busy.truncate(busy.next_entry)
    append(busy, bytes(20_000))
    busy.truncate(busy.next_entry)
    journal.close()
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    fill_volume(disk)


def copying_ended():
    for thread in threading.enumerate():
        if thread.name == "journal-copy":
            thread.join(WAIT_S)


def test_copies_leave_the_last_room_to_what_frees_files():
    disk = MemoryJournalDisk()
    fill_log(disk, needed_bytes=50_000)
    journal, ledgers = open_journal(disk, seed=1)
    copying_ended()
    lags = ledgers.open(0, 2)
    assert append(lags, b"a checkpoint") == [None]
    lags.truncate(lags.next_entry - 1)
    assert append(lags, b"more") == [None]
    journal.close()
    assert journal.failure is None
    assert len(log_files(disk)) < 5


def test_the_disk_tells_its_space(tmp_path):
    disk = DiskJournalDisk(tmp_path)
    total_bytes, free_bytes = disk.space()
    assert 0 < free_bytes <= total_bytes
    disk.close()
