"""The format of the journal keeps its bytes, and refuses what it does not know."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import ENTRY_BYTES_MAX, RECORD_HEADER_BYTES, Codec, RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal import journal_format
from headrace.segmentstore.log.journal.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    Format2,
    LostRecordsError,
    RecordHeader,
)
from headrace.segmentstore.log.journal.journal_scan import Record, RecordScan

FILE = FileHeader(5, 0x0102030405060708, 9999, bytes(range(16)))
FILE_HEX = (
    "48524a4f55524e4c" "00000003" "0000000000000005" "0102030405060708" "000000000000270f"
    "000102030405060708090a0b0c0d0e0f"
)  # fmt: skip
FILE_CHECKSUM = "7fa82d7d"
PAYLOAD = b"payload"
ENTRY = RecordHeader(RecordKind.ENTRY, 2, 3, 9, 4, 1, 2, 4096, 7, 0xF4E36970)
MARK_HEX = "48524a320102030405060708"
ENTRY_FIELDS_HEX = (
    "01" "00" "0000" "00000002" "0000000000000003" "0000000000000009" "0000000000000004"
    "0000000000000001" "0000000000000002" "0000000000001000" "00000007" "f4e36970"
)  # fmt: skip
FLAGS_AT, KIND_AT, CODEC_AT, LENGTH_AT = 18, 16, 17, 72


def scan(content: bytes, end: int | None = None) -> tuple[list[Record], int]:
    disk = MemoryJournalDisk()
    disk.create("x", len(content))
    disk.open("x").write(0, [content])
    scan = RecordScan(disk.open("x"), Format2(FILE.salt), end, "x")
    return list(scan), scan.end


def resealed(header: bytes, position: int, value: bytes) -> bytes:
    """The header with other bytes at a position, and a right checksum."""
    changed = header[:position] + value + header[position + len(value) :]
    return changed[:12] + crc32c(changed[16:], crc32c(changed[:12])).to_bytes(4, "big") + changed[16:]


def test_a_file_header_keeps_its_bytes():
    block = journal_format.encode_file_header(FILE)
    assert len(block) == FILE_HEADER_BYTES
    assert block[:52].hex() == FILE_HEX
    assert block[52:56].hex() == FILE_CHECKSUM
    assert not any(block[56:])
    assert journal_format.decode_file_header(block, "x") == FILE


def test_a_file_of_a_later_version_is_refused():
    fields = bytes.fromhex(FILE_HEX.replace("00000003", "00000004", 1))
    block = (fields + crc32c(fields).to_bytes(4, "big")).ljust(FILE_HEADER_BYTES, b"\0")
    with pytest.raises(CorruptError, match="version 4, known is 3: start the release that wrote it") as caught:
        journal_format.decode_file_header(block, "x")
    assert not isinstance(caught.value, LostRecordsError)


@pytest.mark.parametrize(("version", "checksum"), [(1, "68163856"), (2, "1a4b64f1")])
def test_a_file_of_a_former_version_is_refused(version, checksum):
    """It is not damaged: a store with replicas would set it aside. Its header has no replica id."""
    text = f"48524a4f55524e4c{version:08x}00000000000000050102030405060708000000000000270f{checksum}"
    block = bytes.fromhex(text).ljust(FILE_HEADER_BYTES, b"\0")
    with pytest.raises(CorruptError, match=f"version {version}, known is 3") as caught:
        journal_format.decode_file_header(block, "x")
    assert not isinstance(caught.value, LostRecordsError)


@given(st.binary(max_size=100), st.integers(0, 55))
def test_damaged_file_headers_are_corrupt(garbage, position):
    with pytest.raises(CorruptError, match="damaged header"):
        journal_format.decode_file_header(garbage.ljust(FILE_HEADER_BYTES, b"\1"), "x")
    block = bytearray(journal_format.encode_file_header(FILE))
    block[position] ^= 1
    with pytest.raises(CorruptError, match="damaged header"):
        journal_format.decode_file_header(bytes(block), "x")


def test_an_entry_keeps_its_bytes():
    head = Format2(FILE.salt).encode(*ENTRY)
    assert len(head) == RECORD_HEADER_BYTES == 80
    assert head[:12].hex() == MARK_HEX
    assert head[16:].hex() == ENTRY_FIELDS_HEX
    assert head[12:16] == crc32c(head[16:], crc32c(head[:12])).to_bytes(4, "big")
    (record,), end = scan(bytes(FILE_HEADER_BYTES) + head + PAYLOAD + bytes(50))
    assert record.header == ENTRY
    assert (record.position, end) == (FILE_HEADER_BYTES + 80, FILE_HEADER_BYTES + 87)


@pytest.mark.parametrize(
    ("change", "first_bytes"),
    [
        ({"copied": True}, "01000001"),
        ({"codec": Codec.ZSTD}, "01010000"),
        ({"kind": RecordKind.PROMISE}, "02000000"),
        ({"kind": RecordKind.TRUNCATION}, "03000000"),
        ({"kind": RecordKind.DROP}, "04000000"),
    ],
    ids=str,
)
def test_records_of_each_kind_keep_their_bytes(change, first_bytes):
    payload = PAYLOAD if change.get("kind") is None else b""
    header = ENTRY._replace(length=len(payload), payload_checksum=crc32c(payload), **change)
    head = Format2(FILE.salt).encode(*header)
    assert head[16:20].hex() == first_bytes
    (record,), _ = scan(bytes(FILE_HEADER_BYTES) + head + payload)
    assert record.header == header


@pytest.mark.parametrize(
    ("position", "value"),
    [(KIND_AT, b"\0"), (KIND_AT, b"\5"), (CODEC_AT, b"\2"), (FLAGS_AT, b"\0\2"), (KIND_AT, b"\2")],
    ids=["no kind", "a kind", "a codec", "a flag", "a promise with a payload"],
)
def test_what_newer_software_wrote_is_refused_and_not_cut(position, value):
    """It is no damage: the header is whole. A torn end would be cut without an error."""
    head = resealed(Format2(FILE.salt).encode(*ENTRY), position, value)
    with pytest.raises(CorruptError, match="which this release does not know: start the release that wrote it"):
        scan(bytes(FILE_HEADER_BYTES) + head + PAYLOAD)


@pytest.mark.parametrize("length", [ENTRY_BYTES_MAX + 1, (1 << 32) - 1, 100])
def test_an_impossible_length_takes_no_memory(length):
    """Longer than any entry, or than the file: nothing of that size is read."""
    head = resealed(Format2(FILE.salt).encode(*ENTRY), LENGTH_AT, length.to_bytes(4, "big"))
    content = bytes(FILE_HEADER_BYTES) + head + PAYLOAD
    assert scan(content) == ([], FILE_HEADER_BYTES)
    with pytest.raises(CorruptError, match="damaged at 4096"):
        scan(content, len(content))


def test_a_received_record_gets_the_fields_of_this_journal():
    """In one buffer with others, without a change of the payload or its checksum."""
    received = bytearray()
    for entry in (4, 5):
        header = ENTRY._replace(entry=entry, commit_start=0)
        received += Format2(0).encode(*header) + PAYLOAD
    for offset in (0, 87):
        journal_format.set_local_fields(received, offset, FILE.salt, 4096)
    assert received[:80] == Format2(FILE.salt).encode(*ENTRY)
    found, _ = scan(bytes(FILE_HEADER_BYTES) + bytes(received))
    assert [record.header for record in found] == [ENTRY, ENTRY._replace(entry=5)]


@given(st.integers(0, 86), st.integers(1, 255))
def test_any_damage_of_a_record_is_found(position, flipped):
    raw = bytearray(Format2(FILE.salt).encode(*ENTRY) + PAYLOAD)
    raw[position] ^= flipped
    assert scan(bytes(FILE_HEADER_BYTES) + bytes(raw))[0] == []


@given(st.binary(max_size=300))
def test_no_garbage_reads_as_a_record(garbage):
    assert scan(bytes(4096) + garbage) == ([], 4096)
    if garbage:
        with pytest.raises(CorruptError):
            scan(bytes(4096) + garbage, 4096 + len(garbage))


def test_the_mark_has_the_salt():
    assert Format2(FILE.salt).mark.hex() == MARK_HEX
