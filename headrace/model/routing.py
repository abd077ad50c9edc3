"""Pravega's hashing: routing keys to key space positions, and segments to containers.

MurmurHash3 x64 128-bit over the UTF-16 little-endian code units, seeded with Java's `String.hashCode` of a label.
"""

from __future__ import annotations

import mmh3

from headrace.model.murmur3 import murmur3_128

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
