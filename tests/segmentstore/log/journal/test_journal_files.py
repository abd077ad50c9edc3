"""Which files of a journal are needed, which one it writes into, and how much room they leave."""

from __future__ import annotations

import errno
from array import array
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal.journal_files import (
    SPARE_FILES_READY,
    STRETCHES_PER_FILE,
    JournalFiles,
    LogFile,
    Stretch,
    needed_bytes,
)
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2, LostRecordsError

FILE_BYTES = 64 << 10
IDENTITY_BYTES = 32
PART = 100
"""A stretch of the file in `log_file` begins so many bytes behind the one before."""

HEADER = Format2.header_bytes


def opened(disk: MemoryJournalDisk, seed: int = 0) -> JournalFiles:
    random = Random(seed)
    files = JournalFiles(disk, FILE_BYTES, lambda: random.getrandbits(64))
    files.load()
    return files


def log_file() -> LogFile:
    file: Any = SimpleNamespace(size_bytes=PART * STRETCHES_PER_FILE)
    return LogFile("journal-1", 1, file, Format2(1))


def test_records_of_a_container_are_noted_as_stretches():
    made = log_file()
    for entry, start, end in [(4, 50, 70), (5, 80, 100), (3, 149, 160), (6, 150, 180), (7, 249, 260)]:
        made.note(0, entry, start, end)
    made.note(1, 9, 300, 320)
    assert made.stretches == {0: [Stretch(50, 160, 51, 5), Stretch(150, 260, 41, 7)], 1: [Stretch(300, 320, 20, 9)]}
    assert needed_bytes(made.stretches.values()) == 51 + 41 + 20


def test_stretch_is_needed_until_its_last_entry_is_truncated():
    made = log_file()
    made.note(0, 4, 50, 70)
    made.note(0, 9, 160, 180)
    made.note(1, 2, 300, 320)
    first, second, other = *made.stretches[0], made.stretches[1][0]
    assert made.needed({}) == {0: [first, second], 1: [other]}
    assert made.needed({0: 4}) == {0: [first, second], 1: [other]}
    assert made.needed({0: 5, 1: 3}) == {0: [second]}
    assert made.needed({0: 10, 1: 3}) == {}
    made.note(2, 0, 330, 340)
    assert list(made.needed({0: 10, 1: 3})) == [2], "the first entry of a log"
    made.copied = True
    assert made.needed({}) == {}


def places(first_entry: int, **lengths: int) -> Any:
    """Entries at positions `p...`, of these lengths."""
    positions = [int(name[1:]) for name in lengths]
    return SimpleNamespace(
        first_entry=first_entry, positions=array("Q", positions), lengths=array("L", lengths.values())
    )


def test_entries_that_are_left_are_noted_as_stretches_again():
    made = log_file()
    made.note(0, 1, 0, 10)
    made.replace(0, [places(20, p900=10, p999=1, p1000=40, p1099=2, p1200=10), places(4, p500=10)])
    assert made.stretches[0] == [
        Stretch(500 - HEADER, 510, 10 + HEADER, 4),
        Stretch(900 - HEADER, 1000, 10 + 1 + 2 * HEADER, 21),
        Stretch(1000 - HEADER, 1101, 40 + 2 + 2 * HEADER, 23),
        Stretch(1200 - HEADER, 1210, 10 + HEADER, 24),
    ]
    made.replace(0, [])
    made.replace(1, [])
    assert made.stretches == {}


def written(files: JournalFiles, end: int) -> None:
    """Let the active file have records up to here, with something torn behind them."""
    files.active.file.write_durably(FILE_HEADER_BYTES, [b"r" * (end - FILE_HEADER_BYTES)])
    files.active.file.write_durably(end, [b"t" * min(20, FILE_BYTES - end)])
    files.active.end = end


@pytest.mark.parametrize(("free_bytes", "continues"), [(999, True), (1000, True), (1001, False)])
def test_full_volume_continues_the_last_file_if_it_has_room(free_bytes: int, *, continues: bool):
    files = opened(MemoryJournalDisk())
    assert not files.continue_last(0), "there is none"
    files.begin()
    layout = files.format
    written(files, FILE_BYTES - 1000)
    files.format = Format2(0)
    assert files.continue_last(free_bytes) is continues
    assert files.format is layout
    torn = files.active.file.read(FILE_BYTES - 1000, 20)
    assert torn == (bytes(20) if continues else b"t" * 20)


