"""The time block of a run in tier 2: its time points in a few bytes each, guarded by a checksum of their own.

A version byte, the number of points, then three unsigned LEB128 numbers for each point: the distance of its offset from
the point before (the first: behind the start of the run), its first number behind the last one of the point before (the
first: behind the first one of the run), and its last number behind its first. At the end a big-endian CRC-32C of all
that. Offsets count from the start of the run, so that a block needs no change when its run moves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from headrace.model.errors import CorruptError
from headrace.model.time_points import POINTS_MAX, TimePoints

# Reaches tier 2: never change what a version means.
_VERSION: Final = 1
_CHECKSUM: Final = struct.Struct(">I")
_NUMBER_BYTES_MAX: Final = 9

TIME_BLOCK_BYTES_MAX: Final = 1 + _CHECKSUM.size + _NUMBER_BYTES_MAX * (1 + 3 * POINTS_MAX)


def encode_time_block(points: TimePoints, run_offset: int) -> bytes:
    """The block of a run that starts at `run_offset` and whose points these are."""
    encoded = bytearray([_VERSION])
    _put(encoded, len(points))
    offset, last = run_offset, points.oldest
    for point in points:
        _put(encoded, point.offset - offset)
        _put(encoded, point.first - last)
        _put(encoded, point.last - point.first)
        offset, last = point.offset, point.last
    return bytes(encoded) + _CHECKSUM.pack(crc32c(encoded))


def decode_time_block(block: bytes, run_offset: int, run_length: int, first: int) -> TimePoints:
    """The points of a run of `run_length` bytes from `run_offset` on, whose first number is `first`.

    Raises:
        CorruptError: these bytes are not the block of such a run, or of a newer version.
    """
    body = memoryview(block)[: -_CHECKSUM.size]
    if len(block) > TIME_BLOCK_BYTES_MAX or len(body) < 2 or block[len(body) :] != _CHECKSUM.pack(crc32c(body)):
        raise CorruptError(f"a time block of {len(block)} bytes does not have its checksum")
    if body[0] != _VERSION:
        raise CorruptError(f"a time block has version {body[0]}, known is {_VERSION}")
    numbers = _numbers(body[1:])
    try:
        count = next(numbers)
        if not 0 < count <= POINTS_MAX:
            raise CorruptError(f"a time block claims {count} points, allowed are 1 to {POINTS_MAX}")
        points = TimePoints()
        offset, last = run_offset, first
        for _ in range(count):
            offset, lowest, span = offset + next(numbers), last + next(numbers), next(numbers)
            last = lowest + span
            points.add(offset, lowest, last)
    except StopIteration:
        raise CorruptError(f"a time block of {len(block)} bytes ends inside its points") from None
    except OverflowError:
        raise CorruptError("a time block has a number of more than 63 bits") from None
    if offset >= run_offset + run_length:
        raise CorruptError(f"a time block reaches to {offset}, its run ends at {run_offset + run_length}")
    return points


def _put(encoded: bytearray, number: int) -> None:
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _numbers(raw: memoryview) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
