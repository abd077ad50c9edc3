"""Damage of durable records: an error with one copy; with several copies it is known what is missing, and what is not.

A replica never says that it never had an entry when it may have had it.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from queue import SimpleQueue
from random import Random

import pytest
from crc32c import crc32c

from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import CorruptError, UnavailableError
from headrace.segmentstore.log.journal.entry_runs import LedgerState
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, FileHeader, encode_file_header
from headrace.segmentstore.log.journal.journal_scan import BLOCK_BYTES, UNREADABLE_BYTES_MAX, read_around
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore, truncation_record
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger, OneCopyLedgers
from headrace.segmentstore.log.replicated.replica_sessions import recovered_logs

FILE_BYTES = 64 << 10
FIRST_FILE = "journal-0000000000000001"
PAYLOAD = b"p" * 20
RECORD_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)
WAIT_S = 20
CONTAINERS = (0, 1)


def start(disk: MemoryJournalDisk, seed: int = 1, copies: int = 3) -> Journal:
    random = Random(seed)
    journal = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=FILE_BYTES, copies=copies)
    journal.start()
    return journal


def written(rounds: int, *, extra: int = 0) -> MemoryJournalDisk:
    """A journal with one entry of each container in each round, each a commit; then `extra` entries of container 1."""
    disk = MemoryJournalDisk()
    journal = start(disk, seed=0)
    ledgers = OneCopyLedgers(journal)
    opened = [ledgers.open(container, 4) for container in CONTAINERS]
    for ledger in opened * rounds + [opened[1]] * extra:
        reached = threading.Event()
        ledger.append([PAYLOAD], lambda _error, reached=reached: reached.set())
        assert reached.wait(WAIT_S)
    journal.close()
    return disk


def damage(disk: MemoryJournalDisk, record: int, offset: int = 0, length: int = 1) -> None:
    """Damage a record, counted from the first of the file."""
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + record * RECORD_BYTES + offset, length)


def append_and_close(journal: Journal) -> None:
    """Write an entry of container 1 and end the journal."""
    ledger = OneCopyLedgers(journal).open(1, 50)
    ledger.append([PAYLOAD], ignore)
    journal.close()


def fill(ledger: OneCopyLedger, files: int) -> None:
    """Write so many files of entries that are not needed any more."""
    reached = threading.Semaphore(0)
    for _ in range(4 * files):
        ledger.append([bytes(FILE_BYTES // 4)], lambda _error: reached.release())
        ledger.truncate(ledger.next_entry)
        assert reached.acquire(timeout=WAIT_S)


def states(journal: Journal) -> list[tuple[LedgerState, ...]]:
    return [tuple(journal.index.ledgers(container)) for container in CONTAINERS]


@pytest.mark.parametrize("offset", [5, 30, RECORD_HEADER_BYTES + 3], ids=["salt", "header", "payload"])
@pytest.mark.parametrize("has_successor", [False, True])
def test_damage_is_an_error_if_there_is_one_copy(offset, has_successor):
    disk = written(3)
    if has_successor:
        start(disk, seed=2).close()
    damage(disk, 2, offset)
    with pytest.raises(CorruptError, match=f"damaged at {FILE_HEADER_BYTES + 2 * RECORD_BYTES}"):
        start(disk, copies=1)


@pytest.mark.parametrize("has_successor", [False, True])
def test_an_entry_with_a_damaged_payload_is_a_gap_that_is_known(has_successor, caplog):
    disk = written(3)
    if has_successor:
        start(disk, seed=2).close()
    damage(disk, 2, RECORD_HEADER_BYTES + 3)  # entry 1 of container 0
    journal = start(disk)
    assert journal.damaged_entries
    assert states(journal) == [(LedgerState(4, 0, 1, 3),), (LedgerState(4, 0, 3, 3),)]
    assert [stored.header.entry for stored in journal.reader.ledger(0, 4, 0, 3)] == [0, 2]
    place = FILE_HEADER_BYTES + 2 * RECORD_BYTES + RECORD_HEADER_BYTES
    found = f"event=journal_entry_damaged file={FIRST_FILE!r} position={place} container=0 epoch=4 entry=1"
    assert found in caplog.text
    journal.close()


def test_a_damaged_payload_of_the_newest_entry_is_not_forgotten():
    """The header says that the replica had this entry."""
    disk = written(2)
    start(disk, seed=2).close()
    damage(disk, 3, RECORD_HEADER_BYTES)  # entry 1 of container 1
    journal = start(disk)
    assert states(journal)[1] == (LedgerState(4, 0, 1, 2),)
    journal.close()


@pytest.mark.parametrize("has_successor", [False, True])
@pytest.mark.parametrize("offset", [5, 30], ids=["salt", "header"])
def test_a_journal_that_lost_headers_is_set_aside(offset, has_successor, caplog):
    """Nothing says which records these were, so that the journal goes on as another replica, and an empty one."""
    disk = written(3)
    first = start(disk, seed=2)
    replica_id = first.replica_id
    first.close()
    old = {name for name in disk.names() if not name.startswith("spare-")}
    if has_successor:
        start(disk, seed=3).close()
    damage(disk, 2, offset)
    journal = start(disk, seed=4)
    assert journal.replica_id != replica_id
    assert recovered_logs(journal) == {}
    assert f"event=journal_set_aside replica={replica_id.hex()}" in caplog.text
    journal.close()
    assert {f"aside-{name}" for name in old} <= set(disk.names())
    again = start(disk, seed=5)
    assert again.replica_id == journal.replica_id
    again.close()


@pytest.mark.parametrize("has_lost_a_file", [False, True], ids=["file header", "missing file"])
def test_lost_files_set_a_journal_aside(has_lost_a_file):
    disk = written(3)
    for seed in (2, 3):
        append_and_close(start(disk, seed))
    names = [name for name in disk.names() if name.startswith("journal-0")]
    if has_lost_a_file:
        disk.remove(names[1])
    else:
        disk.damage(names[1], 9)
    with pytest.raises(CorruptError):
        start(disk, copies=1)
    journal = start(disk, seed=9)
    assert recovered_logs(journal) == {}
    journal.close()


def test_a_damaged_identity_sets_the_journal_aside():
    disk = written(3)
    disk.damage("journal-id", 20)
    with pytest.raises(CorruptError):
        start(disk, copies=1)
    journal = start(disk, seed=9)
    assert recovered_logs(journal) == {}
    journal.close()


def test_a_file_of_a_newer_release_is_never_set_aside():
    disk = written(3)
    newer = bytearray(encode_file_header(FileHeader(1, 2, 0))[:FILE_HEADER_BYTES])
    newer[8:12] = (99).to_bytes(4, "big")
    newer[52:56] = crc32c(newer[:52]).to_bytes(4, "big")
    disk.open(FIRST_FILE).write(0, [newer])
    with pytest.raises(CorruptError, match="version 99"):
        start(disk)
    assert FIRST_FILE in disk.names()


@pytest.mark.parametrize("step", range(1, 6))
def test_setting_aside_continues_after_it_was_interrupted(step):
    """The process ends at any rename, more than once."""
    disk = written(3)
    start(disk, seed=2).close()
    damage(disk, 2, 5)
    steps = iter(range(1, 100))

    def fail(kind: str) -> None:
        if kind == "rename" and next(steps) == step:
            raise OSError("the process ends")

    disk.before = fail
    with contextlib.suppress(OSError):
        start(disk, seed=3).close()
    disk = disk.cut_power(step)
    journal = start(disk, seed=4)
    assert recovered_logs(journal) == {}
    journal.close()
    assert "aside-journal-id" in disk.names()
    assert f"aside-{FIRST_FILE}" in disk.names()


def test_one_set_of_files_is_kept_aside():
    disk = written(3)
    for seed in range(2, 6):
        damage(disk, 2, 5)
        journal = start(disk, seed)
        append_and_close(journal)
    assert [name for name in disk.names() if name.startswith("aside-journal-0")] == [f"aside-{FIRST_FILE}"]


@pytest.mark.parametrize("room_bytes", [0, 2 * FILE_BYTES], ids=["at once", "later"])
def test_files_aside_are_removed_when_room_is_needed(room_bytes):
    disk = written(3)
    damage(disk, 2, 5)
    disk.capacity_bytes = disk.capacity_bytes - disk.space().free_bytes + room_bytes
    journal = start(disk, 2)
    assert ("aside-journal-id" in disk.names()) is (room_bytes > 0)
    ledger, reached = OneCopyLedgers(journal).open(1, 9), threading.Semaphore(0)
    for _ in range(10):
        ledger.append([bytes(FILE_BYTES // 4)], lambda _error: reached.release())
        assert reached.acquire(timeout=WAIT_S)
    journal.close()
    assert not [name for name in disk.names() if name.startswith("aside-")]


def test_a_damaged_entry_is_known_until_it_is_truncated():
    """Its file stays, though all that is intact in it was copied or is not needed."""
    disk = written(3)
    start(disk, seed=2).close()
    damage(disk, 2, RECORD_HEADER_BYTES + 3)  # entry 1 of container 0
    for seed in range(3, 9):
        journal = start(disk, seed)
        ledger = OneCopyLedgers(journal).open(1, seed + 4)
        fill(ledger, files=4)
        assert states(journal)[0] == (LedgerState(4, 0, 1, 3),)
        journal.close()
    journal = start(disk, 10)
    assert FIRST_FILE in disk.names()
    journal.submit(truncation_record(0, 4, 2, ignore))
    fill(OneCopyLedgers(journal).open(1, 99), files=4)
    assert states(journal)[0] == (LedgerState(4, 2, 3, 3),)
    journal.submit(truncation_record(0, 4, 3, ignore))
    fill(OneCopyLedgers(journal).open(2, 99), files=4)
    assert states(journal)[0] == ()
    assert FIRST_FILE not in disk.names()
    journal.close()


def test_a_damaged_entry_that_was_received_again_is_held():
    disk = written(3)
    start(disk, seed=2).close()
    damage(disk, 2, RECORD_HEADER_BYTES + 3)
    journal = start(disk, 3)
    reached = threading.Event()
    journal.submit(
        PendingRecord(RecordKind.ENTRY, 0, 4, 5, 1, 0, 0, [PAYLOAD], len(PAYLOAD), lambda _error: reached.set())
    )
    assert reached.wait(WAIT_S)
    assert states(journal)[0] == (LedgerState(4, 0, 3, 3),)
    journal.close()
    journal = start(disk, 4)
    assert states(journal)[0] == (LedgerState(4, 0, 3, 3),)
    journal.close()


def test_a_torn_end_is_cut_and_no_damage():
    disk = written(2)
    damage(disk, 3, 30)
    journal = start(disk)
    assert not journal.damaged_entries
    assert states(journal) == [(LedgerState(4, 0, 2, 2),), (LedgerState(4, 0, 1, 1),)]
    journal.close()


def test_a_damaged_journal_goes_on_and_is_found_the_same_again():
    disk = written(4)
    damage(disk, 2, RECORD_HEADER_BYTES + 3)
    for seed in range(2, 6):
        journal = start(disk, seed)
        reached = threading.Event()
        ledger = OneCopyLedgers(journal).open(1, seed + 4)
        ledger.append([PAYLOAD], lambda _error, reached=reached: reached.set())
        assert reached.wait(WAIT_S)
        assert states(journal)[0] == (LedgerState(4, 0, 1, 4),)
        journal.close()
        disk = disk.cut_power(seed)
    assert journal.index.next_entry(1) == 8


@pytest.mark.parametrize("seed", range(60))
def test_no_damage_makes_a_replica_deny_an_entry(seed):
    """Any bytes are damaged. An entry is held as it was, or reported as missing, or the journal is set aside."""
    random = Random(seed)
    disk = written(random.randint(1, 12), extra=random.randint(0, 4))
    ends = {}
    journal = start(disk, seed=90)
    for container in CONTAINERS:
        ends[container] = journal.index.next_entry(container)
    journal.close()
    used = FILE_HEADER_BYTES + sum(ends.values()) * RECORD_BYTES
    for _ in range(random.randint(1, 3)):
        disk.damage(FIRST_FILE, random.randrange(FILE_HEADER_BYTES, used), 1)
    journal = start(disk, seed=91)
    if not journal.damaged_entries:
        assert recovered_logs(journal) == {}
        assert "aside-journal-id" in disk.names()
    for container, end in ends.items() if journal.damaged_entries else ():
        held = {stored.header.entry: stored.payload for stored in journal.reader.ledger(container, 4, 0, end)}
        assert all(payload == PAYLOAD for payload in held.values())
        assert [state.had_before for state in journal.index.ledgers(container)] == [end]
    journal.close()


def unreadable(disk: MemoryJournalDisk, record: int, offset: int = 0) -> None:
    """Let reads fail that touch the sector of a record, counted from the first of the file."""
    disk.make_unreadable(FIRST_FILE, FILE_HEADER_BYTES + record * RECORD_BYTES + offset)


def written_large(rounds: int) -> MemoryJournalDisk:
    """A journal with entries of container 1 that are larger than a few sectors, each a commit."""
    disk = MemoryJournalDisk()
    journal = start(disk, seed=0)
    ledger = OneCopyLedgers(journal).open(1, 4)
    for _ in range(rounds):
        reached = threading.Event()
        ledger.append([LARGE], lambda _error, reached=reached: reached.set())
        assert reached.wait(WAIT_S)
    journal.close()
    return disk


LARGE = b"q" * 3000
LARGE_BYTES = RECORD_HEADER_BYTES + len(LARGE)


@pytest.mark.parametrize("entry", [0, 2, 4], ids=["first", "middle", "last"])
def test_unreadable_sector_costs_one_entry(entry: int, caplog: pytest.LogCaptureFixture):
    """As wrong bytes in it do. The last entry is not taken for a torn write, since it may have been acknowledged."""
    disk = written_large(5)
    disk.make_unreadable(FIRST_FILE, FILE_HEADER_BYTES + entry * LARGE_BYTES + 1500)
    journal = start(disk)
    (ledger,) = recovered_logs(journal)[1].runs
    assert (ledger.start, ledger.had_end) == (0, 5)
    assert ledger.end == entry
    assert "event=journal_entry_damaged" in caplog.text
    assert "event=journal_torn_end_cut" not in caplog.text
    journal.close()


def test_unreadable_header_sets_the_journal_aside(caplog: pytest.LogCaptureFixture):
    disk = written_large(5)
    unreadable(disk, 0)
    journal = start(disk)
    assert recovered_logs(journal) == {}
    assert any(name.startswith("aside-") for name in disk.names())
    journal.close()


@pytest.mark.parametrize("position", [FILE_HEADER_BYTES + 1500, FILE_HEADER_BYTES + 4 * LARGE_BYTES + 1500])
def test_unreadable_sector_is_damage_if_there_is_one_copy(position: int):
    disk = written_large(5)
    disk.make_unreadable(FIRST_FILE, position)
    with pytest.raises(CorruptError):
        start(disk, copies=1)


def test_sector_that_becomes_unreadable_is_damage_for_a_reader():
    disk = written_large(5)
    journal = start(disk)
    disk.make_unreadable(FIRST_FILE, FILE_HEADER_BYTES + 2 * LARGE_BYTES + 1500)
    assert len(journal.reader.entries_to_send(1, 4, 0, 1, 1 << 20)) == 2
    with pytest.raises(CorruptError):
        journal.reader.entries_to_send(1, 4, 2, 4, 1 << 20)
    assert len(journal.reader.entries_to_send(1, 4, 3, 4, 1 << 20)) == 2
    journal.close()


def test_disk_that_reads_nothing_is_not_searched_block_by_block():
    class Broken(MemoryJournalFile):
        reads = 0

        def read(self, position: int, length: int) -> bytes:
            Broken.reads += 1
            raise OSError(errno.EIO, "gone")

    disk = MemoryJournalDisk()
    disk.create("file", 8 << 20)
    disk.open("file")
    file = Broken(disk, disk._files["file"])
    with pytest.raises(OSError, match="gone"):
        read_around(file, 0, 8 << 20)
    assert Broken.reads < 3 * (UNREADABLE_BYTES_MAX // BLOCK_BYTES)


@pytest.mark.parametrize("copies", [1, 3])
def test_write_that_fails_at_a_bad_sector_costs_nothing(copies: int, caplog: pytest.LogCaptureFixture):
    """A disk reads a sector before it writes a part of it. This one has no record: it must not count as damage."""
    disk = written(3)
    journal = start(disk, seed=3, copies=copies)
    replica_id = journal._commits.files.replica_id
    disk.make_unreadable(journal._commits.files.active.name, FILE_HEADER_BYTES)
    fail_append(journal)
    journal.close()
    assert "event=journal_end_wiped" in caplog.text
    journal = start(disk, seed=4, copies=copies)
    assert journal._commits.files.replica_id == replica_id
    assert journal.damaged_entries == 0
    assert [journal.index.next_entry(container) for container in CONTAINERS] == [3, 3]
    assert not any(name.startswith("aside-") for name in disk.names())
    append_and_close(journal)


def fail_append(journal: Journal) -> None:
    """Append an entry that the disk refuses."""
    errors: SimpleQueue[Exception | None] = SimpleQueue()
    OneCopyLedgers(journal).open(1, 50).append([PAYLOAD], errors.put)
    assert isinstance(errors.get(timeout=WAIT_S), UnavailableError)


def test_wiping_begins_behind_what_was_acknowledged():
    disk = written(3)
    journal = start(disk, seed=3)
    durable = threading.Event()
    OneCopyLedgers(journal).open(1, 49).append([PAYLOAD], lambda _error: durable.set())
    assert durable.wait(WAIT_S)
    faults = [OSError(errno.EIO, "gone")]

    def fail_once(step: str) -> None:
        if step == "sync" and faults and threading.current_thread() is journal._worker:
            raise faults.pop()

    disk.before = fail_once
    fail_append(journal)
    journal.close()
    assert faults == []
    journal = start(disk, seed=4)
    assert (journal.damaged_entries, journal.index.next_entry(1)) == (0, 4)
    assert [bytes(stored.payload) for stored in journal.reader.ledger(1, 49, 3, 4)] == [PAYLOAD]
    journal.close()


def test_disk_that_fails_again_is_left_as_it_is(caplog: pytest.LogCaptureFixture):
    disk = written(3)
    journal = start(disk, seed=3)
    disk.before = broken
    fail_append(journal)
    journal.close()
    assert "event=journal_end_left" in caplog.text
    disk.before = lambda _step: None
    journal = start(disk, seed=4)
    assert journal.index.next_entry(1) == 3
    journal.close()


def broken(_step: str) -> None:
    raise OSError(errno.EIO, "gone")
