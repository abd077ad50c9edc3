"""The memory for appended data: a fixed budget of blocks, filled one after the other and used again as a whole.

A block that was touched once is several times cheaper to fill than fresh memory, so blocks are never given back while
the budget holds them. Data lies in the pool from the moment it is received until it is both in tier 2 and in the way
of newer data: bytes that are only here are never dropped, and when they fill the budget, `reserve` answers None and
whoever receives must wait. Everything here runs on the event loop.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.model.errors import InvalidRequestError

BLOCK_BYTES: Final = 1 << 20

ENTRY_CHARGE_BYTES: Final = 256
"""Charged beside the bytes of each reservation: what the index needs in Python objects to know them."""


class Block:
    """`references` counts what may still look at the bytes, `unstored` what is not in tier 2 yet."""

    __slots__ = ("dropped", "filled", "pooled", "references", "residents", "unstored", "view")

    def __init__(self, size_bytes: int, *, pooled: bool) -> None:
        self.view = memoryview(mmap.mmap(-1, size_bytes))
        self.pooled = pooled
        self.reset()

    def reset(self) -> None:
        self.references = 0
        self.unstored = 0
        self.filled = False
        self.dropped = False
        self.residents: list[Reservation] = []


class Reservation:
    """Room for `length` bytes in `parts`, which may lie in several blocks.

    It starts out unstored. `on_drop` is called when the pool takes the bytes of a stored one away; whoever indexes
    them must forget them then.
    """

    __slots__ = ("blocks", "length", "live", "on_drop", "parts", "stored")

    def __init__(self, length: int) -> None:
        self.length = length
        self.parts: list[memoryview] = []
        self.blocks: list[Block] = []
        self.stored = False
        self.live = True
        self.on_drop: Callable[[], None] | None = None


class BlockPool:
    """`budget_bytes` is rounded down to whole blocks."""

    def __init__(self, budget_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._blocks_max = budget_bytes // block_bytes
        if self._blocks_max < 2:
            raise InvalidRequestError(f"{budget_bytes} bytes of cache are less than two blocks of {block_bytes} bytes")
        self._block_bytes = block_bytes
        self._made = 0
        self._free: list[Block] = []
        self._evictable: deque[Block] = deque()
        self._waiters: deque[tuple[int, Callable[[Reservation], None]]] = deque()
        self._current: Block | None = None
        self._used = 0
        self.unstored_bytes = 0
        self.evicted_blocks = 0
        self.on_pressure: Callable[[], None] | None = None

    @property
    def capacity_bytes(self) -> int:
        return self._blocks_max * self._block_bytes

    @property
    def used_bytes(self) -> int:
        """In blocks that hold anything."""
        return (self._made - len(self._free)) * self._block_bytes

    @property
    def waiting(self) -> int:
        """Who waits for room."""
        return len(self._waiters)

    @property
    def reservation_bytes_max(self) -> int:
        """Larger reservations could never be sure to succeed."""
        return self.capacity_bytes // 2

    def reserve(self, length: int, *, overdraft: bool = False) -> Reservation | None:
        """Room for `length` bytes, or None if data that is only in memory fills the budget.

        `overdraft` takes fresh memory instead of failing: for recovery only, which must hold what was acknowledged.

        Raises:
            InvalidRequestError: more than `reservation_bytes_max`.
        """
        if length > self.reservation_bytes_max and not overdraft:
            raise InvalidRequestError(
                f"{length} bytes at once are more than half of the cache of {self.capacity_bytes} bytes",
                details={"bytes": length, "bytes_max": self.reservation_bytes_max},
            )
        if not overdraft and (self._waiters or not self._make_room(length, overdraft=False)):
            if self.on_pressure is not None:
                self.on_pressure()
            return None
        self._make_room(length, overdraft=overdraft)
        return self._take(length)

    def _take(self, length: int) -> Reservation:
        reservation = Reservation(length)
        self._charge()
        pending = length
        while pending or not reservation.blocks:
            block = self._current_block()
            taken = min(pending, self._block_bytes - self._used)
            reservation.parts.append(block.view[self._used : self._used + taken])
            reservation.blocks.append(block)
            block.references += 1
            block.unstored += 1
            block.residents.append(reservation)
            self._used += taken
            pending -= taken
        self.unstored_bytes += length
        return reservation

    def mark_stored(self, reservation: Reservation) -> None:
        """The bytes are in tier 2, or nobody wants them: from now on they may be dropped."""
        if reservation.stored:
            return
        reservation.stored = True
        self.unstored_bytes -= reservation.length
        for block in reservation.blocks:
            block.unstored -= 1
            self._note_evictable(block)
        self._serve_waiters()

    def release(self, reservation: Reservation) -> None:
        """Give the room back: the index does not know the bytes any more. More than once is fine."""
        if not reservation.live:
            return
        reservation.live = False
        reservation.on_drop = None
        self.mark_stored(reservation)
        self.unpin(reservation.blocks)
        reservation.parts = []

    def compose(self, parts: list[memoryview], sources: list[Reservation]) -> Reservation:
        """One reservation of `parts`, which are views of the sources; the sources are no more."""
        composed = Reservation(sum(map(len, parts)))
        composed.parts = parts
        for source in sources:
            composed.blocks.extend(source.blocks)
            self.unstored_bytes -= source.length
            source.live, source.stored, source.on_drop = False, True, None
            source.parts, source.blocks = [], []
        self.unstored_bytes += composed.length
        for block in composed.blocks:
            block.residents.append(composed)
        return composed

    def pin(self, blocks: list[Block]) -> None:
        """Keep the bytes of these blocks as they are until `unpin`, indexed or not: somebody is sending them."""
        for block in blocks:
            block.references += 1

    def unpin(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.references -= 1
            self._reuse_if_idle(block)
        self._serve_waiters()

    def wait(self, length: int, receive: Callable[[Reservation], None]) -> None:
        """Hand a reservation of `length` bytes to `receive` when there is room; first come, first served.

        `receive` must not call back into the pool: it comes from the middle of its work.
        """
        self._waiters.append((length, receive))

    @property
    def under_pressure(self) -> bool:
        """Whether tier 2 should hurry: half of the budget is only in memory, or somebody waits."""
        return bool(self._waiters) or 2 * self.unstored_bytes > self.capacity_bytes

    def _room(self) -> int:
        unused = len(self._free) + max(self._blocks_max - self._made, 0)
        return unused * self._block_bytes + (self._block_bytes - self._used if self._current else 0)

    def _make_room(self, length: int, *, overdraft: bool) -> bool:
        while self._room() < length + ENTRY_CHARGE_BYTES:
            if not self._evict_one():
                if not overdraft:
                    return False
                self._free.append(Block(self._block_bytes, pooled=False))
        return True

    def _evict_one(self) -> bool:
        """Drop the longest evictable block; its memory is free at once unless somebody is still sending it."""
        while self._evictable:
            block = self._evictable.popleft()
            if block.dropped or block.unstored or not block.filled:
                continue  # noted twice, or used again since it was noted
            block.dropped = True
            self.evicted_blocks += 1
            for resident in block.residents:
                if resident.live:
                    if resident.on_drop is not None:
                        resident.on_drop()
                    self._drop(resident)
            block.residents = []
            self._reuse_if_idle(block)
            return True
        return False

    def _drop(self, reservation: Reservation) -> None:
        reservation.live = False
        reservation.on_drop = None
        reservation.parts = []
        for block in reservation.blocks:
            block.references -= 1
            self._reuse_if_idle(block)

    def _note_evictable(self, block: Block) -> None:
        if block.filled and not block.unstored:
            self._evictable.append(block)

    def _reuse_if_idle(self, block: Block) -> None:
        if block.references or not block.filled:
            return
        block.reset()
        if block.pooled:
            self._free.append(block)

    def _charge(self) -> None:
        """Use up the room that stands for the index's own memory."""
        self._current_block()
        self._used = min(self._used + ENTRY_CHARGE_BYTES, self._block_bytes)

    def _current_block(self) -> Block:
        if self._current is not None and self._used < self._block_bytes:
            return self._current
        if self._current is not None:
            self._close_current(self._current)
        if self._free:
            block = self._free.pop()
        else:
            block = Block(self._block_bytes, pooled=True)
            self._made += 1
        self._current, self._used = block, 0
        return block

    def _close_current(self, block: Block) -> None:
        self._current = None
        block.filled = True
        if not block.references:
            self._reuse_if_idle(block)
        else:
            self._note_evictable(block)

    def _serve_waiters(self) -> None:
        while self._waiters and self._make_room(self._waiters[0][0], overdraft=False):
            length, receive = self._waiters.popleft()
            receive(self._take(length))


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
