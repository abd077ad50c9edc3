"""Entries are read while the journal is written: at once, from pinned files, and always the newest record of each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordKind
from headrace.codec.payload_compression import compress_payload
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal import journal_reader, journal_scan
from headrace.segmentstore.log.journal.entry_runs import LedgerState
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, RecordHeader
from headrace.segmentstore.log.journal.journal_reader import JournalReader, StoredEntry
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore, truncation_record
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger, OneCopyLedgers

FILE_BYTES = 64 << 10
WAIT_S = 20
TRIES = 2000
"""Each writes a file, and the copying goes on meanwhile: far more than it needs."""

IDLE, BUSY = 0, 1
IDENTITY_BYTES = 32
FIRST_FILE = "journal-0000000000000001"


@pytest.fixture
def disk() -> MemoryJournalDisk:
    return MemoryJournalDisk()


@pytest.fixture
def journal(disk: MemoryJournalDisk) -> Iterator[Journal]:
    random = Random(0)
    made = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=FILE_BYTES)
    made.start()
    yield made
    made.close()


@pytest.fixture
def ledgers(journal: Journal) -> OneCopyLedgers:
    return OneCopyLedgers(journal)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of the reads of the test's own thread."""
    own, honest, found = threading.get_ident(), MemoryJournalFile.read, []

    def read(file: MemoryJournalFile, position: int, length: int) -> bytes:
        if threading.get_ident() == own:
            found.append(position)
        return honest(file, position, length)

    monkeypatch.setattr(MemoryJournalFile, "read", read)
    return found


def append(ledger: OneCopyLedger, *payloads: bytes) -> None:
    reached = threading.Semaphore(0)
    for payload in payloads:
        ledger.append([payload], lambda _error: reached.release())
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)


def submit(journal: Journal, epoch: int, entry: int, payload: bytes) -> None:
    """Write an entry with any identity, as a replica does."""
    reached = threading.Event()
    journal.submit(
        PendingRecord(RecordKind.ENTRY, 0, epoch, 9, entry, 0, 0, [payload], len(payload), lambda _error: reached.set())
    )
    assert reached.wait(WAIT_S)


def write_until(ledger: OneCopyLedger, condition: Callable[[], Any]) -> None:
    """Fill files with entries that are not needed any more."""
    for _ in range(TRIES):
        if condition():
            return
        for _ in range(3):
            append(ledger, bytes(20_000))
            ledger.truncate(ledger.next_entry)
    raise AssertionError("it never came to that")


def payloads_of(ledger: OneCopyLedger) -> list[bytes]:
    return [bytes(entry.payload) for entry in ledger.recover()]


def test_an_entry_can_be_read_as_soon_as_it_is_durable(journal, ledgers):
    """In the callback itself, and over several files."""
    ledger, found, reached = ledgers.open(0, 7), [], threading.Semaphore(0)

    def done(_error: Exception | None) -> None:
        found.append([bytes(stored.payload) for stored in journal.reader.ledger(0, 7, len(found), len(found) + 1)])
        reached.release()

    payloads = [bytes([number]) * 9_000 for number in range(30)]
    for payload in payloads:
        ledger.append([payload], done)
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)
    assert found == [[payload] for payload in payloads]
    assert journal.active_sequence > 3


def test_only_what_is_wanted_is_read(journal, monkeypatch):
    """The file is shared: most of it may be records of other containers."""
    for entry in range(10):
        submit(journal, 7, entry, bytes(2_000))
        submit(journal, 8, entry, bytes(3_000))
    lengths = read_lengths(monkeypatch)
    entries = list(journal.reader.ledger(0, 7, 2, 9, 2 * (2_000 + RECORD_HEADER_BYTES)))
    assert [stored.header.entry for stored in entries] == [2, 3]
    assert lengths == [4_000 + 3_000 + 3 * RECORD_HEADER_BYTES]
    monkeypatch.setattr(journal_reader, "SKIPPED_BYTES_MAX", 2_000)
    lengths.clear()
    assert len(list(journal.reader.ledger(0, 7, 2, 9))) == 7
    assert lengths == [2_000 + RECORD_HEADER_BYTES] * 7


def test_at_least_one_entry_is_read(journal):
    for entry in range(3):
        submit(journal, 7, entry, bytes(2_000))
    assert [stored.header.entry for stored in journal.reader.ledger(0, 7, 1, 3, 1)] == [1]


