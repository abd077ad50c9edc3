"""What a journal writes, and which files it frees, driven by hand: no thread, no clock."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model import store_volume
from headrace.model.container_logs import LedgerChain, LedgerStart
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.segmentstore.log.journal.entry_runs import LedgerState
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_files import Pin
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.pending_records import (
    PendingRecord,
    drop_record,
    ignore,
    keep_ledgers,
    promise_record,
    truncation_record,
)

FILE_BYTES = 16 << 10
ROOM_BYTES = FILE_BYTES - FILE_HEADER_BYTES
"""Of one file, for records."""

FIRST_FILE = "journal-0000000000000001"
PAYLOAD = b"p" * 20
RECORD_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)


def made(disk: MemoryJournalDisk, seed: int = 0, **settings: Any) -> JournalCommits:
    random = Random(seed)
    return JournalCommits(disk, lambda: random.getrandbits(64), **{"file_bytes": FILE_BYTES} | settings)


def begun(disk: MemoryJournalDisk, seed: int = 0, **settings: Any) -> JournalCommits:
    commits = made(disk, seed, **settings)
    commits.load(lambda: None)
    commits.begin()
    return commits


def entry(number: int, payload: bytes = PAYLOAD, container: int = 0) -> PendingRecord:
    return PendingRecord(RecordKind.ENTRY, container, 4, 4, number, 0, 0, (payload,), len(payload), ignore)


def write(commits: JournalCommits, *records: PendingRecord) -> None:
    commits.commit(list(records), lambda _done: None)


def filler(commits: JournalCommits, left_bytes: int = 0) -> bytes:
    """The payload of an entry that leaves so many bytes of the file."""
    active = commits.files.active
    return bytes(active.file.size_bytes - active.end - RECORD_HEADER_BYTES - left_bytes)


def entries(commits: JournalCommits, container: int = 0) -> list[LedgerState]:
    return commits.index.ledgers(container)


def test_smallest_file_has_room_for_an_entry_of_one_byte():
    smallest = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 1
    with pytest.raises(InvalidRequestError, match=f"of {smallest - 1} bytes holds no record"):
        made(MemoryJournalDisk(), file_bytes=smallest - 1)
    disk = MemoryJournalDisk()
    commits = begun(disk, file_bytes=smallest)
    assert commits.entry_bytes_max == 1
    write(commits, *(entry(number, b"x") for number in range(3)))
    assert entries(commits) == [LedgerState(4, 0, 3, 3)]
    assert len(commits.files.used) == 3
    commits.files.close()
    assert entries(begun(disk, 1, file_bytes=smallest)) == [LedgerState(4, 0, 3, 3)]


def test_volume_is_shared_by_one_journal_unless_said_otherwise():
    spaces = [made(MemoryJournalDisk()).space()]
    spaces += [made(MemoryJournalDisk(), logs_on_volume=count).space() for count in (1, 2)]
    assert spaces[0] == spaces[1] != spaces[2]


@pytest.mark.parametrize("settings", [{}, {"copies": 1}, {"copies": 2}], ids=["unsaid", "one", "two"])
def test_damage_is_tolerated_with_a_second_copy(settings: dict[str, int]):
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, entry(0))
    commits.mark_end()
    commits.files.close()
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_HEADER_BYTES, 1)
    if settings.get("copies") == 2:
        assert begun(disk, 1, **settings).damaged_entries == 1
    else:
        with pytest.raises(CorruptError):
            begun(disk, 1, **settings)


def test_damaged_entry_keeps_its_file_as_it_is():
    """Copies of its neighbours would free it, and only this file says that the entry was here."""
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, entry(0), entry(1, bytes(500)))
    write(commits, *(entry(number, filler(commits) if number == 2 else bytes(9_000)) for number in range(2, 12)))
    write(commits, truncation_record(0, 4, 1, ignore))
    commits.files.close()
    settings = {"copies": 3, "copy_from_files": 2}
    whole = begun(disk.cut_power(0), 1, **settings)
    write(whole, truncation_record(0, 4, 1, ignore))
    assert whole.oldest_needed_bytes[0] > 500
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_BYTES + RECORD_HEADER_BYTES, 1)
    damaged = begun(disk, 1, **settings)
    assert damaged.files.used[0].damaged
    assert damaged.oldest_needed_bytes == whole.oldest_needed_bytes
    assert damaged.copy_to_begin() is None


class _StopError(Exception):
    """The journal is being closed."""


@pytest.mark.parametrize("asked", range(1, 5))
def test_start_ends_when_the_journal_is_closed(asked: int):
    """It is asked before each of three records, and before each window of the last commit is written again."""
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, entry(0))
    write(commits, entry(1), entry(2))
    commits.files.close()
    left = [asked]

    def check_open() -> None:
        left[0] -= 1
        if not left[0]:
            raise _StopError

    with pytest.raises(_StopError):
        made(disk, 1).load(check_open)


def test_nothing_is_written_behind_an_end_that_may_be_torn():
    """A promise in a file that is not needed is written again when the journal begins, not while it is loaded."""
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, promise_record(9, 3, ignore))
    write(commits, entry(0, filler(commits)))

    def fail(step: str) -> None:
        if step == "write" and commits.synced_commits == 3:
            raise OSError(errno.EIO, "the store is killed before the promise is written again")

    disk.before = fail
    with pytest.raises(OSError, match="is killed"):
        write(commits, truncation_record(0, 4, 1, ignore))
    disk = disk.cut_power(0)
    commits = made(disk, 1)
    commits.load(lambda: None)
    assert (len(commits.files.used), commits.synced_commits) == (2, 0)
    commits.begin()
    assert commits.files.used[0].name != FIRST_FILE
    assert commits.index.promises == {9: 3}
    commits.files.close()
    assert begun(disk, 2).index.promises == {9: 3}


def test_journal_set_aside_keeps_no_room_for_its_promises():
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, promise_record(9, 3, ignore), entry(0))
    commits.mark_end()
    commits.files.close()
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 5, 1)
    commits = begun(disk, 1, copies=3)
    assert (entries(commits), commits.index.promises) == ([], {})
    write(commits, entry(0))
    write(commits, entry(1, filler(commits)))
    assert len(commits.files.used) == 1, "the entry has the whole room"


def without_room(disk: MemoryJournalDisk) -> MemoryJournalDisk:
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    disk.capacity_bytes = sum(disk.open(name).size_bytes for name in disk.names())
    return disk


def killed_before_it_frees(left_bytes: int, *records: PendingRecord) -> MemoryJournalDisk:
    """Two files: the first one has `records` and an entry, the second one truncates that and has this room left.

    The store was killed before it could free the first file. The volume has no room for another one.
    """
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, *records)
    write(commits, entry(0, filler(commits)))
    length = ROOM_BYTES - 2 * RECORD_HEADER_BYTES - left_bytes
    write(commits, entry(1, bytes(length)))
    synced = commits.synced_commits

    def fail(_step: str) -> None:
        if commits.synced_commits > synced:
            raise OSError(errno.EIO, "the store is killed")

    disk.before = fail
    with pytest.raises(OSError, match="is killed"):
        write(commits, truncation_record(0, 4, 1, ignore))
    disk = disk.cut_power(0)
    assert FIRST_FILE in disk.names()
    return without_room(disk)


def test_full_volume_frees_a_file_before_it_needs_one():
    commits = begun(killed_before_it_frees(0), 1)
    assert [each.sequence for each in commits.files.used] == [2, 3]


def test_full_volume_moves_promises_to_the_end_of_its_last_file():
    disk = killed_before_it_frees(RECORD_HEADER_BYTES, promise_record(9, 3, ignore))
    commits = begun(disk, 1)
    assert [each.sequence for each in commits.files.used] == [2, 3]
    assert commits.files.active.end == FILE_HEADER_BYTES
    assert commits.files.used[0].end == FILE_BYTES, "the promise is in its last room"
    commits.files.close()
    assert begun(disk, 2).index.promises == {9: 3}


def test_torn_commit_is_wiped_before_promises_follow():
    """Else its second record would follow on the promise, which is as long as the first one, after the next crash."""
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, promise_record(9, 3, ignore))
    write(commits, entry(0, filler(commits)))
    commits._writes = False  # it writes no promise again, and keeps the first file
    torn_bytes = 2 * RECORD_HEADER_BYTES + RECORD_BYTES
    write(commits, entry(1, bytes(ROOM_BYTES - 2 * RECORD_HEADER_BYTES - torn_bytes)))
    write(commits, truncation_record(0, 4, 1, ignore))
    end = commits.files.active.end
    write(commits, truncation_record(0, 4, 1, ignore), entry(2))
    assert [each.sequence for each in commits.files.used] == [1, 2]
    commits.files.close()
    disk.damage("journal-0000000000000002", end + 5)
    commits = made(without_room(disk), 1)
    commits.load(lambda: None)

    def fail(_step: str) -> None:
        if commits.synced_commits:
            raise OSError(errno.EIO, "the store is killed")

    disk.before = fail
    with pytest.raises(OSError, match="is killed"):
        commits.begin()
    commits = begun(disk.cut_power(0), 2)
    assert commits.index.promises == {9: 3}
    assert entries(commits) == [LedgerState(4, 1, 2, 2)]


def with_a_promise() -> JournalCommits:
    """The first file has a promise and is full; the second one has an entry."""
    commits = begun(MemoryJournalDisk())
    write(commits, promise_record(9, 3, ignore))
    write(commits, entry(0, filler(commits)))
    write(commits, entry(1))
    return commits


@pytest.mark.parametrize("container", [0, 9])
@pytest.mark.parametrize(("left_bytes", "files"), [(RECORD_HEADER_BYTES, 2), (RECORD_HEADER_BYTES - 1, 3)])
def test_entries_leave_room_for_promises_of_older_files(left_bytes: int, files: int, container: int):
    commits = with_a_promise()
    write(commits, entry(2, filler(commits, left_bytes), container))
    assert len(commits.files.used) == files
    assert entries(commits, container)[0].next_entry == 3


@pytest.mark.parametrize(("container", "files"), [(9, 2), (8, 3)], ids=["of the older file", "new"])
def test_room_for_promises_is_for_those_of_older_files(container: int, files: int):
    commits = with_a_promise()
    write(commits, entry(2, filler(commits, RECORD_HEADER_BYTES)))
    write(commits, promise_record(container, 4, ignore))
    assert len(commits.files.used) == files
    assert commits.index.promises[container] == 4


def test_first_entry_of_a_file_may_fill_it():
    commits = with_a_promise()
    write(commits, entry(2, filler(commits, RECORD_HEADER_BYTES)))
    write(commits, entry(3, bytes(commits.entry_bytes_max)))
    assert [each.end for each in commits.files.used] == [FILE_BYTES, FILE_BYTES - RECORD_HEADER_BYTES, FILE_BYTES]


@pytest.mark.parametrize(("left_bytes", "is_marked"), [(2 * RECORD_HEADER_BYTES, True), (RECORD_HEADER_BYTES, False)])
def test_mark_leaves_room_for_promises_of_older_files(left_bytes: int, is_marked: bool):
    commits = with_a_promise()
    write(commits, entry(2, filler(commits, left_bytes)))
    synced = commits.synced_commits
    commits.mark_end()
    assert commits.synced_commits == synced + is_marked


def test_mark_may_fill_a_file():
    commits = begun(MemoryJournalDisk())
    write(commits, entry(0, filler(commits, RECORD_HEADER_BYTES)))
    commits.mark_end()
    assert (len(commits.files.used), commits.files.active.end) == (1, FILE_BYTES)


def test_promise_that_is_lower_does_not_count():
    """The file with the higher one is freed only after that was written again."""
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, promise_record(9, 5, ignore))
    write(commits, entry(0, filler(commits)))
    write(commits, promise_record(9, 3, ignore), entry(1))
    write(commits, truncation_record(0, 4, 1, ignore))
    assert [each.sequence for each in commits.files.used] == [2]
    commits.files.close()
    assert begun(disk, 1).index.promises == {9: 5}


def chained() -> JournalCommits:
    """The first file has two entries of container 0 and is full; the second one has an entry of container 1."""
    commits = begun(MemoryJournalDisk())
    write(commits, entry(0))
    write(commits, entry(1, filler(commits)))
    write(commits, entry(0, container=1))
    commits.space_changed = False
    return commits


def chain(*starts: LedgerStart) -> PendingRecord:
    return keep_ledgers(0, LedgerChain(starts), ignore)


def test_file_without_entries_of_the_chain_is_freed():
    commits = chained()
    write(commits, chain(LedgerStart(5, 0)))
    assert [each.sequence for each in commits.files.used] == [2]
    assert (commits.oldest_sequence, commits.active_sequence) == (2, 2)
    assert entries(commits) == []


def test_entry_behind_the_end_of_its_ledger_is_not_needed():
    commits = chained()
    write(commits, chain(LedgerStart(4, 0), LedgerStart(5, 1)))
    assert (commits.oldest_sequence, commits.active_sequence) == (1, 2)
    assert commits.oldest_needed_bytes == {0: RECORD_BYTES}
    assert commits.space_changed


def test_chain_with_all_entries_changes_nothing():
    commits = chained()
    synced = commits.synced_commits
    write(commits, chain(LedgerStart(4, 0)))
    assert not commits.space_changed
    assert commits.synced_commits == synced, "nothing is written"


def test_dropped_container_needs_no_file():
    commits = chained()
    write(commits, drop_record(0, 4, ignore))
    assert [each.sequence for each in commits.files.used] == [2]
    assert entries(commits, 1) == [LedgerState(4, 0, 1, 1)]


def lagging() -> JournalCommits:
    """Container 0 needs one entry of the oldest of four files; of the others little is needed."""
    commits = begun(MemoryJournalDisk(), copy_from_files=4)
    write(commits, entry(0))
    whole = bytes(commits.entry_bytes_max)
    for number, payload in enumerate([filler(commits), whole, whole, PAYLOAD]):
        write(commits, entry(number, payload, container=1))
    write(commits, truncation_record(1, 4, 3, ignore))
    return commits


def test_needed_part_of_the_oldest_file_is_copied_once():
    commits = lagging()
    copy = commits.copy_to_begin()
    assert copy is not None
    assert commits.copy_to_begin() is None, "one copy at a time"
    for portion in copy.portions():
        commits.write_portion(copy, portion)
    assert [each.sequence for each in commits.files.used] == [1, 2, 3, 4], "it is still being read"
    commits.end_copy(copy, is_complete=True)
    assert [each.sequence for each in commits.files.used] == [4]
    assert (entries(commits), commits.copied_bytes) == ([LedgerState(4, 0, 1, 1)], len(PAYLOAD))
    places = [piece.log_file for container in (0, 1) for piece in commits.index.pieces(container)]
    assert places == [commits.files.active] * 2, "nothing is looked for in files that may be used again"


def test_file_that_is_still_read_is_not_copied_again():
    """The next file is copied when its turn comes."""
    commits = lagging()
    reading = Pin([commits.files.used[0]])
    copy = commits.copy_to_begin()
    assert copy is not None
    for portion in copy.portions():
        commits.write_portion(copy, portion)
    commits.end_copy(copy, is_complete=True)
    assert [each.sequence for each in commits.files.used] == [1, 2, 3, 4]
    assert commits.copy_to_begin() is None
    del reading
    write(commits, entry(1))
    whole = bytes(commits.entry_bytes_max)
    for number in range(4, 7):
        write(commits, entry(number, whole, container=1))
    write(commits, truncation_record(1, 4, 7, ignore))
    assert [each.sequence for each in commits.files.used] == [4, 5, 6, 7, 8]
    assert commits.copy_to_begin() is not None


def test_file_that_cannot_be_copied_is_kept():
    commits = lagging()
    copy = commits.copy_to_begin()
    assert copy is not None
    commits.end_copy(copy, is_complete=False)
    assert [each.sequence for each in commits.files.used] == [1, 2, 3, 4]
    assert commits.copy_to_begin() is None


def test_entry_that_was_truncated_meanwhile_is_not_copied():
    commits = lagging()
    copy = commits.copy_to_begin()
    assert copy is not None
    portions = list(copy.portions())
    write(commits, truncation_record(0, 4, 1, ignore))
    for portion in portions:
        commits.write_portion(copy, portion)
    commits.end_copy(copy, is_complete=True)
    assert (entries(commits), commits.copied_bytes) == ([], 0)


@pytest.mark.parametrize("copy_from_files", [4, 5])
def test_few_files_are_not_copied(copy_from_files: int):
    commits = lagging()
    commits._copy_from_files = copy_from_files
    assert (commits.copy_to_begin() is not None) is (copy_from_files == 4)


def test_promise_without_room_keeps_its_file():
    """No file is begun only for it: the next one that entries need has room for it."""
    commits = begun(MemoryJournalDisk())
    write(commits, promise_record(9, 3, ignore), entry(0))
    write(commits, entry(1, filler(commits)))
    write(commits, entry(0, bytes(commits.entry_bytes_max), container=1))
    write(commits, chain(LedgerStart(5, 0)))
    assert [each.sequence for each in commits.files.used] == [1, 2]
    write(commits, entry(1, container=1))
    commits.recycle()
    assert [each.sequence for each in commits.files.used] == [2, 3]
    assert commits.index.promises == {9: 3}


def test_space_is_that_of_its_files_and_its_volume():
    disk = MemoryJournalDisk(capacity_bytes=64 * FILE_BYTES)
    commits = begun(disk)
    write(commits, entry(0, bytes(1_000)))
    space, found = commits.space(), disk.space()
    assert found.free_bytes < found.total_bytes
    assert space.log_bytes == commits.files.log_bytes < space.volume_bytes == commits.files.volume_bytes
    assert space.room_bytes == store_volume.room_bytes(found.total_bytes, found.free_bytes, space.volume_bytes, 1)
    assert space.file_bytes == FILE_BYTES


def test_places_in_a_commit_are_those_of_the_next_scan():
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, *(entry(number, bytes(100 * number)) for number in range(4)), entry(0, container=1))
    (written,) = commits.files.used
    commits.files.close()
    (scanned, _) = begun(disk, 1).files.used
    assert written.stretches == scanned.stretches


def test_chain_frees_no_file_with_a_damaged_entry_of_it():
    disk = MemoryJournalDisk()
    commits = begun(disk)
    write(commits, entry(0))
    write(commits, entry(1, filler(commits)))
    write(commits, entry(0, container=1))
    commits.files.close()
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_HEADER_BYTES, 1)
    commits = begun(disk, 1, copies=3)
    write(commits, chain(LedgerStart(4, 0), LedgerStart(5, 1)))
    assert commits.files.used[0].name == FIRST_FILE
    assert entries(commits) == [LedgerState(4, 0, 0, 1)]
