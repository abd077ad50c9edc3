"""Where the records of a file end: a torn commit is cut, and damage of durable records is an error or a known gap."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal import journal_scan
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2, LostRecordsError, RecordHeader
from headrace.segmentstore.log.journal.journal_scan import RecordScan

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