def test_no_read_is_larger_than_a_window(journal, monkeypatch):
    for entry in range(10):
        submit(journal, 7, entry, bytes(1_000))
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", 4_000)
    lengths = read_lengths(monkeypatch)
    assert len(list(journal.reader.ledger(0, 7, 0, 10))) == 10
    record_bytes = 1_000 + RECORD_HEADER_BYTES
    assert lengths == [3 * record_bytes] * 3 + [record_bytes]


def test_answer_has_a_bound_on_its_entries(journal, monkeypatch):
    """The other end refuses more of them."""
    monkeypatch.setattr(journal_reader, "ENTRIES_PER_ANSWER_MAX", 3)
    for entry in range(5):
        submit(journal, 7, entry, b"")
    assert [ledger_entry.header.entry for ledger_entry in journal.reader.entries_to_send(0, 7, 1, 4, 1 << 20)] == [
        1,
        2,
        3,
    ]


def test_entries_to_send_keep_no_memory_of_what_is_between_them(journal):
    for entry in range(10):
        submit(journal, 7, entry, b"wanted")
        submit(journal, 8, entry, bytes(3_000))
    payloads = [ledger_entry.payload for ledger_entry in journal.reader.entries_to_send(0, 7, 0, 9, 1 << 20)]
    assert payloads == [b"wanted"] * 10
    assert sum(len(memoryview(payload).obj) for payload in payloads) == 10 * len(b"wanted")


def test_entries_to_send_end_at_the_first_that_is_missing(journal):
    for entry in (0, 1, 3):
        submit(journal, 7, entry, b"x")
    for first, found in [(0, [0, 1]), (2, []), (3, [3])]:
        assert [
            ledger_entry.header.entry for ledger_entry in journal.reader.entries_to_send(0, 7, first, 9, 1 << 20)
        ] == found


def test_bound_on_bytes_counts_over_gaps(journal):
    for entry in (0, 2, 4):
        submit(journal, 7, entry, bytes(2_000))
    record_bytes = 2_000 + RECORD_HEADER_BYTES
    for bytes_max, found in [(2 * record_bytes - 1, [0]), (2 * record_bytes, [0, 2]), (1 << 20, [0, 2, 4])]:
        assert [stored.header.entry for stored in journal.reader.ledger(0, 7, 0, 9, bytes_max)] == found


def test_entry_where_another_one_was_written_is_damage(disk, journal):
    """A disk may return the block of another place, whose checksums are right."""
    for entry in range(3):
        submit(journal, 7, entry, b"entry %d" % entry)
    file, record_bytes = disk.open(FIRST_FILE), RECORD_HEADER_BYTES + len(b"entry 0")
    file.write(FILE_HEADER_BYTES, [file.read(FILE_HEADER_BYTES + record_bytes, record_bytes)])
    with pytest.raises(CorruptError, match="entry 0 of container 0 is not what was written there"):
        list(journal.reader.ledger(0, 7, 0, 3))


@pytest.mark.parametrize("codec", Codec)
def test_content_of_an_entry_is_what_the_owner_appended(codec: Codec):
    content = b"content " * 100
    payload = compress_payload([content], len(content)) if codec is Codec.ZSTD else content
    header = RecordHeader(RecordKind.ENTRY, 0, 1, 1, 0, 0, 0, 0, len(payload), 0, codec=codec)
    assert StoredEntry(header, memoryview(payload)).content() == content


def read_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    honest, found = MemoryJournalFile.read, []

    def read(file: MemoryJournalFile, position: int, length: int) -> bytes:
        found.append(length)
        return honest(file, position, length)

    monkeypatch.setattr(MemoryJournalFile, "read", read)
    return found


def test_entries_come_with_their_stored_header(journal, ledgers):
    append(ledgers.open(0, 7), b"one", b"two")
    headers = [stored.header for stored in journal.reader.ledger(0, 7, 0, 2)]
    assert [(header.container, header.epoch, header.writer_epoch, header.entry) for header in headers] == [
        (0, 7, 7, 0),
        (0, 7, 7, 1),
    ]
    assert [header.length for header in headers] == [3, 3]
    assert headers[0].payload_checksum != headers[1].payload_checksum