def test_wiped_end_of_a_continued_file_is_durable():
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    written(files, FILE_BYTES - 1000)
    assert files.continue_last(0)
    for seed in range(8):
        file = disk.cut_power(seed).open(files.active.name)
        assert file.size_bytes == FILE_BYTES
        assert file.read(FILE_BYTES - 1000, 1000) == bytes(1000)
        assert file.read(FILE_BYTES - 1010, 10) == b"r" * 10


def full(*, room_in_last: int) -> MemoryJournalDisk:
    """A volume without room for another file, whose journal has one file with so many bytes left."""
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    written(files, FILE_BYTES - room_in_last)
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    disk.capacity_bytes -= disk.space().free_bytes
    return disk


def test_begin_needs_a_file_or_room_in_the_last_one():
    part = FILE_BYTES // STRETCHES_PER_FILE
    for room, begins in [(part, True), (part - 1, False)]:
        files = opened(full(room_in_last=room), 1)
        files.active.end = FILE_BYTES - room  # as a scan finds it
        if begins:
            files.begin()
        else:
            with pytest.raises(OSError, match="No space") as raised:
                files.begin()
            assert raised.value.errno == errno.ENOSPC
        assert [each.sequence for each in files.used] == [1]


def test_new_file_tells_the_end_of_the_one_before():
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    written(files, 5000)
    files.activate_next()
    salts = {each.layout.mark for each in files.used}
    assert (len(salts), files.format) == (2, files.active.layout)
    found = [(log_file.name, header.sequence, header.previous_end) for log_file, header in opened(disk, 1).load()]
    assert found == [("journal-0000000000000001", 1, 0), ("journal-0000000000000002", 2, 5000)]


def test_space_counts_files_and_the_last_record():
    files = opened(MemoryJournalDisk())
    assert (files.log_bytes, files.volume_bytes) == (0, 0)
    files.begin()
    files.activate_next()
    written(files, 5000)
    assert files.log_bytes == FILE_BYTES + 5000
    assert files.volume_bytes == (2 + len(files.spares)) * FILE_BYTES


def test_copies_leave_the_last_space_of_a_full_volume():
    files = opened(full(room_in_last=1000), 1)
    files.active.end = FILE_BYTES - 1000
    assert len(files.spares) == 0
    assert [files.room_for_copies(size) for size in (1000, 1001)] == [True, False]
    files.spares.load(files.active.name, 9)
    assert files.room_for_copies(1001)


def test_files_without_records_are_freed_newest_first():
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    written(files, 5000)
    for _ in range(2):
        files.activate_next()
    files.free_empty()
    assert [each.sequence for each in files.used] == [1]
    assert files.free_oldest().sequence == 1
    assert not files.used
    files.free_empty()
    assert [name for name in disk.names() if name.startswith("journal-0")] == []
    assert len(files.spares) >= SPARE_FILES_READY


def test_files_in_use_at_the_start_are_kept_as_spare_ones():
    """The log will need as many again."""
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    for _ in range(9):
        files.activate_next()
    files = opened(disk, 1)
    spares = len(files.spares)
    while len(files.used) > 1:
        files.free_oldest()
    assert len(files.spares) == spares + 9


def test_missing_file_between_others_is_a_loss():
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    for _ in range(2):
        files.activate_next()
    disk.remove("journal-0000000000000002")
    with pytest.raises(LostRecordsError, match="0001 and journal-0000000000000003 are missing"):
        opened(disk, 1)


def test_file_of_another_program_is_an_error():
    disk = MemoryJournalDisk()
    opened(disk).begin()
    disk.create("spare-x1", FILE_BYTES)
    with pytest.raises(CorruptError, match="spare-x1 is not the name of a journal file"):
        opened(disk, 1)


def test_journal_in_quarantine_begins_with_nothing():
    disk = MemoryJournalDisk()
    files = opened(disk)
    files.begin()
    former = files.replica_id
    closed: list[str] = []
    files.active.file.close = lambda: closed.append("journal-1")  # type: ignore[method-assign]
    files.quarantine()
    assert (closed, list(files.used), len(files.spares)) == (["journal-1"], [], 0)
    assert files.load() == []
    assert files.replica_id != former
    files.begin()
    assert files.active.sequence == 1
