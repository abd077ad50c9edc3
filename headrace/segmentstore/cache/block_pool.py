"""The memory for appended data: a fixed budget of blocks, filled one after the other and used again as a whole.

A block that was touched once is several times cheaper to fill than fresh memory, so blocks are never given back while
the budget holds them. Data is in the pool from its arrival until it is both in tier 2 and in the way of newer data:
bytes that are only here are never dropped, and when they fill the budget, `reserve` answers None and the receiver must
wait. Everything here runs on the event loop.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.segmentstore.cache.reservations import Block, Extent, Owner, Reservation

BLOCK_BYTES: Final = 1 << 20

ARENA_BYTES: Final = 16 << 20
"""Taken from the system at once: large enough for huge pages, small beside any budget."""

ENTRY_CHARGE_BYTES: Final = 256
"""Charged beside the bytes of each reservation: what the index needs in Python objects to know them."""


class BlockPool:
    """`budget_bytes` is rounded down to whole blocks."""

    def __init__(self, budget_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._blocks_max = budget_bytes // block_bytes
        if self._blocks_max < 2:
            raise InvalidRequestError(f"{budget_bytes} bytes of cache are less than two blocks of {block_bytes} bytes")
        self._block_bytes = block_bytes
        self._made = 0
        self._arena = memoryview(b"")  # what is left of the last one
        self._free: list[Block] = []
        self._evictable: deque[Block] = deque()
        self._waiters: deque[tuple[int, Callable[[Reservation], None]]] = deque()
        self._current: Block | None = None
        self._nowhere = Block(memoryview(b""), pooled=False)  # of what was promised
        self._promised_bytes = 0
        self._used = 0
        self._limit = 0  # up to which the current block may be used
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

    def reserve(self, length: int) -> Reservation | None:
        """Room for `length` bytes, or None if data that is only in memory fills the budget.

        Raises:
            InvalidRequestError: more than `reservation_bytes_max`.
        """
        if length > self.reservation_bytes_max:
            raise InvalidRequestError(
                f"{length} bytes at once are more than half of the cache of {self.capacity_bytes} bytes",
                details={"bytes": length, "bytes_max": self.reservation_bytes_max},
            )
        if self._waiters or not self._make_room(length, overdraft=False):
            if self.on_pressure is not None:
                self.on_pressure()
            return None
        return self._take(length)

    def promise(self, length: int, position: int) -> Reservation:
        """A reservation whose bytes are not here yet but at `position` of their log entry: for recovery only.

        It counts as unstored, and room is kept for it. It has its `start` there, and no bytes, until `load` is called.
        """
        nowhere = self._nowhere
        self._promised_bytes += length + ENTRY_CHARGE_BYTES
        nowhere.references += 1
        nowhere.unstored += 1
        self.unstored_bytes += length
        return Reservation(length, nowhere, position)

    def load(self, reservation: Reservation, content: memoryview) -> None:
        """Fill a promised reservation, from fresh memory if there is no other: what was acknowledged must be held."""
        self._nowhere.references -= 1
        self._nowhere.unstored -= 1
        self._promised_bytes -= reservation.length + ENTRY_CHARGE_BYTES
        self._make_room(reservation.length, overdraft=True)
        self._place(reservation)
        for part in reservation.parts:
            part[:] = content[: len(part)]
            content = content[len(part) :]

    def _take(self, length: int) -> Reservation:
        reservation = Reservation(length, self._nowhere, 0)
        self._place(reservation)
        self.unstored_bytes += length
        return reservation

    def _place(self, reservation: Reservation) -> None:
        length, block, start, limit = reservation.length, self._current, self._used, self._limit - ENTRY_CHARGE_BYTES
        if block is not None and 0 < length <= limit - start:  # as nearly always; else the same in small steps
            self._used, self._limit = start + length, limit
            reservation.block, reservation.start = block, start
            _occupy(block, reservation)
            return
        self._charge()
        block, start = self._current_block(), self._used
        pending = reservation.length - min(reservation.length, self._limit - start)
        self._used += reservation.length - pending
        reservation.block, reservation.start = block, start
        _occupy(block, reservation)
        while pending:
            block, start = self._current_block(), self._used
            taken = min(pending, self._limit - start)
            self._used += taken
            pending -= taken
            reservation.more += ((block, start, taken),)
            _occupy(block, reservation)

    def mark_stored(self, reservations: Sequence[Reservation]) -> None:
        """These bytes are in tier 2, or nobody wants them: from now on they may be dropped."""
        for reservation in reservations:
            if not reservation.stored:
                reservation.stored = True
                reservation.writer_id = None
                self.unstored_bytes -= reservation.length
                self._count_stored(reservation.block)
                for block, _, _ in reservation.more:
                    self._count_stored(block)
        self._serve_waiters()

    def release(self, reservation: Reservation) -> None:
        """Give the room back: the index does not know the bytes any more. More than once is fine."""
        if not reservation.live:
            return
        reservation.live = False
        reservation.owner = None
        if reservation.block is self._nowhere:
            self._promised_bytes -= reservation.length + ENTRY_CHARGE_BYTES
        self.mark_stored((reservation,))
        self.unpin(reservation.blocks)

    def compose(self, pieces: Sequence[tuple[Reservation, int, int]]) -> Reservation:
        """One reservation of pieces of others, given as (source, start in it, length); the sources are no more."""
        extents = [extent for source, start, length in pieces for extent in _slice_extents(source, start, length)]
        (block, start, _), *more = extents or pieces[0][0].extents[:1]
        composed = Reservation(sum(length for _, _, length in pieces), block, start, tuple(more))
        for block in composed.blocks:
            _occupy(block, composed)
        self.unstored_bytes += composed.length
        for source, _, _ in pieces:
            self.release(source)
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
        free_bytes = unused * self._block_bytes + (self._limit - self._used if self._current else 0)
        return free_bytes - self._promised_bytes

    def _make_room(self, length: int, *, overdraft: bool) -> bool:
        if self._current and not self._promised_bytes and self._limit - self._used >= length + ENTRY_CHARGE_BYTES:
            return True  # the block that is being filled has it
        while self._room() < length + ENTRY_CHARGE_BYTES:
            if not self._evict_one():
                if not overdraft:
                    return False
                self._free.append(Block(_fresh_memory(self._block_bytes), pooled=False))
        return True

    def _evict_one(self) -> bool:
        """Drop the longest evictable block; its memory is free at once unless somebody is still sending it."""
        while self._evictable:
            block = self._evictable.popleft()
            if block.dropped or block.unstored or not block.filled:
                continue  # noted twice, or used again since it was noted
            block.dropped = True
            self.evicted_blocks += 1
            self._drop_residents(block)
            self._reuse_if_idle(block)
            return True
        return False

    def _drop_residents(self, block: Block) -> None:
        residents, block.residents = block.residents, []
        dropped: dict[Owner, list[Reservation]] = {}
        for resident in residents:
            if resident.live:
                resident.live = False
                if resident.owner is not None:
                    dropped.setdefault(resident.owner, []).append(resident)
                    resident.owner = None
                for held in resident.blocks if resident.more else (block,):
                    held.references -= 1
                    if held is not block:
                        self._reuse_if_idle(held)
        for owner, reservations in dropped.items():
            owner.forget(reservations)

    def _count_stored(self, block: Block) -> None:
        block.unstored -= 1
        if not block.unstored:
            self._note_evictable(block)

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
        """Give up room at the end of the block for the index's own memory: appends lie side by side."""
        self._current_block()
        self._limit = max(self._limit - ENTRY_CHARGE_BYTES, self._used)

    def _current_block(self) -> Block:
        if self._current is not None and self._used < self._limit:
            return self._current
        if self._current is not None:
            self._close_current(self._current)
        block = self._free.pop() if self._free else self._make_block()
        self._current, self._used, self._limit = block, 0, self._block_bytes
        return block

    def _make_block(self) -> Block:
        if not self._arena:
            wanted = max(1, ARENA_BYTES // self._block_bytes)
            left = max(1, self._blocks_max - self._made)
            self._arena = _fresh_memory(min(wanted, left) * self._block_bytes)
        view, self._arena = self._arena[: self._block_bytes], self._arena[self._block_bytes :]
        self._made += 1
        return Block(view, pooled=True)

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


def _fresh_memory(size_bytes: int) -> memoryview:
    """Private and, where it is large and the system has them, in huge pages: the first touch of each page is a fault.

    With pages of 4 KiB the faults took a quarter of a store's time while its cache was filled for the first time.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= ARENA_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _occupy(block: Block, reservation: Reservation) -> None:
    block.references += 1
    block.unstored += 1
    block.residents.append(reservation)


def _slice_extents(source: Reservation, start: int, length: int) -> Iterator[Extent]:
    for block, position, extent_bytes in source.extents:
        taken = min(length, extent_bytes - start)
        if taken > 0:
            yield block, position + start, taken
            length -= taken
        start = max(0, start - extent_bytes)