def test_a_reading_sees_what_was_durable_when_it_began(journal, ledgers):
    ledger = ledgers.open(0, 1)
    append(ledger, b"one")
    reading = journal.reader.chain(0)
    append(ledger, b"two")
    assert [bytes(stored.payload) for stored in reading] == [b"one"]
    assert [bytes(stored.payload) for stored in journal.reader.chain(0)] == [b"one", b"two"]


def test_a_file_is_not_used_again_while_it_is_read(disk, journal, ledgers, monkeypatch):
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", 256)  # much less than what is read
    ledger = ledgers.open(0, 1)
    payloads = [bytes([number]) * 1000 for number in range(20)]
    append(ledger, *payloads)
    unread, reading = journal.reader.chain(0), journal.reader.chain(0)
    found = [bytes(next(reading).payload)]
    ledger.truncate(ledger.next_entry)
    write_until(ledger, lambda: journal.active_sequence >= 10)
    assert FIRST_FILE in disk.names()
    found += [bytes(stored.payload) for stored in reading]
    assert found == payloads
    assert [bytes(stored.payload) for stored in unread] == payloads
    write_until(ledger, lambda: FIRST_FILE not in disk.names())


def test_a_full_volume_uses_the_files_of_an_ended_reading():
    """The truncation could free nothing, and a rotation needs a file."""
    random, file_bytes, files = Random(0), 16 << 10, 8
    disk = MemoryJournalDisk(capacity_bytes=files * file_bytes + IDENTITY_BYTES)
    commits = JournalCommits(disk, lambda: random.getrandbits(64), file_bytes=file_bytes, copy_from_files=1000)
    commits.load(lambda: None)
    commits.begin()
    numbers = itertools.count()

    def append() -> None:
        entry = PendingRecord(RecordKind.ENTRY, 0, 1, 1, next(numbers), 0, 0, (bytes(3000),), 3000, ignore)
        commits.commit([entry], lambda _call: None)

    while len(commits.files.used) < files:
        append()
    reading = JournalReader(commits.index).chain(0)
    commits.commit([truncation_record(0, 1, next(numbers), ignore)], lambda _call: None)
    assert len(commits.files.used) == files
    assert len(list(reading)) > 0
    for _ in range(10):
        append()
    assert len(commits.files.used) < files


@pytest.mark.parametrize("begun", [False, True])
def test_a_reading_that_is_dropped_frees_its_files(disk, journal, ledgers, begun):
    ledger = ledgers.open(0, 1)
    append(ledger, b"one", b"two")
    reading = journal.reader.chain(0)
    if begun:
        next(reading)
    ledger.truncate(ledger.next_entry)
    write_until(ledger, lambda: journal.active_sequence >= 5)
    assert FIRST_FILE in disk.names()
    del reading
    write_until(ledger, lambda: FIRST_FILE not in disk.names())


def test_a_copied_file_stays_while_it_is_read(disk, journal, ledgers):
    idle, busy = ledgers.open(IDLE, 1), ledgers.open(BUSY, 1)
    append(idle, b"one", b"two")
    reading = journal.reader.chain(IDLE)
    write_until(busy, lambda: journal.copied_bytes and journal.active_sequence >= 30)
    assert FIRST_FILE in disk.names()
    assert [bytes(stored.payload) for stored in journal.reader.chain(IDLE)] == [b"one", b"two"]  # the copies
    assert [bytes(stored.payload) for stored in reading] == [b"one", b"two"]
    write_until(busy, lambda: FIRST_FILE not in disk.names())
    ledgers.release(IDLE)
    assert payloads_of(ledgers.open(IDLE, 2)) == [b"one", b"two"]


def test_opening_a_released_log_reads_no_file(ledgers, reads):
    opened = {container: ledgers.open(container, 1) for container in range(100)}
    for ledger in opened.values():
        append(ledger, bytes(1_000), bytes(1_000))
    for container in opened:
        ledgers.release(container)
    again = [ledgers.open(container, 2) for container in opened]
    assert [ledger.next_entry for ledger in again] == [2] * 100
    assert reads == []


def test_a_log_forgotten_while_it_is_read_stays_forgotten(ledgers):
    for container in (0, 1):
        append(ledgers.open(container, 1), b"old")
    ledgers.release(1)
    reading = ledgers.open(1, 2).recover()
    ledgers.forget(1)
    assert [bytes(entry.payload) for entry in reading] == [b"old"]
    assert sorted(ledgers.epochs()) == [0]
    again = ledgers.open(1, 3)
    assert payloads_of(again) == []
    append(again, b"new")
    ledgers.release(1)
    assert payloads_of(ledgers.open(1, 4)) == [b"new"]


