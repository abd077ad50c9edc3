"""What is needed of old journal files is copied into the newest: a container that lags keeps no files but its own."""

from __future__ import annotations

import threading
import time
from random import Random
from weakref import WeakSet

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import CorruptError, FencedError
from headrace.segmentstore.log.journal import file_copies, journal_scan
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2, RecordHeader
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

FILE_BYTES = 64 << 10
WAIT_S = 20
TRIES = 2000
"""Each writes a file, and the copying goes on meanwhile: far more than it needs."""


def open_journal(disk, *, seed=0, **settings):
    random = Random(seed)
    settings = {"file_bytes": FILE_BYTES, **settings}
    journal = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), **settings)
    journal.start()
    return journal, OneCopyLedgers(journal)


def append(ledger, *payloads):
    reached = threading.Semaphore(0)
    for payload in payloads:
        ledger.append([payload], lambda error: reached.release())
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)


def write_file(ledger):
    """Fill about a file with entries that are not needed any more."""
    for _ in range(3):
        append(ledger, bytes(20_000))
        ledger.truncate(ledger.next_entry)


def files_of(disk):
    return [name for name in disk.names() if name.startswith("journal-0")]


def write_until(ledger, condition):
    for _ in range(TRIES):
        if condition():
            return
        write_file(ledger)
    raise AssertionError("it never came to that")


def until(condition):
    """The copying goes on by itself, file after file."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.001)


def recovered(disk, container, **settings):
    journal, ledgers = open_journal(disk, seed=99, **settings)
    try:
        return [bytes(entry.payload) for entry in ledgers.open(container, 9).recover()]
    finally:
        journal.close()


def test_few_bytes_of_one_container_keep_no_files_of_the_others():
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(idle, b"a" * 200, b"b" * 280)
    write_until(busy, lambda: journal.active_sequence >= 40)
    until(lambda: len(files_of(disk)) <= 8)
    assert journal.copied_bytes >= 480
    append(idle, b"later")
    append(busy, b"busy")
    journal.close()
    assert recovered(disk, 0) == [b"a" * 200, b"b" * 280, b"later"]
    assert recovered(disk, 1)[-1] == b"busy"


def test_a_journal_at_rest_frees_its_files_after_a_start():
    """As a process that copied nothing may have left it."""
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk, copy_from_files=1000)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(idle, b"needed")
    write_until(busy, lambda: len(files_of(disk)) >= 40)
    journal.close()
    freed, honest = threading.Event(), disk.rename

    def rename(old, new):
        honest(old, new)
        if len(files_of(disk)) <= 8:
            freed.set()

    disk.rename = rename  # a freed file is kept as a spare one
    journal, ledgers = open_journal(disk, seed=1)
    assert freed.wait(WAIT_S)  # no container was opened, nothing was appended
    assert [bytes(entry.payload) for entry in ledgers.open(0, 2).recover()] == [b"needed"]
    journal.close()


def test_a_log_that_is_needed_is_not_copied():
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    lagging, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    for _ in range(30):
        append(lagging, bytes(25_000))
        append(busy, bytes(5_000))
        busy.truncate(busy.next_entry)
    assert journal.copied_bytes == 0
    journal.close()
    assert len(recovered(disk, 0)) == 30


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_the_log_takes_at_most_twice_what_is_held(share):
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    lagging, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    held = [bytes([number]) * 20_000 for number in range(40)]
    for payload in held:
        append(lagging, payload)
        for _ in range(int(1 / share)):
            append(busy, bytes(20_000))
            busy.truncate(busy.next_entry)
    bound = 2 * lagging.held_bytes + 4 * FILE_BYTES
    until(lambda: journal.space().log_bytes <= bound)
    journal.close()
    assert recovered(disk, 0) == held


def test_what_is_being_read_stays_where_it_is(monkeypatch):
    """A container's bytes are loaded while it takes appends already: the copying must not free them from under that."""
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", 256)  # much less than what is read
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk, copy_from_files=1000)
    idle = ledgers.open(0, 1)
    payloads = [bytes([number]) * 100 for number in range(20)]
    append(idle, *payloads)
    append(ledgers.open(1, 1), bytes(50_000))
    journal.close()
    journal, ledgers = open_journal(disk, seed=1)
    idle, busy = ledgers.open(0, 2), ledgers.open(1, 2)
    reading = idle.recover()
    found = [bytes(next(reading).payload)]
    write_until(busy, lambda: journal.copied_bytes and journal.active_sequence >= 30)
    found += [bytes(entry.payload) for entry in reading]
    assert found == payloads
    assert [bytes(entry.payload) for entry in idle.recover()] == payloads  # from the copies
    del reading
    write_file(busy)
    until(lambda: len(files_of(disk)) <= 8)
    append(idle, b"new")
    journal.close()
    assert recovered(disk, 0) == [*payloads, b"new"]


def test_a_damaged_entry_is_not_copied(caplog):
    """Its copy would have a right checksum."""
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(idle, b"rotten" * 10)
    disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 3)
    write_until(busy, lambda: "event=journal_copy_failed file='journal-0000000000000001'" in caplog.text)
    write_file(busy)
    assert journal.failure is None
    assert journal.copied_bytes == 0
    journal.close()
    with pytest.raises(CorruptError, match="damaged at 4096"):
        open_journal(disk)


