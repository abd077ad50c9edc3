"""Index objects of tables: blocks of sorted keys, and behind them the sparse index that finds a key's block.

A block is a number of `u16 key length, u64 offset, u64 version, i32 value length, key`; the sparse index has for each
block `u16 length of its first key, u64 position, u32 length, u32 CRC-32C, first key`. Everything is big-endian. A
"first key" is the shortest one that all keys before it are less than.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.codec.table_entries import Place
from headrace.model.errors import CorruptError

_ENTRY: Final = struct.Struct(">HQQi")
_BLOCK: Final = struct.Struct(">HQII")


class IndexBlock(NamedTuple):
    """The position of a block in its object."""

    first_key: bytes
    position: int
    length: int
    checksum: int


def encode_index_entry(key: bytes, place: Place) -> bytes:
    return _ENTRY.pack(len(key), *place) + key


def decode_index_block(block: bytes) -> list[tuple[bytes, Place]]:
    """The keys of a block, in order. Raises CorruptError."""
    entries: list[tuple[bytes, Place]] = []
    position = 0
    try:
        while position < len(block):
            key_length, offset, version, value_length = _ENTRY.unpack_from(block, position)
            position += _ENTRY.size + key_length
            entries.append((block[position - key_length : position], Place(offset, version, value_length)))
    except struct.error as error:
        raise CorruptError(f"a block of {len(block)} bytes of a table index does not decode: {error}") from error
    if position != len(block):
        raise CorruptError(f"a block of {len(block)} bytes of a table index ends inside a key")
    return entries


def find_in_index_block(block: bytes, key: bytes) -> Place | None:
    """The place of a key in the block, or None. Raises CorruptError."""
    return next((place for each, place in decode_index_block(block) if each == key), None)


def encode_sparse_index(blocks: Sequence[IndexBlock]) -> bytes:
    return b"".join(
        _BLOCK.pack(len(each.first_key), each.position, each.length, each.checksum) + each.first_key for each in blocks
    )


def decode_sparse_index(data: bytes) -> list[IndexBlock]:
    """The blocks of an object, in order of their keys. Raises CorruptError."""
    blocks: list[IndexBlock] = []
    position = 0
    try:
        while position < len(data):
            key_length, *where = _BLOCK.unpack_from(data, position)
            position += _BLOCK.size + key_length
            blocks.append(IndexBlock(data[position - key_length : position], *where))
    except struct.error as error:
        raise CorruptError(f"a sparse index of {len(data)} bytes does not decode: {error}") from error
    if position != len(data) or not blocks:
        raise CorruptError(f"a sparse index of {len(data)} bytes ends inside a key, or is empty")
    return blocks


def separator(before: bytes, key: bytes) -> bytes:
    """The shortest key greater than `before` and not greater than `key`, which is greater than `before`."""
    common = 0
    while common < len(before) and before[common] == key[common]:
        common += 1
    return key[: common + 1]
