"""MurmurHash3 x64 128 with a 64-bit seed, which the `mmh3` library does not accept.

Java sign-extends 32-bit seeds, so that a negative seed has all upper bits set. This module is used for hashes whose
label has a negative hash code, one short key at a time.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

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