def test_a_forgotten_log_does_not_come_back_by_its_copies():
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(idle, b"old")
    write_until(busy, lambda: journal.copied_bytes)
    ledgers.forget(0)
    again = ledgers.open(0, 2)
    append(again, b"new")
    write_until(busy, lambda: files_of(disk)[0] > "journal-0000000000000040")
    journal.close()
    assert recovered(disk, 0) == [b"new"]


def test_a_copy_that_a_truncation_overtakes_is_not_written(monkeypatch):
    """The file with the truncation point could be freed before that of the copy."""
    monkeypatch.setattr(file_copies, "PORTION_BYTES", 1)
    disk = MemoryJournalDisk()
    journal, ledgers = open_journal(disk, copy_from_files=1000)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append(idle, *(b"old" for _ in range(50)))
    write_until(busy, lambda: journal.active_sequence >= 20)
    journal.close()
    journal, ledgers = open_journal(disk, seed=1, copy_from_files=2)
    ledgers.forget(0)
    busy = ledgers.open(1, 2)
    append(busy, b"x")  # the forgetting is durable
    copied = journal.copied_bytes
    write_until(busy, lambda: journal.active_sequence >= 60)
    assert journal.copied_bytes == copied
    journal.close()
    journal, ledgers = open_journal(disk, seed=2)
    assert 0 not in ledgers.epochs()
    journal.close()


class File:
    """Enough of a log file for what remembers where entries are."""

    def __init__(self, name="journal-x"):
        self.name = name
        self.layout = Format2(0)
        self.pins = WeakSet()


def note(index, log_file, entry, *, epoch=1, length=10, copied=False, truncated_before=0, container=0):
    header = RecordHeader(RecordKind.ENTRY, container, epoch, epoch, entry, truncated_before, 0, 0, length, 0, copied)
    index.add(log_file, header, 4096 + 100 * entry)


def lengths_of(index, container=0):
    parts, _ = index.chain(container)
    return [(entry, length) for part in parts for entry, _, length in part.places()]


def test_copies_take_nothing_back():
    """They are older than what was written before them: their epoch and their truncation point do not count."""
    index, old, new = JournalIndex(), File(), File()
    note(index, old, 4, epoch=1)
    for entry in (5, 6, 7):
        note(index, old, entry, epoch=3, truncated_before=2)
    note(index, new, 8, epoch=4, truncated_before=4)
    note(index, new, 4, epoch=1, truncated_before=1, copied=True)
    assert index.epochs() == {0: 4}
    assert index.truncated_before == {0: 4}
    assert index.next_entry(0) == 9
    assert [entry for entry, _ in lengths_of(index)] == [4, 5, 6, 7, 8]


def test_the_second_record_of_an_entry_replaces_the_first():
    """A copy, or an entry that was sent again because its first record is damaged."""
    index, old, new = JournalIndex(), File(), File()
    for entry in (5, 6, 7):
        note(index, old, entry, length=entry, truncated_before=5)
    note(index, new, 5, length=5, copied=True)
    note(index, new, 7, length=7)
    parts, _ = index.chain(0)
    assert [(part.first_entry, part.end_entry, part.log_file) for part in parts] == [
        (5, 6, new),
        (6, 7, old),
        (7, 8, new),
    ]
    assert lengths_of(index) == [(5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize(("other", "text"), [({"length": 11}, "differ"), ({"epoch": 2}, "differs")], ids=str)
def test_different_entries_of_one_number_are_refused(other, text):
    index, old, new = JournalIndex(), File(), File()
    note(index, old, 5, truncated_before=5)
    note(index, new, 5, copied=True, **other)
    with pytest.raises(CorruptError, match=text):
        index.chain(0)


def test_a_hole_that_no_copy_fills_is_refused():
    index, old, new = JournalIndex(), File(), File()
    note(index, old, 8, truncated_before=5)
    for entry in (5, 7):
        note(index, new, entry, copied=True)
    with pytest.raises(CorruptError, match="from entry 5 on, but its entries from 6 to 6 are not there"):
        index.chain(0)


def test_a_newer_owner_s_epoch_stands_after_a_copy():
    disk = MemoryJournalDisk()
    for epoch in (2, 5):
        journal, ledgers = open_journal(disk, seed=epoch, copy_from_files=1000)
        append(ledgers.open(0, epoch), b"of %d" % epoch)
        journal.close()
    journal, ledgers = open_journal(disk, seed=6, copy_from_files=3)
    busy = ledgers.open(1, 1)
    write_until(busy, lambda: journal.copied_bytes and files_of(disk)[0] > "journal-0000000000000003")
    journal.close()
    journal, ledgers = open_journal(disk, seed=7)
    assert ledgers.epochs()[0] == 5
    with pytest.raises(FencedError):
        ledgers.open(0, 4)
    journal.close()


def test_a_refused_log_is_refused_again():
    """A log with a hole must not be taken for an empty one by the next attempt to open it."""
    journal, ledgers = open_journal(MemoryJournalDisk())
    note(journal.index, File(), 0)
    note(journal.index, File(), 4, copied=True)
    for _ in range(2):
        with pytest.raises(CorruptError, match="older journal files are missing"):
            ledgers.open(0, 9)
        assert ledgers.epochs() == {0: 1}
    journal.close()
