"""What a replica tells after a restart: its promises, positions and gaps, as the journal has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordKind
from headrace.codec.replica_messages import HeldRun
from headrace.model.container_logs import LedgerChain, LedgerStart
from headrace.replication.log_ends import reported_position
from headrace.replication.replica_log import RecoveredLog, Witness
from headrace.segmentstore.log.journal import file_copies, journal_commits
from headrace.segmentstore.log.journal.file_copies import FileCopy
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_reader import JournalReader
from headrace.segmentstore.log.journal.pending_records import (
    PendingRecord,
    drop_record,
    ignore,
    keep_ledgers,
    promise_record,
    truncation_record,
)
from headrace.segmentstore.log.replicated.replica_sessions import recovered_logs

FILE_BYTES = 16 << 10
FIRST_FILE = "journal-0000000000000001"
PAYLOAD = b"p" * 20
RECORD_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)
CONTAINER, OTHER = 0, 1


@pytest.fixture
def disk() -> MemoryJournalDisk:
    return MemoryJournalDisk()


def started(disk: MemoryJournalDisk, seed: int = 1) -> JournalCommits:
    random = Random(seed)
    commits = JournalCommits(disk, lambda: random.getrandbits(64), file_bytes=FILE_BYTES, copies=3)
    commits.load(lambda: None)
    commits.begin()
    return commits


def entry(
    number: int, *, epoch: int = 3, writer: int = 3, truncated_before: int = 0, acknowledged: int = 0
) -> PendingRecord:
    return PendingRecord(
        RecordKind.ENTRY,
        CONTAINER,
        epoch,
        writer,
        number,
        truncated_before,
        acknowledged,
        (PAYLOAD,),
        len(PAYLOAD),
        ignore,
    )


def write(disk: MemoryJournalDisk, *records: PendingRecord) -> None:
    """Each record in a commit of its own, in a file of this start."""
    commits = started(disk)
    for record in records:
        commits.commit([record], lambda _done: None)


def recovered(disk: MemoryJournalDisk) -> RecoveredLog:
    return recovered_logs(started(disk, 2)).get(CONTAINER, RecoveredLog())


def damage_payload(disk: MemoryJournalDisk, record: int) -> None:
    """Damage the payload of a record, counted from the first of the file."""
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + record * RECORD_BYTES + RECORD_HEADER_BYTES)


def test_a_new_journal_knows_no_container(disk):
    assert recovered_logs(started(disk)) == {}


def test_entries_are_reported_with_what_their_headers_say(disk):
    write(disk, entry(5, acknowledged=2), entry(6, truncated_before=3, acknowledged=6), entry(7, acknowledged=4))
    assert recovered(disk) == RecoveredLog(3, 3, Witness(3, 6), (HeldRun(3, 5, 8, 8),))


def test_the_owner_of_the_newest_ledger_is_the_witness(disk):
    """An operator may have accepted the loss of what the owner of an older one knew. A recovery knows what it found."""
    write(
        disk,
        entry(0, acknowledged=9),
        entry(1, epoch=5, writer=5, acknowledged=1),
        entry(2, epoch=5, writer=7, acknowledged=8),
        replace(promise_record(CONTAINER, 7, ignore), acknowledged_before=9),
        truncation_record(CONTAINER, 7, 1, ignore),
    )
    assert recovered(disk).witness == Witness(5, 1)


def test_a_damaged_entry_is_a_witness(disk):
    write(disk, entry(0), entry(1, acknowledged=1))
    write(disk)
    damage_payload(disk, 1)
    assert recovered(disk).witness == Witness(3, 1)


def test_each_ledger_is_a_run_of_its_own(disk):
    write(disk, entry(0), entry(1), entry(1, epoch=5, writer=5), entry(2, epoch=5, writer=5))
    assert recovered(disk).runs == (HeldRun(3, 0, 2, 2), HeldRun(5, 1, 3, 3))


def test_a_promise_is_the_highest_epoch_that_is_known(disk):
    write(disk, promise_record(CONTAINER, 4, ignore), promise_record(OTHER, 9, ignore), entry(0, writer=7))
    logs = recovered_logs(started(disk, 2))
    assert logs[CONTAINER].promise == 7
    assert logs[OTHER] == RecoveredLog(9)


def test_a_drop_keeps_the_promise(disk):
    write(disk, promise_record(CONTAINER, 4, ignore), entry(0), drop_record(CONTAINER, 4, ignore))
    assert recovered(disk) == RecoveredLog(4)


def test_a_run_begins_at_the_truncation_point(disk):
    write(disk, *map(entry, range(4)), truncation_record(CONTAINER, 3, 2, ignore))
    assert recovered(disk).runs == (HeldRun(3, 2, 4, 4),)


def test_a_run_that_goes_on_at_the_truncation_point_has_no_gap(disk):
    write(disk, entry(0), entry(1), truncation_record(CONTAINER, 3, 6, ignore), entry(6), entry(7))
    assert recovered(disk) == RecoveredLog(3, 6, Witness(3, 0), (HeldRun(3, 6, 8, 8),))


def test_ledgers_before_the_truncation_point_are_not_reported(disk):
    write(disk, entry(0), entry(1, epoch=5, writer=5), truncation_record(CONTAINER, 5, 1, ignore))
    assert recovered(disk).runs == (HeldRun(5, 1, 2, 2),)


@pytest.mark.parametrize(
    ("damaged", "run"),
    [
        ((2,), HeldRun(3, 0, 2, 4)),
        ((3,), HeldRun(3, 0, 3, 4)),
        ((0,), HeldRun(3, 0, 0, 4)),
        ((0, 1, 2, 3), HeldRun(3, 0, 0, 4)),
    ],
    ids=["inner", "last", "first", "all"],
)
def test_damaged_entries_are_reported_as_held_before(disk, damaged, run):
    write(disk, *map(entry, range(4)))
    write(disk)  # a second file: otherwise damage of the last commit would be a torn write
    for record in damaged:
        damage_payload(disk, record)
    assert recovered(disk).runs == (run,)


def test_damage_before_the_truncation_point_does_not_matter(disk):
    write(disk, *map(entry, range(4)), truncation_record(CONTAINER, 3, 2, ignore))
    write(disk)
    damage_payload(disk, 1)
    assert recovered(disk).runs == (HeldRun(3, 2, 4, 4),)


def filler(number: int, payload_bytes: int = 4_000) -> PendingRecord:
    """An entry of another container, after which the entries before it are not needed."""
    payload = bytes(payload_bytes)
    return PendingRecord(RecordKind.ENTRY, OTHER, 3, 3, number, number, 0, (payload,), len(payload), ignore)


def test_a_truncation_point_outlives_its_file(disk):
    """All records of the container are in a file that is used again. A promise carries what it must not forget."""
    write(
        disk,
        promise_record(CONTAINER, 4, ignore),
        *(entry(number, acknowledged=number) for number in range(4)),
        truncation_record(CONTAINER, 3, 4, ignore),
        *map(filler, range(12)),
    )
    assert FIRST_FILE not in disk.names()
    assert recovered(disk) == RecoveredLog(4, 4)


def test_a_run_behind_a_gap_begins_there_after_its_file_is_gone(disk):
    """The header of the entry has an older truncation point than the record that was freed."""
    write(
        disk,
        promise_record(CONTAINER, 4, ignore),
        entry(0),
        truncation_record(CONTAINER, 3, 6, ignore),
        *map(filler, range(4)),
        entry(6),
        *map(filler, range(4, 7)),
    )
    assert FIRST_FILE not in disk.names()
    assert recovered(disk) == RecoveredLog(4, 6, Witness(3, 0), (HeldRun(3, 6, 7, 7),))


def test_promises_do_not_keep_a_full_volume_from_starting(disk):
    """The oldest file is only kept by promises, and nothing but the end of the last file is free."""
    commits = started(disk)
    commits.commit([promise_record(container, 4, ignore) for container in range(5, 25)], lambda _done: None)
    number = 0
    while commits.files.used[0].name == FIRST_FILE:
        commits.commit([filler(number, 3_000)], lambda _done: None)
        number += 1
        files = [name for name in disk.names() if name.startswith("journal-0")]
        if len(files) > 1:
            full = disk.cut_power(number)
            for name in full.names():
                if name.startswith("spare-"):
                    full.remove(name)
            full.capacity_bytes -= full.space().free_bytes
            promises = {container: log.promise for container, log in recovered_logs(started(full, 7)).items()}
            assert [promises[container] for container in range(5, 25)] == [4] * 20
    assert number > 3


def test_entries_leave_room_for_the_promises_of_older_files(disk):
    commits = started(disk)
    commits.commit([promise_record(container, 4, ignore) for container in range(5, 25)], lambda _done: None)
    for number in range(40):
        commits.commit([filler(number, 700)], lambda _done: None)
        others = {
            container for container in range(5, 25) if commits._promise_files[container] is not commits.files.active
        }
        free = FILE_BYTES - commits.files.active.end
        assert free >= len(others) * RECORD_HEADER_BYTES


def test_the_highest_promise_outlives_its_file(disk):
    """A lower one that was written later does not replace it."""
    commits = started(disk)
    kept = promise_record(CONTAINER, 7, ignore), entry(0)
    commits.commit([*kept, *map(filler, range(4)), promise_record(CONTAINER, 4, ignore)], lambda _done: None)
    commits.commit([truncation_record(CONTAINER, 3, 1, ignore)], lambda _done: None)
    assert FIRST_FILE not in disk.names()
    assert recovered(disk).promise == 7


def test_a_start_writes_no_promise_behind_a_torn_end(disk, monkeypatch):
    """What it writes before it has begun a file would not be found again, and the old file is freed."""
    with monkeypatch.context() as patch:  # the store ends before it frees a file
        patch.setattr(JournalCommits, "recycle", lambda self: None)
        commits = started(disk)
        commits.commit([promise_record(CONTAINER, 7, ignore), *map(filler, range(4))], lambda _done: None)
    loaded = JournalCommits(disk, lambda: 1, file_bytes=FILE_BYTES, copies=3)
    loaded.load(lambda: None)
    assert FIRST_FILE in disk.names()
    assert recovered(disk).promise == 7
    assert FIRST_FILE not in disk.names()
    assert recovered(disk).promise == 7


def with_a_file_to_copy(disk: MemoryJournalDisk) -> JournalCommits:
    """Three entries in the first of several files, which are not needed but for them."""
    commits = JournalCommits(disk, lambda: 1, file_bytes=FILE_BYTES, copies=3, copy_from_files=2)
    commits.load(lambda: None)
    commits.begin()
    commits.commit([*map(entry, range(3)), *map(filler, range(8))], lambda _done: None)
    return commits


def test_a_file_that_could_not_be_copied_stays_as_it_is(disk):
    commits = with_a_file_to_copy(disk)
    copy = commits.copy_to_begin()
    assert copy is not None
    assert commits.copy_to_begin() is None, "one runs"
    commits.end_copy(copy, is_complete=False)
    assert commits.copy_to_begin() is None
    assert FIRST_FILE in disk.names()


def test_a_copied_file_that_is_being_read_is_not_copied_again(disk):
    commits = with_a_file_to_copy(disk)
    reading = JournalReader(commits.index).ledger(CONTAINER, 3, 0, 3)
    assert next(reading).header.entry == 0
    copy = commits.copy_to_begin()
    assert copy is not None
    for portion in copy.portions():
        commits.write_portion(copy, portion)
    commits.end_copy(copy, is_complete=True)
    assert FIRST_FILE in disk.names()
    assert commits.copy_to_begin() is None
    assert [entry_read.header.entry for entry_read in reading] == [1, 2]
    del reading
    commits.recycle()
    assert FIRST_FILE not in disk.names()


def test_a_file_that_was_copied_is_forgotten(disk):
    commits = with_a_file_to_copy(disk)
    copy = commits.copy_to_begin()
    assert copy is not None
    for portion in copy.portions():
        commits.write_portion(copy, portion)
    commits.end_copy(copy, is_complete=True)
    assert FIRST_FILE not in disk.names()
    assert {piece.log_file for piece in commits.index.pieces(CONTAINER)} <= set(commits.files.used)
    stored = JournalReader(commits.index).ledger(CONTAINER, 3, 0, 3)
    assert [(entry_read.header.entry, bytes(entry_read.payload)) for entry_read in stored] == [
        (number, PAYLOAD) for number in range(3)
    ]
    assert recovered(disk).runs == (HeldRun(3, 0, 3, 3),)


def test_a_file_of_a_dropped_container_is_freed(disk):
    write(disk, *map(entry, range(4)), drop_record(CONTAINER, 3, ignore), *map(filler, range(8)))
    assert FIRST_FILE not in disk.names()


def test_an_entry_of_a_whole_file_needs_no_room_for_promises():
    """No file has more room than an empty one: a file is begun for it, not one after the other."""
    disk = MemoryJournalDisk(capacity_bytes=8 * FILE_BYTES)
    commits = started(disk)
    commits.commit([promise_record(container, 4, ignore) for container in range(5, 25)], lambda _done: None)
    commits.commit([filler(0), filler(1, commits.entry_bytes_max)], lambda _done: None)
    assert commits.files.active.sequence == 2
    assert commits.files.active.end == FILE_BYTES


def test_entries_that_fill_a_file_are_in_it(disk):
    commits = started(disk)
    halves = (FILE_BYTES - FILE_HEADER_BYTES) // 2 - RECORD_HEADER_BYTES
    commits.commit([filler(0, halves), filler(1, halves)], lambda _done: None)
    assert [file.end for file in commits.files.used] == [FILE_BYTES]


@pytest.fixture
def chain() -> LedgerChain:
    """Ledger 3 ends before entry 6, where ledger 5 begins. Ledger 4 was never part of the log."""
    return LedgerChain((LedgerStart(3, 0), LedgerStart(5, 6)))


def test_entries_outside_of_the_chain_are_forgotten(disk, chain):
    commits = started(disk)
    garbage = [*(entry(number, epoch=4, writer=4) for number in range(5, 9)), *map(entry, range(6, 8))]
    kept = [*map(entry, range(6)), entry(6, epoch=5, writer=5)]
    commits.commit([*kept, *garbage, keep_ledgers(CONTAINER, chain, ignore)], lambda _done: None)
    assert recovered_logs(commits)[CONTAINER].runs == (HeldRun(3, 0, 6, 6), HeldRun(5, 6, 7, 7))
    reader = JournalReader(commits.index)
    assert [stored.header.entry for stored in reader.ledger(CONTAINER, 3, 0, 9)] == list(range(6))
    assert [stored.header.entry for stored in reader.ledger(CONTAINER, 4, 0, 9)] == []


def test_a_ledger_before_the_truncation_point_is_no_run(disk):
    commits = started(disk)
    shorter = LedgerChain((LedgerStart(3, 0), LedgerStart(5, 2)))
    truncated = [*map(entry, range(5)), truncation_record(CONTAINER, 3, 3, ignore)]
    commits.commit([*truncated, keep_ledgers(CONTAINER, shorter, ignore)], lambda _done: None)
    assert recovered_logs(commits)[CONTAINER].runs == ()


def test_a_reading_ends_though_its_entries_are_forgotten(disk, chain):
    commits = started(disk)
    commits.commit([*map(entry, range(8))], lambda _done: None)
    reading = JournalReader(commits.index).ledger(CONTAINER, 3, 0, 8)
    assert next(reading).header.entry == 0
    commits.commit([keep_ledgers(CONTAINER, chain, ignore)], lambda _done: None)
    assert [stored.header.entry for stored in reading] == list(range(1, 8))


def test_a_file_with_entries_outside_of_the_chain_is_freed(disk, chain):
    """The truncation point never reaches them. The promise is written again; nothing else is needed."""
    commits = started(disk)
    garbage = [entry(number, epoch=4, writer=4) for number in range(50, 60)]
    commits.commit([promise_record(CONTAINER, 5, ignore), *garbage], lambda _done: None)
    commits.commit([filler(number) for number in range(8)], lambda _done: None)
    assert FIRST_FILE in disk.names()
    commits.commit([keep_ledgers(CONTAINER, chain, ignore)], lambda _done: None)
    assert FIRST_FILE not in disk.names()
    assert recovered(disk) == RecoveredLog(5)


def test_a_file_with_a_damaged_entry_stays_after_forgetting(disk, chain):
    """Only this file says that the replica had the entry. Without it a recovery could count it as never written."""
    write(disk, *map(entry, range(4)), entry(4, epoch=4, writer=4))
    write(disk)
    damage_payload(disk, 3)
    commits = started(disk, 2)
    commits.commit([truncation_record(CONTAINER, 3, 3, ignore), keep_ledgers(CONTAINER, chain, ignore)], lambda _: None)
    commits.commit([filler(number) for number in range(12)], lambda _done: None)
    assert FIRST_FILE in disk.names()
    assert recovered(disk).runs[0] == HeldRun(3, 3, 3, 4)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_of_a_file_is_known_after_forgetting(disk, chain, seed):
    """The same as if the entries had never been there, so that exactly the others are copied."""
    random = Random(seed)
    commits = started(disk)
    for number in range(40):
        epoch = 3 if number < 6 else random.choice((3, 4, 5))
        commits.commit([entry(number, epoch=epoch, writer=5)], lambda _done: None)
    commits.commit([keep_ledgers(CONTAINER, chain, ignore)], lambda _done: None)
    kept = [each.record_bytes for file in commits.files.used for each in file.stretches.get(CONTAINER, ())]
    runs = recovered_logs(commits)[CONTAINER].runs
    held = [stored for run in runs for stored in JournalReader(commits.index).ledger(CONTAINER, run.epoch, 0, 40)]
    assert sum(kept) == len(held) * RECORD_BYTES
    commits.commit([entry(40, epoch=5, writer=5)], lambda _done: None)
    (copy,) = (FileCopy(file, file.needed({}), commits.index) for file in commits.files.used)
    copied = [pending.entry for portion in copy.portions() for pending, _, _ in portion]
    assert copied == sorted([*(stored.header.entry for stored in held), 40])


def test_a_copy_has_each_entry_once_in_bounded_portions(disk, monkeypatch):
    """The stretches of two containers overlap in the file."""
    monkeypatch.setattr(file_copies, "PORTION_BYTES", 2 * len(PAYLOAD))
    commits = started(disk)
    for number in range(5):
        other = entry(number, acknowledged=number)
        other.container, other.codec = OTHER, Codec.ZSTD
        commits.commit([entry(number), other], lambda _done: None)
    (file,) = commits.files.used
    portions = list(FileCopy(file, file.needed({}), commits.index).portions())
    assert [len(portion) for portion in portions] == [2] * 5
    copies = [copied for portion in portions for copied, _, _ in portion]
    assert [(copied.container, copied.entry) for copied in copies] == [
        (container, number) for number in range(5) for container in (CONTAINER, OTHER)
    ]
    assert [copied.acknowledged_before for copied in copies if copied.container == OTHER] == list(range(5))
    assert {copied.codec for copied in copies if copied.container == OTHER} == {Codec.ZSTD}
    assert all(copied.copied and copied.payload_checksum is not None for copied in copies)


def test_a_volume_without_room_for_the_identity_says_so():
    disk = MemoryJournalDisk(capacity_bytes=31)
    with pytest.raises(OSError, match="no room for journal-id, which has 32 bytes: free one block"):
        started(disk)


class PowerCuts:
    """Checks before each step of the disk that a power failure would lose nothing that was durable."""

    def __init__(self, disk: MemoryJournalDisk) -> None:
        self.disk = disk
        self.promised: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.found: list[str] = []
        self.steps = 0

    def committed(self, records: list[PendingRecord]) -> None:
        for record in records:
            if record.kind is RecordKind.PROMISE:
                self.promised[record.container] = record.writer_epoch
            elif record.kind is RecordKind.ENTRY:
                self.held[record.container] = record.entry

    def before(self, _step: str) -> None:
        self.steps += 1
        commits = JournalCommits(self.disk.cut_power(self.steps), lambda: 1, file_bytes=FILE_BYTES, copies=3)
        commits.load(lambda: None)
        logs = recovered_logs(commits)
        for container, promise in self.promised.items():
            if logs[container].promise < promise:
                self.found.append(f"promise of {container}")
        for container, last in self.held.items():
            log = logs[container]
            if reported_position(LedgerChain((LedgerStart(3, 0),)), log.truncated_before, log.runs) < last:
                self.found.append(f"entry {last} of {container}")


def run_with_power_cuts(seed: int, disk: MemoryJournalDisk) -> tuple[PowerCuts, int]:
    """Entries of two containers, one of them mostly idle. A truncation point comes with an entry, or on its own."""
    random = Random(seed)
    cuts = PowerCuts(disk)
    commits = started(disk)
    disk.before = cuts.before
    ends, truncated_before = [0, 0], [0, 0]
    commits.commit([promise_record(container, 3, ignore) for container in (CONTAINER, OTHER)], cuts.committed)
    for _ in range(60):
        batch = []
        for _ in range(random.randint(1, 3)):
            container = OTHER if random.random() < 0.8 else CONTAINER
            if random.random() < 0.4:
                truncated_before[container] = random.randint(truncated_before[container], ends[container])
            if random.random() < 0.2:
                batch.append(truncation_record(container, 3, truncated_before[container], ignore))
                continue
            payload = bytes(random.randint(0, 3_000))
            number, ends[container] = ends[container], ends[container] + 1
            record = entry(number, truncated_before=truncated_before[container])
            record.container, record.parts, record.length = container, (payload,), len(payload)
            batch.append(record)
        commits.commit(batch, cuts.committed)
    return cuts, commits.files.active.sequence - len(commits.files.used)


@pytest.mark.parametrize("seed", range(6))
def test_a_power_failure_at_any_step_loses_nothing(disk, seed):
    cuts, freed = run_with_power_cuts(seed, disk)
    assert cuts.found == []
    assert freed > 0


def forget_truncation_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises that are written again do not carry the truncation point."""
    monkeypatch.setattr(journal_commits, "promise_record", lambda *args: promise_record(*args[:3]))


def test_power_failures_find_a_file_that_is_freed_too_early(disk, monkeypatch):
    """A deliberate bug: the truncation points of a commit count before it is durable."""
    honest = JournalCommits.commit

    def commit(self: JournalCommits, batch: list[PendingRecord], committed: Callable[..., None]) -> None:
        for pending in batch:
            known = self.index._containers.get(pending.container)
            if known is not None and self.index._truncate(known, pending):
                self._free_files()
        honest(self, batch, committed)

    monkeypatch.setattr(JournalCommits, "commit", commit)
    forget_truncation_points(monkeypatch)  # else a promise makes it durable
    assert any(run_with_power_cuts(seed, MemoryJournalDisk())[0].found for seed in range(6))


def test_power_failures_find_a_truncation_point_that_is_lost(disk, monkeypatch):
    """A deliberate bug: a promise that is written again does not carry the truncation point."""
    forget_truncation_points(monkeypatch)
    assert any(run_with_power_cuts(seed, MemoryJournalDisk())[0].found for seed in range(6))
