"""Compressed payloads of log records: what comes back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import payload_compression
from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.codec.payload_compression import compress_payload, decompress_payload
from headrace.model.errors import CorruptError

TEXT = b"headrace " * 5
OTHER_LIBRARY = "28b52ffd202d7d0000486865616472616365200100499623"
WITHOUT_SIZE = "28b52ffd00007d0000486865616472616365200100499623"


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_parts_come_back_as_one(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    payload = compress_payload([memoryview(part) for part in parts], len(whole))
    assert decompress_payload(payload) == whole
    assert decompress_payload(memoryview(payload)) == whole


def test_the_payload_of_another_library_is_read() -> None:
    """Written by python-zstandard 0.25, which releases before 0.3 used."""
    assert decompress_payload(bytes.fromhex(OTHER_LIBRARY)) == TEXT


@given(st.data())
def test_damage_is_an_error_or_does_no_harm(data: st.DataObject) -> None:
    whole = compress_payload([TEXT], len(TEXT))
    payload = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    if payload and data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress_payload(bytes(payload))) <= ENTRY_BYTES_MAX
    except CorruptError:
        assert bytes(payload) != whole


@pytest.mark.parametrize("cut", range(len(compress_payload([TEXT], len(TEXT)))))
def test_a_part_of_a_frame_is_refused(cut: int) -> None:
    with pytest.raises(CorruptError):
        decompress_payload(compress_payload([TEXT], len(TEXT))[:cut])


def test_bytes_behind_the_frame_are_refused() -> None:
    with pytest.raises(CorruptError, match="not one whole zstd frame"):
        decompress_payload(compress_payload([TEXT], len(TEXT)) + b"x")


def test_a_frame_without_its_size_is_refused() -> None:
    with pytest.raises(CorruptError, match="claims no size"):
        decompress_payload(bytes.fromhex(WITHOUT_SIZE))


def test_a_frame_to_be_skipped_is_refused() -> None:
    with pytest.raises(CorruptError, match="claims no size"):
        decompress_payload(bytes.fromhex("502a4d180400000001020304"))


def test_a_frame_larger_than_an_entry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = compress_payload([TEXT], len(TEXT))
    monkeypatch.setattr(payload_compression, "ENTRY_BYTES_MAX", len(TEXT) - 1)
    with pytest.raises(CorruptError, match="claims 45 bytes"):
        decompress_payload(payload)
