"""The envelope in which Pravega stores objects, and its numbers of variable length. All numbers are big-endian.

An object of version v with one revision r: format version 0, v, revision count 1, r (a byte each), length of the data
(4 bytes), data. Data that a newer revision appends is passed over by readers that do not know it.
"""

from __future__ import annotations

import struct

from headrace.model.errors import CorruptError

_ENVELOPE = struct.Struct(">bbBbi")
_FORMAT_VERSION = 0
COMPACT_INT_MAX = (1 << 30) - 1


def enveloped(data: bytes, *, version: int = 0, revision: int = 0) -> bytes:
    """The stored form of an object whose only revision holds `data`."""
    return _ENVELOPE.pack(_FORMAT_VERSION, version, 1, revision, len(data)) + data


def data_of_envelope(view: memoryview, *, version: int = 0) -> tuple[memoryview, memoryview]:
    """The data of an object's first revision, and what follows the object.

    Raises:
        CorruptError: this is not an object of that version, or it ends too early.
    """
    if len(view) < _ENVELOPE.size:
        raise CorruptError(f"a stored object has {len(view)} bytes: that is less than its envelope")
    format_version, found, revisions, _, length = _ENVELOPE.unpack_from(view)
    if (format_version, found) != (_FORMAT_VERSION, version) or revisions < 1:
        raise CorruptError(f"a stored object is of format {format_version}, version {found}: expected 0, {version}")
    data, rest = _cut(view[_ENVELOPE.size :], length)
    for _ in range(revisions - 1):
        if len(rest) < 5:
            raise CorruptError("a stored object ends before its last revision")
        _, rest = _cut(rest[5:], int.from_bytes(rest[1:5], signed=True))
    return data, rest


def compact_int(number: int) -> bytes:
    """1, 2 or 4 bytes, told by the two highest bits; for numbers from 0 to COMPACT_INT_MAX."""
    if number < 1 << 7:
        return bytes([number])
    if number < 1 << 14:
        return (0x8000 | number).to_bytes(2)
    return (0xC0000000 | number).to_bytes(4)


def read_compact_int(view: memoryview) -> tuple[int, memoryview]:
    """The number at the begin of `view`, and what follows it; raises CorruptError if it is cut off."""
    size = 1 if not view or view[0] < 0x80 else 2 if view[0] < 0xC0 else 4
    if len(view) < size:
        raise CorruptError("a stored object ends inside a number")
    return int.from_bytes(view[:size]) & ((1 << (8 * size - (0, 1, 2, 0, 2)[size])) - 1), view[size:]


def _cut(view: memoryview, length: int) -> tuple[memoryview, memoryview]:
    if not 0 <= length <= len(view):
        raise CorruptError(f"a stored object claims {length} bytes where {len(view)} are left")
    return view[:length], view[length:]
