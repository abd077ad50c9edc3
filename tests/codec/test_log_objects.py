"""Objects of a log that S3 acknowledges: golden bytes, names, and damage."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.log_objects import (
    LOG_OBJECT_HEADER_BYTES,
    LOG_OBJECT_OVERHEAD_BYTES,
    LogObjectHeader,
    container_log_prefix,
    decode_log_object,
    decode_log_object_header,
    encode_entry,
    encode_log_object,
    ledger_prefix,
    log_object_name,
    parse_log_object_name,
)
from headrace.model.errors import CorruptError

NAME = "logs/container-0007/0000000012-0000000345"
HEADER = LogObjectHeader(7, 12, 345, 9000, 8000, 340, 0, 0, 0, 4)
PAYLOADS = [b"first", b"", b"third entry"]


def encoded(payloads: list[bytes], header: LogObjectHeader = HEADER) -> bytes:
    entries = [
        encode_entry(header.container, header.epoch, number, header.truncated_before, [payload[:2], payload[2:]])
        for number, payload in enumerate(payloads, header.first_entry)
    ]
    return b"".join(encode_log_object(header, entries))


def entries_of(name: str, raw: bytes) -> dict[int, bytes]:
    return {entry: bytes(payload) for entry, payload in decode_log_object(name, raw)}


def test_golden_bytes():
    raw = encoded(PAYLOADS)
    assert raw[:LOG_OBJECT_HEADER_BYTES].hex() == (
        "48524c4f474f424a"  # mark
        "0001"
        "0004"
        "00000007"  # version, window, container
        "000000000000000c"
        "0000000000000159"  # epoch, sequence
        "0000000000002328"
        "0000000000001f40"
        "0000000000000154"  # first entry, truncation point, oldest sequence
        "00000003"
        "00000100"  # entries, bytes of records
        "e27af48ca05ad6a2"
    )
    assert sha256(raw).hexdigest() == "8e7b4fc1686c9f31d782d86aed2bef8c23fd286cc1cdcfb572c2110a5adbac09"


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_entries_come_back(payloads: list[bytes]):
    raw = encoded(payloads)
    assert len(raw) == LOG_OBJECT_HEADER_BYTES + sum(len(each) + LOG_OBJECT_OVERHEAD_BYTES for each in payloads)
    assert entries_of(NAME, raw) == dict(enumerate(payloads, 9000))
    header = decode_log_object_header(NAME, raw)
    assert (header.end, header.truncated_before, header.oldest_sequence, header.window) == (
        9000 + len(payloads),
        8000,
        340,
        4,
    )


@given(st.data())
def test_every_damaged_bit_is_found(data: st.DataObject):
    raw = bytearray(encoded(PAYLOADS))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptError):
        entries_of(NAME, bytes(raw))


@given(st.integers(0, len(encoded(PAYLOADS)) - 1))
def test_cut_object_is_found(length: int):
    with pytest.raises(CorruptError):
        entries_of(NAME, encoded(PAYLOADS)[:length])


@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused(raw: bytes):
    with pytest.raises(CorruptError):
        entries_of(NAME, raw)


@pytest.mark.parametrize(
    "change",
    [
        {"container": 8},
        {"epoch": 13},
        {"sequence": 346},
        {"oldest_sequence": 346},
        {"truncated_before": 9001},
        {"window": 0},
    ],
)
def test_header_must_fit_its_name_and_itself(change: dict[str, int]):
    with pytest.raises(CorruptError):
        entries_of(NAME, encoded(PAYLOADS, HEADER._replace(**change)))


def test_records_of_another_ledger_are_refused():
    entries = [encode_entry(7, 11, 9000, 0, [b"of an older epoch"])]
    with pytest.raises(CorruptError, match="another record"):
        entries_of(NAME, b"".join(encode_log_object(HEADER, entries)))


@given(st.integers(0, 10**6), st.integers(0, 10**12), st.integers(0, 10**12))
def test_names_are_parsed_and_have_the_prefixes(container: int, epoch: int, sequence: int):
    name = log_object_name(container, epoch, sequence)
    assert parse_log_object_name(name) == (container, epoch, sequence)
    assert name.startswith(ledger_prefix(container, epoch))
    assert name.startswith(container_log_prefix(container))


@given(st.integers(0, 10**10 - 2))
def test_names_are_in_the_order_of_sequences(sequence: int):
    assert log_object_name(7, 12, sequence) < log_object_name(7, 12, sequence + 1)


@pytest.mark.parametrize(
    "name", ["", "logs/container-0007/x", f"{NAME}0x", f"{NAME[:-1]}", NAME.replace("0007", "00007")]
)
def test_other_names_are_none(name: str):
    assert parse_log_object_name(name) is None
