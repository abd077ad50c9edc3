"""Messages between replicas: golden bytes, all messages back, and damage that is always refused."""

from __future__ import annotations

import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.log_record_header import (
    RECORD_HEADER_BYTES,
    Codec,
    RecordHeader,
    RecordKind,
    decode_record_header,
    encode_record_header,
)
from headrace.codec.replica_messages import (
    MESSAGE_BYTES_MAX,
    NACK_GAP,
    Ack,
    AckItem,
    Drop,
    Entries,
    Entry,
    HeldRun,
    Hello,
    HelloOk,
    Leaving,
    Nack,
    Open,
    Opened,
    Proof,
    Pulse,
    PulseItem,
    Read,
    ReplicaMessage,
    decode_message,
    encode_message,
)
from headrace.model.container_logs import LedgerStart, ReplicaId
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal.journal_format import Format2

OWN, OTHER = ReplicaId(b"o" * 16), ReplicaId(b"p" * 16)
PAYLOAD = b"frame"
HEADER = RecordHeader(RecordKind.ENTRY, 3, 12, 15, 2041, 1800, 2000, len(PAYLOAD), crc32c(PAYLOAD), salt=7)
ENTRY = Entry(HEADER, PAYLOAD)

GOLDEN: list[tuple[ReplicaMessage, str]] = [
    (
        Hello(1, 2, b"c" * 16, OWN, OTHER, 5, b"n" * 32),
        "01000000 0000005c 0001 0002" + "63" * 16 + "6f" * 16 + "70" * 16 + "0000000000000005" + "6e" * 32,
    ),
    (
        HelloOk(1, OTHER, 6, 1 << 20, b"m" * 32, b"q" * 32),
        "02000000 0000005e 0001" + "70" * 16 + "0000000000000006 00100000" + "6d" * 32 + "71" * 32,
    ),
    (Proof(b"q" * 32), "03000000 00000020" + "71" * 32),
    (
        Open(3, 9, 15, 1800, (LedgerStart(12, 2041),)),
        "04000000 0000002a 00000003 00000009 000000000000000f 0000000000000708 0001 000000000000000c 00000000000007f9",
    ),
    (
        Opened(3, 9, 0, 15, 1800, 2000, (HeldRun(12, 1, 2, 3),)),
        "05000000 00000043 00000003 00000009 00 000000000000000f 0000000000000708 00000000000007d0 0001"
        "000000000000000c 0000000000000001 0000000000000002 0000000000000003",
    ),
    (
        ENTRY,
        "06000000 00000055 48524a32 0000000000000007 f522ac4d 01 00 0000 00000003 000000000000000c 000000000000000f"
        "00000000000007f9 0000000000000708 00000000000007d0 0000000000000000 00000005 449b602c 6672616d65",
    ),
    (
        Ack((AckItem(3, 9, 12, 2042),), 1),
        "07000000 0000001c 0001 01 00 00000003 00000009 000000000000000c 00000000000007fa",
    ),
    (Nack(3, 9, NACK_GAP, 2041), "08000000 00000011 00000003 00000009 02 00000000000007f9"),
    (
        Read(4, 3, 12, 1, 2, 4096),
        "09000000 00000024 00000004 00000003 000000000000000c 0000000000000001 0000000000000002 00001000",
    ),
    (Entries(4, 7, True, ()), "0a000000 0000000b 00000004 00000007 01 0000"),
    (
        Pulse(1, 2, (PulseItem(3, 2000, 1800),)),
        "0b000000 00000026 0000000000000001 0000000000000002 0001 00000003 00000000000007d0 0000000000000708",
    ),
    (Drop(3, 9, 15), "0c000000 00000010 00000003 00000009 000000000000000f"),
    (Leaving(), "0d000000 00000000"),
]
NAMES = [type(message).__name__ for message, _ in GOLDEN]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=NAMES)
def test_message_keeps_its_bytes(message: ReplicaMessage, golden: str):
    assert encode_message(message).hex() == golden.replace(" ", "")
    assert decode_message(memoryview(bytes.fromhex(golden))) == message


@given(
    st.builds(
        RecordHeader,
        st.sampled_from(RecordKind),
        st.integers(0, 2**32 - 1),
        *[st.integers(0, 2**64 - 1)] * 5,
        st.integers(0, 1 << 20),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 1]),
        st.sampled_from([0, 1]),
        *[st.integers(0, 2**64 - 1)] * 2,
    )
)
def test_record_headers_come_back(header: RecordHeader):
    raw = encode_record_header(header)
    assert len(raw) == RECORD_HEADER_BYTES == 80
    assert decode_record_header(memoryview(raw)) == header


@given(st.integers(0, 84), st.integers(1, 255))
def test_any_changed_byte_of_an_entry_is_refused(position: int, change: int):
    raw = bytearray(encode_message(ENTRY))
    raw[8 + position] ^= change
    with pytest.raises(CorruptError):
        decode_message(memoryview(raw))


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_answers_to_reads_come_back(payloads: list[bytes]):
    entries = tuple(
        Entry(HEADER._replace(length=len(payload), payload_checksum=crc32c(payload), entry=number), payload)
        for number, payload in enumerate(payloads)
    )
    assert decode_message(memoryview(encode_message(Entries(1, 0, False, entries)))) == Entries(1, 0, False, entries)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(encode_message(draw(st.sampled_from([message for message, _ in GOLDEN]))))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(raw)))
        raw[position : position + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return bytes(raw)


@given(damaged() | st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(raw: bytes):
    try:
        message = decode_message(memoryview(raw))
    except CorruptError:
        return
    assert encode_message(message) == raw


@pytest.mark.parametrize("message", [message for message, _ in GOLDEN], ids=NAMES)
def test_lengths_that_lie_take_no_memory(message: ReplicaMessage):
    raw = encode_message(message)
    tracemalloc.start()
    try:
        for position in range(len(raw)):
            for claim in (b"\xff\xff", b"\xff" * 4, b"\xff" * 8):
                changed = raw[:position] + claim + raw[position + len(claim) :]
                try:
                    decode_message(memoryview(changed))
                except CorruptError:
                    continue
        assert tracemalloc.get_traced_memory()[1] < MESSAGE_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_message_that_no_receiver_accepts_is_not_sent():
    entries = (Entry(HEADER._replace(length=1 << 20), bytes(1 << 20)),) * 2
    with pytest.raises(CorruptError):
        encode_message(Entries(1, 0, False, entries))


def test_a_journal_writes_the_header_of_the_wire():
    header = RecordHeader(RecordKind.ENTRY, 1, 2, 3, 4, 5, 6, 7, 8, codec=1, flags=1, salt=9, commit_start=10)
    written = Format2(9).encode(RecordKind.ENTRY, 1, 2, 3, 4, 5, 6, 10, 7, 8, copied=True, codec=Codec.ZSTD)
    assert written == encode_record_header(header)
