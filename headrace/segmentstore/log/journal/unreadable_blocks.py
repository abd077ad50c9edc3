"""Reads a journal file around blocks that the disk cannot read any more.

One such block fails every read that touches it. If the error ended the scan, it would cost the whole journal, where
wrong bytes in the same block cost one entry. So the block is read as zeros, and the checksums decide what is damaged.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from headrace.ports.journal_disk import JournalFile

UNREADABLE: Final = frozenset({errno.EIO, errno.ENODATA})
"""What a read of a bad block ends with: the second one is Linux's error for the medium."""

BLOCK_BYTES: Final = 512
"""Blocks are searched for in pieces of this size: the smallest that a disk reads."""

UNREADABLE_BYTES_MAX: Final = 1 << 20
"""In one read. A disk with more bad blocks is not trusted, and each failed read takes time."""


class ReadBytes(NamedTuple):
    """What was read, and the parts of the file that could not be read, as first position and end."""

    content: bytes
    unreadable: tuple[tuple[int, int], ...] = ()


def read_around(file: JournalFile, position: int, length: int) -> ReadBytes:
    """Up to `length` bytes from `position`, fewer only at the end of the file, with zeros for unreadable blocks.

    Raises:
        OSError: the disk fails in another way, or most of these bytes are unreadable.
    """
    try:
        return ReadBytes(file.read(position, length))
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return _read_blocks(file, position, max(0, min(length, file.size_bytes - position)), error)


def _read_blocks(file: JournalFile, position: int, length: int, error: OSError) -> ReadBytes:
    content = bytearray(length)
    if not length:
        return ReadBytes(b"")
    unreadable: list[tuple[int, int]] = []
    unreadable_bytes = 0
    left = [(position, position + length)]  # parts whose read has failed, the next one last
    while left:
        start, end = left.pop()
        if start // BLOCK_BYTES == (end - 1) // BLOCK_BYTES:
            unreadable_bytes += end - start
            if unreadable_bytes > UNREADABLE_BYTES_MAX:
                raise error
            if unreadable and unreadable[-1][1] == start:
                start = unreadable.pop()[0]
            unreadable.append((start, end))
            continue
        middle = (start + end) // 2 // BLOCK_BYTES * BLOCK_BYTES
        if middle <= start:
            middle += BLOCK_BYTES
        failed: list[tuple[int, int]] = []
        for first, after in ((start, middle), (middle, end)):
            try:
                content[first - position : after - position] = file.read(first, after - first)
            except OSError as problem:
                if problem.errno not in UNREADABLE:
                    raise
                failed.append((first, after))
        left += reversed(failed)
    return ReadBytes(bytes(content), tuple(unreadable))


def write_again(file: JournalFile, position: int, length: int) -> None:
    """Write bytes of a file to their places again, except for those that cannot be read. Raises OSError."""
    content, unreadable = read_around(file, position, length)
    start = position
    for end, after in (*unreadable, (position + len(content), 0)):
        if start < end:
            file.write(start, [content[start - position : end - position]])
        start = after
