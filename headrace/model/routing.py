"""Pravega's hashing: routing keys to key space positions, and segments to containers.

MurmurHash3 x64 128-bit over the UTF-16 little-endian code units, seeded with Java's `String.hashCode` of a label.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import mmh3

# MurmurHash3 x64 128 with a 64-bit seed, which the `mmh3` library does not accept.
#
# Java sign-extends 32-bit seeds, so that a negative seed has all upper bits set. This module is used for hashes whose
# label has a negative hash code, one short key at a time.

_MASK: Final = (1 << 64) - 1
_FACTOR_1: Final = 0x87C37B91114253D5
_FACTOR_2: Final = 0x4CF5AD432745937F
_BLOCK: Final = Struct("<QQ")


def murmur3_128(data: bytes, seed: int) -> tuple[int, int]:
    """The two halves of the hash as unsigned 64-bit numbers; `seed` is one, too."""
    first = second = seed
    whole = len(data) - len(data) % _BLOCK.size
    for low, high in _BLOCK.iter_unpack(data[:whole]):
        first ^= _scramble_low(low)
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _scramble_high(high)
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    if tail:
        low, high = _BLOCK.unpack(tail.ljust(_BLOCK.size, b"\0"))
        first ^= _scramble_low(low)
        second ^= _scramble_high(high)
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    first, second = _finished(first), _finished(second)
    first = first + second & _MASK
    return first, second + first & _MASK


def _scramble_low(word: int) -> int:
    return _rotated(word * _FACTOR_1 & _MASK, 31) * _FACTOR_2 & _MASK


def _scramble_high(word: int) -> int:
    return _rotated(word * _FACTOR_2 & _MASK, 33) * _FACTOR_1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


_EVENT_ROUTER_SEED = 1_741_865_571  # Java hashCode of "EventRouter"
_SEGMENT_TO_CONTAINER_SEED = 1_661_405_012  # Java hashCode of "SegmentToContainerMapper"
_TABLE_ROUTER_SEED = -2_020_233_499 & 0xFFFFFFFFFFFFFFFF  # Java hashCode of "KeyValueTableRouter", sign-extended
_POSITION_BITS = 52
_POSITION_SCALE = 2.0**-_POSITION_BITS
_JUMP_MULTIPLIER = 2_862_933_555_777_941_757
_UINT64_MASK = (1 << 64) - 1


def routing_key_position(routing_key: str) -> float:
    """The position of a routing key in [0, 1): the top 52 bits of the hash as a fraction."""
    first_half: int = mmh3.hash64(_utf16(routing_key), seed=_EVENT_ROUTER_SEED, x64arch=True, signed=False)[0]
    return (first_half >> (64 - _POSITION_BITS)) * _POSITION_SCALE


def table_key_position(primary_key: bytes) -> float:
    """The position in [0, 1) of a primary key of a key-value table, as `routing_key_position` for routing keys."""
    first_half, _ = murmur3_128(primary_key, _TABLE_ROUTER_SEED)
    return (first_half >> (64 - _POSITION_BITS)) * _POSITION_SCALE


def container_of_hash_key(hash_key: str, container_count: int) -> int:
    """The container, 0-based, of a segment's hash key (see `names.container_hash_key`): jump consistent hash."""
    key: int = mmh3.hash64(_utf16(hash_key), seed=_SEGMENT_TO_CONTAINER_SEED, x64arch=True, signed=False)[0]
    bucket, candidate = -1, 0
    while candidate < container_count:
        bucket = candidate
        key = (key * _JUMP_MULTIPLIER + 1) & _UINT64_MASK
        candidate = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")
