"""Bytes of a link cut into messages: whole, in order, and without copying large ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_links import entry

from headrace.adapters.tcp.replica_protocol import (
    CHUNK_BYTES,
    LARGE_BYTES,
    SHORT_RECEIVE_BYTES,
    MessageAssembler,
)
from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.codec.replica_messages import (
    MESSAGE_BYTES_MAX,
    MESSAGE_HEADER,
    Ack,
    AckItem,
    Entry,
    Pulse,
    decode_message,
    encode_message,
)
from headrace.model.errors import CorruptError

ACK = encode_message(Ack((AckItem(3, 1, 7, 9),)))


def entry_bytes(number: int, length: int) -> bytes:
    header, payload = entry(number, bytes([number % 251]) * length)
    return encode_message(Entry(header, payload))


def feed(assembler: MessageAssembler, data: bytes, piece_bytes: int = 1 << 30) -> list[memoryview]:
    """All messages of `data`, received in pieces of at most this size."""
    found, position = [], 0
    while position < len(data):
        space = assembler.writable()
        count = min(len(space), piece_bytes, len(data) - position)
        space[:count] = data[position : position + count]
        position += count
        assembler.received(count)
        while (message := assembler.next_message()) is not None:
            # Only the memory of messages with payloads stays as it is.
            found.append(message if message[0] == Entry.TYPE else memoryview(bytes(message)))
    return found


@given(
    st.lists(st.sampled_from([0, 1, 100, 4000, 60_000, 65_000, 66_000, 200_000, 300_000]), max_size=12),
    st.sampled_from([1 << 30, 70_000, 1447, 4096]),
)
def test_messages_come_whole_and_in_order(lengths: list[int], piece_bytes: int):
    sent = [entry_bytes(number, length) for number, length in enumerate(lengths)]
    sent[1:1] = [ACK]
    assembler = MessageAssembler()
    assert [bytes(message) for message in feed(assembler, b"".join(sent), piece_bytes)] == sent
    assert assembler.held_bytes <= CHUNK_BYTES + MESSAGE_BYTES_MAX


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 8, 9, 13])
def test_small_pieces_are_put_together(piece_bytes: int):
    sent = [ACK, entry_bytes(1, 50), encode_message(Pulse(1, 2, ())), entry_bytes(2, 0)]
    assert [bytes(message) for message in feed(MessageAssembler(), b"".join(sent), piece_bytes)] == sent


def test_earlier_messages_do_not_change():
    """The views are compared after everything was received, so no memory was used twice."""
    sent = [entry_bytes(number, length) for number in range(300) for length in (5000, 90_000)]
    assembler = MessageAssembler()
    assert [bytes(message) for message in feed(assembler, b"".join(sent))] == sent


def test_large_entries_are_received_in_place():
    sent = [entry_bytes(number, ENTRY_BYTES_MAX) for number in range(20)]
    assembler = MessageAssembler()
    received = feed(assembler, b"".join(sent))
    payloads = [decode_message(message).payload for message in received]  # type: ignore[union-attr]
    assert all(
        isinstance(payload, memoryview) and payload.contiguous and len(payload) == ENTRY_BYTES_MAX
        for payload in payloads
    )
    assert assembler.copied_bytes <= CHUNK_BYTES + 19 * SHORT_RECEIVE_BYTES


def test_entries_that_fit_in_a_chunk_are_not_copied():
    assembler = MessageAssembler()
    assert len(feed(assembler, entry_bytes(1, CHUNK_BYTES - 100), piece_bytes=10_000)) == 1
    assert assembler.copied_bytes == 0


def test_small_entries_copy_only_what_crosses_a_chunk():
    sent = b"".join(entry_bytes(number, 1000) for number in range(5000))
    assembler = MessageAssembler()
    assert len(feed(assembler, sent)) == 5000
    assert assembler.copied_bytes < len(sent) // CHUNK_BYTES * 1100 + 1100


def test_messages_without_payload_use_one_chunk_again():
    assembler = MessageAssembler(1 << 10)
    before = assembler.writable().obj
    assert len(feed(assembler, ACK * 1000, piece_bytes=len(ACK) * 3)) == 1000
    assert assembler.writable().obj is before


def test_memory_is_freed_with_the_last_view():
    assembler = MessageAssembler()
    kept = feed(assembler, b"".join(entry_bytes(number, ENTRY_BYTES_MAX) for number in range(3)))
    assert assembler.held_bytes == CHUNK_BYTES
    assert len({id(payload.obj) for payload in kept}) == 3, "each large entry has its own buffer"


@pytest.mark.parametrize("chunk_bytes", [512, CHUNK_BYTES])
def test_lengths_above_the_limit_are_refused_before_memory(chunk_bytes: int):
    assembler = MessageAssembler(chunk_bytes, 100)
    with pytest.raises(CorruptError, match="at most 100"):
        feed(assembler, MESSAGE_HEADER.pack(Entry.TYPE, 0, 0, 101))
    assert assembler.held_bytes == chunk_bytes
    with pytest.raises(CorruptError):
        feed(MessageAssembler(), MESSAGE_HEADER.pack(Entry.TYPE, 0, 0, MESSAGE_BYTES_MAX + 1))
    with pytest.raises(CorruptError, match="type 99"):
        feed(MessageAssembler(), MESSAGE_HEADER.pack(99, 0, 0, 1))


def test_what_arrived_early_is_kept_when_the_limit_rises():
    assembler = MessageAssembler(512, 100)
    large = entry_bytes(1, LARGE_BYTES)
    space = assembler.writable()
    start = ACK + large[:50]
    space[: len(start)] = start
    assembler.received(len(start))
    assert bytes(assembler.next_message() or b"") == ACK
    assembler.accept_large()
    assert assembler.next_message() is None
    assert [bytes(message) for message in feed(assembler, large[50:])] == [large]
