"""The hash of table keys agrees with the common library wherever that can be asked, and has Java's 64-bit seed."""

from __future__ import annotations

import mmh3
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.routing import murmur3_128, table_key_position


@given(st.binary(max_size=200), st.integers(0, (1 << 32) - 1))
def test_as_the_library_for_seeds_that_it_takes(data: bytes, seed: int):
    assert murmur3_128(data, seed) == mmh3.hash64(data, seed=seed, x64arch=True, signed=False)


def test_a_seed_of_64_bits_is_another_one():
    assert murmur3_128(b"key", 0xFFFFFFFF8795AEE5) != murmur3_128(b"key", 0x8795AEE5)


def test_positions_stay_where_they_are():
    """Computed by this code: a value that changes would lose the entries of every table."""
    assert {key: table_key_position(key) for key in POSITIONS} == POSITIONS


def test_the_seed_is_the_hash_code_of_the_label_in_java():
    code = 0
    for character in "KeyValueTableRouter":
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    first, _ = murmur3_128(b"key", code | 0xFFFFFFFF << 32)
    assert table_key_position(b"key") == (first >> 12) * 2.0**-52


@given(st.binary(max_size=64))
def test_positions_are_in_the_key_space(key: bytes):
    assert 0.0 <= table_key_position(key) < 1.0


POSITIONS = {
    b"": 0.42352702020022215,
    b"key": 0.3729347093435733,
    b"0123456789abcdef": 0.3339020757249709,
    b"\xff" * 17: 0.5399713303509777,
}
