"""Files of format 1, as release 0.1.0 left them: read, never written, and gone with the next checkpoints."""

from __future__ import annotations

import threading
from random import Random

import format_1_journals as format_1
import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RecordKind
from headrace.model.errors import CorruptError, FencedError
from headrace.segmentstore.log import journal_versions
from headrace.segmentstore.log.entry_runs import LedgerState
from headrace.segmentstore.log.journal_format import FILE_HEADER_BYTES, FileHeader, RecordHeader
from headrace.segmentstore.log.journal_format_1 import Format1
from headrace.segmentstore.log.journal_scan import RecordScan
from headrace.segmentstore.log.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger, OneCopyLedgers

WAIT_S = 20
FILE_HEX = "48524a4f55524e4c0000000200000000000000050102030405060708000000000000270f1a4b64f1"
FIRST_FILE_HEX = "48524a4f55524e4c0000000100000000000000050102030405060708000000000000270f68163856"
RECORD_HEX = (
    "48524a520102030405060708571c84d400000002000000070000000000000003000000000000000400000000000000010000000000001000"
)
RECORD = (format_1.SALT, 2, 3, 4, 1, 4096, b"payload")


def start(disk: MemoryJournalDisk, seed: int = 1, **settings: int) -> tuple[Journal, OneCopyLedgers]:
    random = Random(seed)
    journal = Journal(
        disk, lambda: random.getrandbits(64), lambda call: call(), **{"file_bytes": format_1.FILE_BYTES, **settings}
    )
    journal.start()
    return journal, OneCopyLedgers(journal)


def append(ledger: OneCopyLedger, *payloads: bytes) -> None:
    reached = threading.Semaphore(0)
    for payload in payloads:
        ledger.append([payload], lambda _error: reached.release())
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)


def found(ledger: OneCopyLedger) -> list[tuple[int, bytes]]:
    return [(entry.entry, bytes(entry.payload).rstrip(b"\0")) for entry in ledger.recover()]


def versions(disk: MemoryJournalDisk) -> list[int]:
    names = [name for name in disk.names() if name.startswith("journal-0")]
    return [int.from_bytes(disk.open(name).read(8, 4), "big") for name in names]


@pytest.mark.parametrize(("text", "version"), [(FILE_HEX, 2), (FIRST_FILE_HEX, 1)])
def test_a_file_header_of_format_1_keeps_its_bytes(text, version):
    block = bytes.fromhex(text).ljust(FILE_HEADER_BYTES, b"\0")
    assert format_1.encode_file_header(version, 5, format_1.SALT, 9999) == block
    assert journal_versions.decode_file_header(block, "x") == FileHeader(5, format_1.SALT, 9999, version=version)


@pytest.mark.parametrize("copied", [False, True])
def test_a_record_of_format_1_keeps_its_bytes(copied):
    record = format_1.encode_record(*RECORD, copied=copied)
    if copied:
        assert record[16:56].hex() == "8" + RECORD_HEX[33:]  # the first bit of the container says so
    else:
        assert record[:56].hex() == RECORD_HEX
    file = format_1.one_file([record]).open("journal-0000000000000001")
    (read,) = RecordScan(file, Format1(format_1.SALT), None, "x")
    assert read.header == RecordHeader(RecordKind.ENTRY, 2, 3, 3, 4, 1, 0, 4096, 7, 0xF4E36970, copied)
    assert file.read(read.position, 7) == b"payload"


def test_a_journal_of_0_1_0_is_read_and_continued():
    disk = format_1.disk_of_0_1_0()
    old = {name: disk.open(name).read(0, format_1.FILE_BYTES) for name in disk.names()}
    journal, ledgers = start(disk)
    assert journal.index.ledgers(0) == [LedgerState(3, 0, 2, 2), LedgerState(5, 2, 3, 3)]
    with pytest.raises(FencedError, match="written with epoch 5"):
        ledgers.open(1, 4)
    first, second = ledgers.open(0, 6), ledgers.open(1, 6)
    kept = [(0, b"idle, copied"), (1, b"idle too"), (2, b"of epoch 5")]
    assert found(first) == kept
    assert found(second) == [(16, b"kept of 3"), (17, b"kept of 5"), (18, b"and this")]
    assert found(ledgers.open(2, 6)) == []
    append(first, b"new")
    journal.close()
    assert {name: disk.open(name).read(0, format_1.FILE_BYTES) for name in old} == old
    assert versions(disk) == [2, 2, 3]
    journal, ledgers = start(disk.cut_power(1), seed=2)
    assert found(ledgers.open(0, 7)) == [*kept, (3, b"new")]
    journal.close()


