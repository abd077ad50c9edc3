"""What tables write to disk and to objects: golden bytes, round trips, and damage that is noticed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.table_entries import (
    REMOVED,
    IndexBlock,
    Place,
    decode_entries,
    decode_index_block,
    decode_sparse_index,
    encode_entry,
    encode_index_entry,
    encode_sparse_index,
    entry_bytes,
    find_in_index_block,
    separator,
    value_offset,
)
from headrace.model.errors import CorruptError
from headrace.model.table_indexes import IndexObject, TableIndex, index_body, table_index

keys = st.binary(min_size=1, max_size=20)
values = st.one_of(st.none(), st.binary(max_size=30))
places = st.builds(Place, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(REMOVED, 1000))


def test_golden_entries():
    own = "01 ffffffffffffffff 0002 00000003 6b31 616263"
    copy = "01 0000000000000005 0002 00000000 6b31"
    removal = "01 ffffffffffffffff 0002 ffffffff 6b31"
    assert b"".join(encode_entry(b"k1", b"abc")) == bytes.fromhex(own)
    assert b"".join(encode_entry(b"k1", b"", 5)) == bytes.fromhex(copy)
    assert b"".join(encode_entry(b"k1", None)) == bytes.fromhex(removal)
    entries, used = decode_entries(memoryview(bytes.fromhex(own + copy + removal) + b"\x01\xff"), 100)
    assert entries == [(b"k1", Place(100, 100, 3)), (b"k1", Place(120, 5, 0)), (b"k1", Place(137, 137, REMOVED))]
    assert used == 54


def test_golden_index():
    block = encode_index_entry(b"a", Place(1, 2, 3)) + encode_index_entry(b"bc", Place(4, 5, REMOVED))
    assert block == bytes.fromhex(
        "0001 0000000000000001 0000000000000002 00000003 61 0002 0000000000000004 0000000000000005 ffffffff 6263"
    )
    assert decode_index_block(block) == [(b"a", Place(1, 2, 3)), (b"bc", Place(4, 5, REMOVED))]
    sparse = encode_sparse_index([IndexBlock(b"", 0, 9, 7), IndexBlock(b"b", 9, 8, 6)])
    assert sparse == bytes.fromhex("0000 0000000000000000 00000009 00000007 0001 0000000000000009 00000008 00000006 62")
    assert decode_sparse_index(sparse) == [IndexBlock(b"", 0, 9, 7), IndexBlock(b"b", 9, 8, 6)]


def test_golden_record():
    index = TableIndex(
        300, ((IndexObject("tables/x/1", b"", 10, 2, 7, 3, 2, 90), IndexObject("y", b"\xff", 1, 2, 3, 4, 5, 6)),)
    )
    body = index_body(1234, index)
    assert body == {
        "created": 1234,
        "covered": 300,
        "runs": [[["tables/x/1", "", 10, 2, 7, 3, 2, 90], ["y", "ff", 1, 2, 3, 4, 5, 6]]],
    }
    assert table_index(1234, body) == index
    assert table_index(1235, body) is None


@given(st.lists(st.tuples(keys, values), max_size=8), st.integers(0, 1 << 50))
def test_entries_round_trip(changes, offset):
    data = memoryview(b"".join(b"".join(encode_entry(key, value)) for key, value in changes))
    entries, used = decode_entries(data, offset)
    assert used == len(data)
    assert [key for key, _ in entries] == [key for key, _ in changes]
    for (key, place), (_, value) in zip(entries, changes, strict=True):
        assert place.version == place.offset
        assert place.removed == (value is None)
        start = value_offset(key, place) - offset
        assert bytes(data[start : start + max(place.value_length, 0)]) == (value or b"")
    assert sum(entry_bytes(key, place) for key, place in entries) == used


@given(st.lists(st.tuples(keys, values), min_size=1, max_size=4), st.data())
def test_cut_entries_are_left_for_later(changes, data):
    whole = b"".join(b"".join(encode_entry(key, value)) for key, value in changes)
    cut = data.draw(st.integers(0, len(whole)))
    entries, used = decode_entries(memoryview(whole)[:cut], 0)
    rest, used_then = decode_entries(memoryview(whole)[used:], used)
    assert [*entries, *rest] == decode_entries(memoryview(whole), 0)[0]
    assert used + used_then == len(whole)


@given(st.binary(max_size=200), st.integers(0, 1 << 50))
def test_garbage(data, offset):
    for decode in (lambda: decode_entries(memoryview(data), offset), lambda: decode_index_block(data)):
        with suppress(CorruptError):
            decode()
    with suppress(CorruptError):
        decode_sparse_index(data)


@pytest.mark.parametrize(
    "entry",
    [
        "02 ffffffffffffffff 0001 00000000 61",
        "01 fffffffffffffffe 0001 00000000 61",
        "01 0000000000000065 0001 00000000 61",
        "01 ffffffffffffffff 0000 00000000",
        "01 ffffffffffffffff 2001 00000000 61",
        "01 ffffffffffffffff 0001 fffffffe 61",
        "01 ffffffffffffffff 0001 00100000 61",
    ],
    ids=["kind", "version", "version to come", "no key", "long key", "length", "long value"],
)
def test_bytes_that_are_not_an_entry_are_refused(entry):
    with pytest.raises(CorruptError):
        decode_entries(memoryview(bytes.fromhex(entry)), 100)


@given(st.dictionaries(keys, places, min_size=1, max_size=10))
def test_index_blocks_round_trip(entries):
    block = b"".join(encode_index_entry(key, entries[key]) for key in sorted(entries))
    assert dict(decode_index_block(block)) == entries
    for key, place in entries.items():
        assert find_in_index_block(block, key) == place
    assert find_in_index_block(block, b"x" * 21) is None


@given(st.sets(st.binary(max_size=6), min_size=2, max_size=2))
def test_separators_are_short_and_between_the_keys(pair):
    before, key = sorted(pair)
    between = separator(before, key)
    assert before < between <= key
    assert key.startswith(between)
    assert not before < between[:-1]
