"""Where appended bytes lie in memory: blocks, the reservations in them, and views of what reservations hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Block:
    """`references` counts what may still look at the bytes, `unstored` what is not in tier 2 yet."""

    __slots__ = ("dropped", "filled", "pooled", "references", "residents", "unstored", "view")

    def __init__(self, view: memoryview, *, pooled: bool) -> None:
        self.view = view
        self.pooled = pooled
        self.reset()

    def reset(self) -> None:
        self.references = 0
        self.unstored = 0
        self.filled = False
        self.dropped = False
        self.residents: list[Reservation] = []


Extent = tuple[Block, int, int]
"""Block, position and length of bytes that lie together."""

WriterMark = tuple[int, int, int]
"""Of an append: writer id, the writer's event number before it, number of events in it."""


class Owner(Protocol):
    """Who knows where the bytes of reservations belong."""

    def forget(self, reservations: Sequence[Reservation]) -> None:
        """The pool has taken the bytes of these away; they are not live any more."""
        ...


class Reservation:
    """Room for `length` bytes: one append from the moment it has arrived, as long as it is in memory.

    A single small object and no others: there are as many of them as appends in the cache. Most lie in one block, at
    `start`; what does not fit there is in `more`. It starts out unstored. When an index knows it, the index is its
    `owner`, `offset` is its place there, `ledger_entry` the log entry that holds its begin; what `mark` says is kept
    until tier 2 has it.
    """

    __slots__ = (
        "block",
        "event_count",
        "ledger_entry",
        "length",
        "live",
        "more",
        "offset",
        "owner",
        "previous_number",
        "start",
        "stored",
        "writer_id",
    )

    def __init__(self, length: int, block: Block, start: int, more: tuple[Extent, ...] = ()) -> None:
        self.length = length
        self.block = block
        self.start = start
        self.more = more
        self.stored = False
        self.live = True
        self.owner: Owner | None = None
        self.offset = 0
        self.ledger_entry = -1
        self.writer_id: int | None = None
        self.previous_number = 0
        self.event_count = 0

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def mark(self) -> WriterMark | None:
        return None if self.writer_id is None else (self.writer_id, self.previous_number, self.event_count)

    @property
    def extents(self) -> tuple[Extent, ...]:
        if not self.more:
            return ((self.block, self.start, self.length),)
        return ((self.block, self.start, self.length - sum(extent[2] for extent in self.more)), *self.more)

    @property
    def parts(self) -> list[memoryview]:
        """Views of the bytes; valid while the reservation is live or its blocks are pinned."""
        if not self.more:
            return [self.block.view[self.start : self.start + self.length]]
        return [block.view[start : start + length] for block, start, length in self.extents]

    def fill(self, data: Sequence[memoryview]) -> None:
        """Copy `data` to the begin of the reservation; it must fit."""
        if not self.more and len(data) == 1:  # as nearly always
            self.block.view[self.start : self.start + len(data[0])] = data[0]
            return
        parts = iter(self.parts)
        room = memoryview(b"")
        for view in data:
            while view:
                if not room:
                    room = next(parts)
                count = min(len(room), len(view))
                room[:count] = view[:count]
                room, view = room[count:], view[count:]

    @property
    def blocks(self) -> list[Block]:
        return [self.block, *(extent[0] for extent in self.more)]


def gather(entries: Iterable[Reservation]) -> tuple[list[memoryview], list[Block]]:
    """Views of the bytes of all these, one for those that lie side by side, and the block of each view."""
    parts: list[memoryview] = []
    blocks: list[Block] = []
    block: Block | None = None
    start = end = 0
    for entry in entries:
        if entry.block is block and entry.start == end and not entry.more:
            end += entry.length
            continue
        for extent_block, position, length in entry.extents:
            if extent_block is not block or position != end:
                if not extent_block.view:
                    raise AssertionError(f"bytes at {entry.offset} were asked for before they were loaded")
                if block is not None:
                    parts.append(block.view[start:end])
                    blocks.append(block)
                block, start, end = extent_block, position, position
            end += length
    if block is not None:
        parts.append(block.view[start:end])
        blocks.append(block)
    return parts, blocks


def slice_parts(parts: list[memoryview], start: int, length: int) -> list[memoryview]:
    """Views of up to `length` bytes of the concatenated `parts` after their first `start` bytes."""
    sliced: list[memoryview] = []
    for part in parts:
        if length <= 0:
            break
        if start >= len(part):
            start -= len(part)
            continue
        sliced.append(part[start : start + length])
        length -= len(sliced[-1])
        start = 0
    return sliced