def test_files_of_format_1_vanish_with_the_next_checkpoints():
    disk = format_1.disk_of_0_1_0()
    journal, ledgers = start(disk, copy_from_files=1000)
    opened = [ledgers.open(container, 6) for container in (0, 1, 2)]
    for ledger in opened:
        append(ledger, b"a checkpoint")
        ledger.truncate(ledger.next_entry - 1)
    append(opened[0], b"more")
    journal.close()
    assert set(versions(disk)) == {3}


def test_entries_of_format_1_are_copied_into_files_of_format_2():
    disk = format_1.disk_of_0_1_0()
    journal, ledgers = start(disk, copy_from_files=2)
    idle, busy = ledgers.open(0, 6), ledgers.open(1, 6)
    while 2 in versions(disk):
        append(busy, bytes(1000))
        busy.truncate(busy.next_entry)
    assert journal.copied_bytes > 0
    expected = [(0, b"idle, copied"), (1, b"idle too"), (2, b"of epoch 5")]
    assert found(idle) == expected
    journal.close()
    journal, ledgers = start(disk, seed=2)
    assert found(ledgers.open(0, 7)) == expected
    assert [each.epoch for each in journal.index.ledgers(0)] == [3, 5]
    journal.close()


def test_a_file_of_format_1_is_not_continued_on_a_full_volume():
    """Its records are only read. The error names the cause, and the log stays as it is."""
    disk = format_1.disk_of_0_1_0()
    journal, _ = start(disk)
    journal.close()
    for name in disk.names():
        if name.startswith("spare-"):
            disk.remove(name)
    disk.capacity_bytes = sum(disk.open(name).size_bytes for name in disk.names() if name.startswith("journal-0"))
    disk.remove("journal-0000000000000005")
    disk.capacity_bytes = sum(disk.open(name).size_bytes for name in disk.names())
    with pytest.raises(OSError, match="No space left"):
        start(disk)
    assert versions(disk) == [2, 2]


def records(*payloads: bytes, commit_starts: list[int] | None = None) -> list[bytes]:
    made, position = [], FILE_HEADER_BYTES
    for entry, payload in enumerate(payloads):
        commit_start = commit_starts[entry] if commit_starts else FILE_HEADER_BYTES
        made.append(format_1.encode_record(format_1.SALT, 0, 1, entry, 0, commit_start, payload))
        position += len(made[-1])
    return made


def test_a_torn_end_of_a_file_of_format_1_is_cut():
    disk = format_1.one_file(records(b"whole", b"torn"))
    disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + 56 + 5 + 56 + 1)
    journal, ledgers = start(disk)
    assert found(ledgers.open(0, 2)) == [(0, b"whole")]
    journal.close()


def test_damage_before_durable_bytes_in_format_1_is_refused():
    second_commit = FILE_HEADER_BYTES + 56 + 7
    disk = format_1.one_file(records(b"damaged", b"durable", commit_starts=[FILE_HEADER_BYTES, second_commit]))
    disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + 56 + 1)
    with pytest.raises(CorruptError, match="damaged at 4096"):
        start(disk)


def test_empty_entries_of_format_1_only_carry_truncation_points():
    disk = format_1.one_file(
        [
            format_1.encode_record(format_1.SALT, 0, 1, 0, 0, FILE_HEADER_BYTES, b"old"),
            format_1.encode_record(format_1.SALT, 0, 1, 1, 0, FILE_HEADER_BYTES, b"needed"),
            format_1.encode_record(format_1.SALT, 0, 1, 2, 1, FILE_HEADER_BYTES, b""),
        ],
        version=1,
    )
    journal, ledgers = start(disk)
    ledger = ledgers.open(0, 2)
    assert found(ledger) == [(1, b"needed")]
    assert ledger.next_entry == 3
    journal.close()
