"""Entries of a table in its segment, one behind the other: a header, the key, the value.

The header is `u8 kind, i64 version, u16 key length, i32 value length`, big-endian. An entry's version is the offset at
which it was first written; OWN_OFFSET says "here", and only a copy that a compaction wrote says another one. A value
length of REMOVED means a removal. Every append to a table's segment is a number of whole entries.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.model.errors import CorruptError
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER: Final = struct.Struct(">BqHi")
HEADER_BYTES: Final = _HEADER.size
_KIND: Final = 1  # reaches the disk: another layout gets another number
OWN_OFFSET: Final = -1
REMOVED: Final = -1


class Place(NamedTuple):
    """The place of a key's newest entry, its version, and the length of its value (REMOVED for none)."""

    offset: int
    version: int
    value_length: int

    @property
    def removed(self) -> bool:
        return self.value_length < 0


def entry_bytes(key: bytes, place: Place) -> int:
    """The length of an entry in its segment, in bytes."""
    return HEADER_BYTES + len(key) + max(place.value_length, 0)


def value_offset(key: bytes, place: Place) -> int:
    return place.offset + HEADER_BYTES + len(key)


def encode_entry(key: bytes, value: Buffer | None, version: int = OWN_OFFSET) -> list[Buffer]:
    """The parts of an entry; no value means that the key is removed."""
    if value is None:
        return [_HEADER.pack(_KIND, version, len(key), REMOVED), key]
    return [_HEADER.pack(_KIND, version, len(key), memoryview(value).nbytes), key, value]


def decode_entries(data: memoryview, offset: int) -> tuple[list[tuple[bytes, Place]], int]:
    """The complete entries in the bytes of a segment from `offset` on, and how many bytes they take.

    Raises:
        CorruptError: no entry starts there.
    """
    entries: list[tuple[bytes, Place]] = []
    position = 0
    while len(data) - position >= HEADER_BYTES:
        kind, version, key_length, value_length = _HEADER.unpack_from(data, position)
        if (
            kind != _KIND
            or not OWN_OFFSET <= version < offset + position
            or not 0 < key_length <= TABLE_KEY_BYTES_MAX
            or not REMOVED <= value_length <= TABLE_VALUE_BYTES_MAX
        ):
            raise CorruptError(f"no entry of a table starts at offset {offset + position}")
        key_at = position + HEADER_BYTES
        end = key_at + key_length + max(value_length, 0)
        if end > len(data):
            break
        here = offset + position
        place = Place(here, here if version == OWN_OFFSET else version, value_length)
        entries.append((bytes(data[key_at : key_at + key_length]), place))
        position = end
    return entries, position


# Index objects of tables: blocks of sorted keys, and behind them the sparse index that finds a key's block.
#
# A block is a number of `u16 key length, u64 offset, u64 version, i32 value length, key`; the sparse index has for
# each block `u16 length of its first key, u64 position, u32 length, u32 CRC-32C, first key`. Everything is big-endian.
# A "first key" is the shortest one that all keys before it are less than.

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
