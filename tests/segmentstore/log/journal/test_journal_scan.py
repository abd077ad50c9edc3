"""Where the records of a file end: a torn commit is cut, and damage of durable records is an error or a known gap."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Any

import pytest
from crc32c import crc32c

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal import journal_scan
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2, LostRecordsError, RecordHeader
from headrace.segmentstore.log.journal.journal_scan import (
    BLOCK_BYTES,
    FileWindow,
    RecordScan,
    read_around,
    write_again,
)

NAME = "journal-1"
LAYOUT = Format2(77)
PAYLOAD = b"p" * 20
RECORD_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)
ENDS = [FILE_HEADER_BYTES + count * RECORD_BYTES for count in range(9)]
"""The end of so many records."""

HEADER, IN_PAYLOAD = 30, RECORD_HEADER_BYTES + 3


def scan_of(
    commits: list[int], *damaged: tuple[int, int], end: int | None = None, tolerates: bool = False, kept: int = 64 << 10
) -> RecordScan:
    """A scan of commits of so many records each; `damaged` are records and offsets in them."""
    disk = MemoryJournalDisk()
    disk.create(NAME, kept)
    file = disk.open(NAME)
    entry = 0
    for count in commits:
        parts = []
        commit_start = ENDS[entry]
        for _ in range(count):
            checksum = crc32c(PAYLOAD)
            header = RecordHeader(RecordKind.ENTRY, 0, 1, 1, entry, 0, 0, commit_start, len(PAYLOAD), checksum)
            parts += [LAYOUT.encode(*header), PAYLOAD]
            entry += 1
        file.write(commit_start, parts)
    for record, offset in damaged:
        disk.damage(NAME, ENDS[record] + offset)
    return RecordScan(file, LAYOUT, end, NAME, tolerates_damage=tolerates)


@pytest.mark.parametrize(
    ("commits", "damaged", "records", "torn_records"),
    [
        ([1, 3], [], 4, 0),
        ([1, 3], [(1, HEADER)], 1, 3),
        ([1, 3], [(1, IN_PAYLOAD)], 1, 3),
        ([1, 3], [(2, HEADER)], 2, 2),
        ([1, 3], [(3, IN_PAYLOAD)], 3, 1),
        ([3], [(0, HEADER)], 0, 3),
    ],
)
def test_torn_last_commit_is_cut(commits, damaged, records, torn_records):
    scan = scan_of(commits, *damaged)
    assert [record.header.entry for record in scan] == list(range(records))
    assert (scan.end, scan.torn_bytes) == (ENDS[records], torn_records * RECORD_BYTES)
    starts = [ENDS[sum(commits[:index])] for index, count in enumerate(commits) for _ in range(count)]
    assert scan.commit_start == ([ENDS[0], *starts])[records]


@pytest.mark.parametrize(("record", "end"), [(0, None), (1, None), (3, ENDS[4]), (0, ENDS[4])])
@pytest.mark.parametrize("offset", [HEADER, IN_PAYLOAD])
def test_damage_of_a_durable_record_is_no_torn_commit(record: int, end: int | None, offset: int):
    """A later commit proves that the record was durable, and so does the next file."""
    with pytest.raises(CorruptError, match=f"damaged at {ENDS[record]}"):
        list(scan_of([1, 1, 2], (record, offset), end=end))


def test_record_that_ends_behind_the_known_end_is_damage():
    with pytest.raises(CorruptError, match=f"damaged at {ENDS[3]}"):
        list(scan_of([1, 3], end=ENDS[4] - 1))


def test_known_damage_is_read_over_and_counted():
    scan = scan_of([1, 1, 2], (1, IN_PAYLOAD), (3, IN_PAYLOAD), end=ENDS[4], tolerates=True)
    assert [(record.header.entry, record.is_damaged) for record in scan] == [
        (0, False),
        (1, True),
        (2, False),
        (3, True),
    ]
    assert (scan.damaged_entries, scan.end, scan.commit_start) == (2, ENDS[4], ENDS[2])


def test_commit_of_a_damaged_last_record_is_known():
    """It is written and synced again before any caller learns of its entries."""
    scan = scan_of([1, 1], (1, IN_PAYLOAD), end=ENDS[2], tolerates=True)
    assert len(list(scan)) == 2
    assert scan.commit_start == ENDS[1]


@pytest.mark.parametrize("offset", [HEADER, 5])
def test_lost_header_is_no_known_gap(offset: int):
    with pytest.raises(LostRecordsError):
        list(scan_of([1, 1, 2], (1, offset), tolerates=True))


@pytest.mark.parametrize(("damaged_entries", "lost"), [(2, False), (3, True)])
def test_disk_with_too_much_damage_is_not_trusted(monkeypatch, damaged_entries: int, lost: bool):
    monkeypatch.setattr(journal_scan, "DAMAGED_ENTRIES_MAX", 2)
    scan = scan_of([1] * 6, *((record, IN_PAYLOAD) for record in range(damaged_entries)), tolerates=True)
    if lost:
        with pytest.raises(LostRecordsError):
            list(scan)
    else:
        assert sum(record.is_damaged for record in scan) == damaged_entries


def test_payload_of_a_record_is_the_one_that_was_checked():
    scan = scan_of([2])
    assert [bytes(scan.payload(record)) for record in scan] == [PAYLOAD, PAYLOAD]


@pytest.mark.parametrize("slack_bytes", [0, 1, RECORD_HEADER_BYTES - 1, RECORD_HEADER_BYTES])
def test_record_fills_a_file_to_its_end(slack_bytes: int):
    scan = scan_of([1, 1], kept=ENDS[2] + slack_bytes)
    assert len(list(scan)) == 2
    assert (scan.end, scan.torn_bytes) == (ENDS[2], 0)
    scan = scan_of([1, 1], (1, IN_PAYLOAD), kept=ENDS[2] + slack_bytes)
    assert len(list(scan)) == 1
    assert (scan.end, scan.torn_bytes) == (ENDS[1], RECORD_BYTES)


@pytest.mark.parametrize("window_bytes", range(RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + 40))
def test_proof_of_durability_is_found_across_windows(monkeypatch, window_bytes: int):
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", window_bytes)
    with pytest.raises(CorruptError, match=f"damaged at {ENDS[0]}"):
        list(scan_of([1, 1], (0, HEADER)))


def test_torn_record_without_a_header_counts_as_far_as_known():
    scan = scan_of([1, 3], (1, HEADER), (3, HEADER))
    assert len(list(scan)) == 1
    assert scan.torn_bytes == 2 * RECORD_BYTES + RECORD_HEADER_BYTES


def test_entry_longer_than_any_is_no_record(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_scan, "ENTRY_BYTES_MAX", len(PAYLOAD) - 1)
    scan = scan_of([1])
    assert list(scan) == []
    assert scan.torn_bytes == RECORD_HEADER_BYTES, "its length is no length"
    monkeypatch.setattr(journal_scan, "ENTRY_BYTES_MAX", len(PAYLOAD))
    scan = scan_of([1, 1], (1, IN_PAYLOAD))
    assert (len(list(scan)), scan.torn_bytes) == (1, RECORD_BYTES)


@pytest.mark.parametrize("window_bytes", [*range(RECORD_BYTES, RECORD_BYTES + 30), 1 << 20])
def test_record_without_payload_at_the_end_of_a_file_is_a_proof(monkeypatch: pytest.MonkeyPatch, window_bytes: int):
    monkeypatch.setattr(journal_scan, "WINDOW_BYTES", window_bytes)
    disk = MemoryJournalDisk()
    disk.create(NAME, ENDS[1] + RECORD_HEADER_BYTES)
    file = disk.open(NAME)
    entry = RecordHeader(RecordKind.ENTRY, 0, 1, 1, 0, 0, 0, ENDS[0], len(PAYLOAD), crc32c(PAYLOAD))
    promise = RecordHeader(RecordKind.PROMISE, 0, 0, 4, 0, 0, 0, ENDS[1], 0, 0)
    file.write(ENDS[0], [LAYOUT.encode(*entry), PAYLOAD, LAYOUT.encode(*promise)])
    assert len(list(RecordScan(file, LAYOUT, None, NAME))) == 2
    disk.damage(NAME, ENDS[0] + IN_PAYLOAD)
    with pytest.raises(CorruptError, match=f"damaged at {ENDS[0]}"):
        list(RecordScan(file, LAYOUT, None, NAME))


class BadFile:
    """A file of six and a half blocks, with blocks that cannot be read."""

    size_bytes = 6 * BLOCK_BYTES + BLOCK_BYTES // 2

    def __init__(self, *bad: int, error: int = errno.EIO) -> None:
        self.content = bytes(1 + number % 255 for number in range(self.size_bytes))
        self.bad = {byte for block in bad for byte in range(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)}
        self.errors = [error]
        self.written: dict[int, int] = {}

    def read(self, position: int, length: int) -> bytes:
        if not self.bad.isdisjoint(range(position, position + length)):
            raise OSError(self.errors.pop() if len(self.errors) > 1 else self.errors[0], "a bad block")
        return self.content[position : position + length]

    def write(self, position: int, parts: list[bytes]) -> None:
        (part,) = parts
        assert part
        self.written.update(enumerate(part, position))


EDGES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1)
PARTS = [
    (first + start, min(last + end, BadFile.size_bytes))
    for first, last in ((0, 2), (0, 6), (1, 3), (2, 5), (4, 6))
    for start in (edge + first * (BLOCK_BYTES - 1) for edge in EDGES)
    for end in (edge + last * (BLOCK_BYTES - 1) for edge in EDGES)
]


@pytest.mark.parametrize("bad", [(1,), (1, 2, 4), (0, 6), (3, 5)])
def test_only_the_blocks_that_fail_are_read_as_zeros(bad: tuple[int, ...]):
    for position, end in PARTS:
        file: Any = BadFile(*bad)
        content, unreadable = read_around(file, position, end - position)
        expected = bytes(0 if byte in file.bad else file.content[byte] for byte in range(position, end))
        assert content == expected, (position, end)
        lost = sorted(file.bad & set(range(position, end)))
        assert [byte for first, after in unreadable for byte in range(first, after)] == lost
        assert all(after < later for (_, after), (later, _) in pairwise(unreadable)), "each stretch is reported once"
        write_again(file, position, end - position)
        assert file.written == {byte: file.content[byte] for byte in range(position, end) if byte not in file.bad}


def test_read_behind_the_end_of_a_bad_file_is_empty():
    file: Any = BadFile(6)
    assert read_around(file, file.size_bytes, 10) == (b"", ())
    assert read_around(file, file.size_bytes + 5, 10) == (b"", ())
    content, unreadable = read_around(file, 5 * BLOCK_BYTES, 1 << 20)
    assert (len(content), unreadable) == (BLOCK_BYTES * 3 // 2, ((6 * BLOCK_BYTES, file.size_bytes),))


@pytest.mark.parametrize(("bad", "fails"), [((1, 4), False), ((1, 2, 4), True)])
def test_disk_that_can_read_little_is_an_error(monkeypatch: pytest.MonkeyPatch, bad: tuple[int, ...], *, fails: bool):
    monkeypatch.setattr(journal_scan, "UNREADABLE_BYTES_MAX", 2 * BLOCK_BYTES)
    file: Any = BadFile(*bad)
    if fails:
        with pytest.raises(OSError, match="a bad block"):
            read_around(file, 0, file.size_bytes)
    else:
        assert len(read_around(file, 0, file.size_bytes).unreadable) == 2


@pytest.mark.parametrize("errors", [[errno.EACCES], [errno.EACCES, errno.EIO]])
def test_other_errors_of_a_read_are_no_bad_blocks(errors: list[int]):
    file: Any = BadFile(1)
    file.errors = errors  # the last one comes first
    with pytest.raises(OSError, match="a bad block") as raised:
        read_around(file, 0, file.size_bytes)
    assert raised.value.errno == errno.EACCES


@pytest.mark.parametrize(
    ("position", "length", "is_readable"),
    [
        (0, BLOCK_BYTES, True),
        (0, BLOCK_BYTES + 1, False),
        (2 * BLOCK_BYTES, 9, True),
        (2 * BLOCK_BYTES - 1, 9, False),
        (BLOCK_BYTES + 5, 9, False),
    ],
)
def test_bytes_next_to_a_bad_block_are_readable(position: int, length: int, *, is_readable: bool):
    file: Any = BadFile(1)
    window = FileWindow(file)
    window.view(0, file.size_bytes)
    assert window.is_readable(position, length) == is_readable
