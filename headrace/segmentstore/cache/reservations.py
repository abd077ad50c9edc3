"""The positions of appended bytes in memory: blocks, the reservations in them, and views of their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Block:
    """A piece of memory that is reused as a whole.

    `references` counts the live reservations and the pins on the block, `untiered` the reservations not tiered yet.
    """

    __slots__ = ("dropped", "filled", "pooled", "references", "residents", "untiered", "view")

    def __init__(self, view: memoryview, *, pooled: bool) -> None:
        self.view = view
        self.pooled = pooled
        self.reset()

    def reset(self) -> None:
        self.references = 0
        self.untiered = 0
        self.filled = False
        self.dropped = False
        self.residents: list[Reservation] = []


Extent = tuple[Block, int, int]
"""The block, position and length of adjacent bytes."""

WriterMark = tuple[int, int, int]
"""The writer id of an append, the writer's event number before it, and the number of events in it."""


class Owner(Protocol):
    """The index that refers to reservations, and must drop them when the pool evicts their bytes."""

    def forget(self, reservations: Sequence[Reservation]) -> None:
        """Drop reservations whose bytes the pool has evicted. They are not live any more."""
        ...


class Reservation:
    """Room for `length` bytes: one append, from its arrival until it is evicted.

    The cache has one such object per append, so it is small and refers to few others. Most reservations are in one
    block, at `start`; the bytes that do not fit there are in `more`. A reservation is not tiered at first.

    When an index has it, the index is its `owner`, `offset` is its offset in the segment, and `ledger_entry` is the
    log entry with its first byte. The values of `mark` are kept until it is tiered.
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
        "tiered",
        "writer_id",
    )

    def __init__(self, length: int, block: Block, start: int, more: tuple[Extent, ...] = ()) -> None:
        self.length = length
        self.block = block
        self.start = start
        self.more = more
        self.tiered = False
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
        """Copy `data` to the start of the reservation, where it must fit."""
        if not self.more and len(data) == 1:  # a fast path for the common case
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
        return [self.block, *[extent[0] for extent in self.more]]


def gather(entries: Iterable[Reservation]) -> tuple[list[memoryview], list[Block]]:
    """Views of the bytes of these entries, one for each group of adjacent ones, and the block of each view."""
    parts: list[memoryview] = []
    blocks: list[Block] = []
    block: Block | None = None
    start = end = 0
    for entry in entries:
        if not entry.more:  # a fast path for the common case
            if entry.block is not block or entry.start != end:
                if block is not None:
                    parts.append(block.view[start:end])
                    blocks.append(block)
                block, start = entry.block, entry.start
                if not block.view:
                    raise AssertionError(f"the bytes at {entry.offset} were requested before they were loaded")
                end = start
            end += entry.length
            continue
        for extent_block, position, length in entry.extents:
            if extent_block is not block or position != end:
                if not extent_block.view:
                    raise AssertionError(f"the bytes at {entry.offset} were requested before they were loaded")
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
