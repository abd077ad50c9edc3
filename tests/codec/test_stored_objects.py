"""The bytes of a watermark, derived by hand from the documented layout, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.stored_objects import (
    COMPACT_INT_MAX,
    compact_int,
    data_of_envelope,
    read_compact_int,
    watermark_of_payload,
    watermark_payload,
)
from headrace.model.errors import CorruptError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.watermarks import Watermark
from headrace.model.writer_marks import positions_of

HALF = "3fe0000000000000"
GOLDEN = bytes.fromhex(
    # format 0, version 0, one revision, number 0, 97 bytes of data: 16 of times, 1 of count, 2 times 40
    "00 00 01 00 00000061"
    # lower bound 1,000, upper bound -1
    "00000000000003e8 ffffffffffffffff"
    # two segments
    "02"
    # the key is an object of 24 bytes: segment 0 of epoch 0 from 0.0 to 0.5; then its offset 17
    "00 00 01 00 00000018 0000000000000000 0000000000000000" + HALF + "0000000000000011"
    # segment 3 of epoch 2 from 0.5 to 1.0, at offset 2 to the power of 33
    "00 00 01 00 00000018 0000000200000003" + HALF + "3ff0000000000000 0000000200000000"
)
WATERMARK = Watermark(
    1_000,
    -1,
    positions_of({StreamSegment(0, KeyRange(0.0, 0.5)): 17, StreamSegment(2 << 32 | 3, KeyRange(0.5, 1.0)): 1 << 33}),
)


def test_the_bytes_are_the_documented_ones():
    assert watermark_payload(WATERMARK) == GOLDEN
    assert watermark_of_payload(GOLDEN) == WATERMARK


def test_what_a_newer_revision_appends_is_passed_over():
    newer = b"\x00\x00\x02" + GOLDEN[3:] + b"\x01\x00\x00\x00\x02xy"
    assert watermark_of_payload(newer) == WATERMARK


@pytest.mark.parametrize("length", range(len(GOLDEN)))
def test_what_is_cut_off_is_refused(length: int):
    with pytest.raises(CorruptError):
        watermark_of_payload(GOLDEN[:length])


@pytest.mark.parametrize(
    "payload",
    [
        GOLDEN + b"x",
        b"\x01" + GOLDEN[1:],
        b"\x00\x01" + GOLDEN[2:],
        b"\x00\x00\x00" + GOLDEN[3:],
        b"\x00\x00\x02" + GOLDEN[3:],
        b"\x00\x00\x02" + GOLDEN[3:] + b"\x01\xff\xff\xff\xff",
        GOLDEN[:4] + b"\x00\x00\x00\x08" + GOLDEN[8:16],
        GOLDEN.replace(bytes.fromhex(HALF), bytes(8), 1),
    ],
)
def test_a_payload_that_is_not_a_watermark_is_refused(payload: bytes):
    with pytest.raises(CorruptError):
        watermark_of_payload(payload)


@given(st.integers(0, len(GOLDEN)), st.binary(max_size=200), st.integers(0, len(GOLDEN)))
def test_no_bytes_do_more_than_be_refused(start: int, changed: bytes, end: int):
    data = GOLDEN[:start] + changed + GOLDEN[end:]
    try:
        watermark_of_payload(data)
    except CorruptError:
        return
    assert len(data) >= 25


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8080"),
        (16_383, "bfff"),
        (16_384, "c0004000"),
        (COMPACT_INT_MAX, "ffffffff"),
    ],
)
def test_numbers_of_variable_length(number: int, stored: str):
    assert compact_int(number).hex() == stored
    assert read_compact_int(memoryview(bytes.fromhex(stored) + b"x")) == (number, b"x")


@pytest.mark.parametrize("cut_off", ["", "80", "c00040"])
def test_a_number_that_is_cut_off(cut_off: str):
    with pytest.raises(CorruptError):
        read_compact_int(memoryview(bytes.fromhex(cut_off)))


def test_a_negative_length_is_refused():
    with pytest.raises(CorruptError):
        data_of_envelope(memoryview(b"\x00\x00\x01\x00\xff\xff\xff\xffx"))
