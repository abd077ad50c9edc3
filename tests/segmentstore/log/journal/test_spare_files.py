"""Spare files of a journal: how many are made and kept, and the last one, which is for emergencies."""

from __future__ import annotations

import errno

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.segmentstore.log.journal.journal_files import (
    SPARE_FILES_KEPT,
    SPARE_FILES_READY,
    SPARE_PREFIX,
    SpareFiles,
)

FILE_BYTES = 1 << 20


def spare(number: int) -> str:
    return f"{SPARE_PREFIX}{number:016d}"


def spares_of(files: int, *, logs: int = 1) -> tuple[MemoryJournalDisk, SpareFiles]:
    """The spare files of a volume that has room for so many files."""
    disk = MemoryJournalDisk(capacity_bytes=files * FILE_BYTES)
    return disk, SpareFiles(disk, FILE_BYTES, logs)


def test_a_file_is_taken_and_the_next_ones_are_ready():
    disk, spares = spares_of(100)
    assert spares.is_low
    assert spares.take() == spare(1)
    assert (disk.names(), len(spares)) == ([spare(1), spare(2)], 1)
    assert spares.is_low
    spares.prepare()
    assert (sorted(disk.names()), spares.is_low) == ([spare(1), spare(2), spare(3)], False)
    spares.prepare()
    assert len(disk.names()) == 3


def test_last_file_is_taken_when_the_volume_is_full(caplog: pytest.LogCaptureFixture):
    _, spares = spares_of(2)
    assert [spares.take(), spares.take()] == [spare(1), spare(2)]
    assert "event=journal_spare_file_taken left=0" in caplog.text
    with pytest.raises(OSError, match="No space") as raised:
        spares.take()
    assert raised.value.errno == errno.ENOSPC


def test_volume_is_not_filled_to_find_out_that_it_is_full():
    disk, spares = spares_of(2)
    disk.create("other", FILE_BYTES // 2)
    attempts: list[str] = []
    disk.create = lambda name, _size: attempts.append(name)  # type: ignore[method-assign]
    disk.capacity_bytes = FILE_BYTES
    with pytest.raises(OSError, match="No space"):
        spares.prepare()
    assert attempts == []


def test_found_files_are_kept_and_their_numbers_not_used_again():
    disk, spares = spares_of(100)
    disk.create(spare(7), FILE_BYTES)
    disk.create(spare(9), FILE_BYTES + 1)
    spares.load(spare(7), 7)
    spares.load(spare(9), 9)
    assert disk.names() == [spare(7)]
    assert spares.take() == spare(7)
    assert sorted(disk.names()) == [spare(7), spare(10)]


def test_freed_files_are_kept_up_to_the_recent_backlog():
    disk, spares = spares_of(100)
    for number in range(20):
        disk.create(f"log-{number}", FILE_BYTES)
    for in_use in (4, 9, 3):
        spares.note_in_use(in_use)
    for number in range(20):
        spares.give(f"log-{number}", FILE_BYTES, files_in_use=3)
    assert len(spares) == len(disk.names()) == 9 - 3 + SPARE_FILES_READY


def test_few_freed_files_are_kept_in_any_case():
    disk, spares = spares_of(100)
    for number in range(10):
        disk.create(f"log-{number}", FILE_BYTES)
        spares.give(f"log-{number}", FILE_BYTES, files_in_use=1)
    assert len(spares) == len(disk.names()) == SPARE_FILES_KEPT


def test_files_of_another_size_are_not_kept():
    disk, spares = spares_of(100)
    disk.create("log", FILE_BYTES + 1)
    spares.give("log", FILE_BYTES + 1, files_in_use=1)
    assert (len(spares), disk.names()) == (0, [])


@pytest.mark.parametrize(("logs", "kept"), [(1, 7), (2, SPARE_FILES_KEPT)])
def test_spare_files_leave_half_of_the_room_to_others(logs: int, kept: int):
    disk, spares = spares_of(24, logs=logs)
    spares.note_in_use(50)
    for number in range(12):
        disk.create(f"log-{number}", FILE_BYTES)
        spares.give(f"log-{number}", FILE_BYTES, files_in_use=5)
    assert len(spares) == kept


def test_surplus_goes_one_by_one():
    disk, spares = spares_of(100)
    spares.note_in_use(9)
    for number in range(8):
        disk.create(f"log-{number}", FILE_BYTES)
        spares.give(f"log-{number}", FILE_BYTES, files_in_use=3)
    assert len(spares) == 8
    for _ in range(64):
        spares.note_in_use(3)
    left = []
    for _ in range(6):
        spares.remove_surplus(3)
        left.append(len(spares))
    assert left == [7, 6, 5, 4, 4, 4]
    assert len(disk.names()) == 4