def test_a_contradiction_in_one_log_concerns_no_other(journal, ledgers):
    append(ledgers.open(1, 9), b"good")
    for entry in (0, 2):
        submit(journal, 1, entry, b"with a gap")
    for epoch in (9, 10):
        with pytest.raises(CorruptError, match="entries from 1 to 1 are not there"):
            ledgers.open(0, epoch)
    ledgers.release(1)
    assert payloads_of(ledgers.open(1, 10)) == [b"good"]


def test_the_same_number_of_two_epochs_is_two_entries(journal):
    """A fenced owner wrote entries that no log has; the next owner gave their numbers to others."""
    for entry, payload in enumerate([b"0", b"1", b"garbage", b"garbage"]):
        submit(journal, 3, entry, payload)
    for entry, payload in enumerate([b"two", b"three"], 2):
        submit(journal, 5, entry, payload)
    assert journal.index.ledgers(0) == [LedgerState(3, 0, 4, 4), LedgerState(5, 2, 4, 4)]
    assert [bytes(each.payload) for each in journal.reader.ledger(0, 3, 0, 2)] == [b"0", b"1"]
    assert [bytes(each.payload) for each in journal.reader.ledger(0, 5, 2, 4)] == [b"two", b"three"]
    assert list(journal.reader.ledger(0, 4, 0, 4)) == []


def test_a_damaged_entry_is_read_from_its_second_record(disk, journal):
    for entry in range(3):
        submit(journal, 1, entry, b"entry %d" % entry)
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 8)
    reading = journal.reader.ledger(0, 1, 0, 3)
    assert bytes(next(reading).payload) == b"entry 0"
    with pytest.raises(CorruptError, match="entry 1 of container 0 is not what was written there"):
        next(reading)
    submit(journal, 1, 1, b"entry 1")
    payloads = [bytes(stored.payload) for stored in journal.reader.ledger(0, 1, 0, 3)]
    assert payloads == [b"entry 0", b"entry 1", b"entry 2"]


def test_memory_is_released_before_an_entry_is_reported(ledgers):
    events, reached = [], threading.Event()

    def done(error: Exception | None) -> None:
        events.append(("done", error))
        reached.set()

    ledgers.open(0, 1).append([b"x"], done, lambda: events.append("released"))
    assert reached.wait(WAIT_S)
    assert events == ["released", ("done", None)]


def test_everything_queued_before_is_durable_at_a_barrier(disk, journal, ledgers):
    told, reached, held = [], threading.Event(), threading.Event()
    disk.before = lambda step: held.wait(WAIT_S) if step == "sync" else None
    ledger = ledgers.open(0, 1)
    ledger.append([b"one"], lambda _error: told.append("one"))
    journal.when_durable(lambda error: (told.append(error), reached.set()))
    assert told == []
    held.set()
    assert reached.wait(WAIT_S)
    assert told == ["one", None]
    commits = journal.synced_commits
    reached.clear()
    journal.when_durable(lambda _error: reached.set())
    assert reached.wait(WAIT_S)
    assert journal.synced_commits == commits, "a barrier alone writes nothing"


def test_readings_of_many_threads_while_the_journal_is_written(journal, ledgers):
    ledger = ledgers.open(0, 1)
    append(ledger, *(bytes([number % 256]) * 300 for number in range(50)))
    wrong: list[object] = []

    def read() -> None:
        for _ in range(30):
            for entry, stored in enumerate(journal.reader.chain(0)):
                if (stored.header.entry, stored.payload[0]) != (entry, entry % 256):
                    wrong.append(stored.header)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(50, 250):
        append(ledger, bytes([number % 256]) * 300)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_failed_journal_releases_memory_and_reports_the_error(disk, journal, ledgers):
    events, reached = [], threading.Event()
    ledger = ledgers.open(0, 1)

    def broken(step: str) -> None:
        if step == "sync":
            raise OSError("broken")

    disk.before = broken

    def done(error: Exception | None) -> None:
        events.append(type(error).__name__)
        reached.set()

    ledger.append([b"x"], done, lambda: events.append("released"))
    assert reached.wait(WAIT_S)
    assert events == ["released", "UnavailableError"]
