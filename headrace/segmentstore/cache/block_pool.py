"""The memory for appended data: a fixed budget of blocks, which are filled in turn and reused as a whole.

Filling a block that was used before is several times cheaper than filling fresh memory. So the pool returns no block
of the budget to the system. The pool keeps data until tier 2 has it and newer data needs the room. Data that is not
tiered is never evicted. When it fills the budget, `reserve` returns None and the receiver must wait.

All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.segmentstore.cache.reservations import Block, Extent, Owner, Reservation

# The memory of blocks is allocated in arenas, and another thread may touch the next arena before it is needed.
#
# The first touch of a page is a fault, and one of a huge page has the kernel clear 2 MiB. On a virtual machine this
# takes milliseconds, in which the event loop does nothing else. After each start a store fills its cache for the first
# time.

_log = logging.getLogger(__name__)

ARENA_BYTES: Final = 16 << 20
"""Allocated at once: large enough for huge pages, and small compared with any budget."""

_TOUCHED_BYTES: Final = 1 << 20

PrepareArena = Callable[[int, Callable[[memoryview], None]], object]
"""`prepare(size_bytes, done)` calls `done` on the event loop with touched memory of this size; empty if it cannot."""


def fresh_memory(size_bytes: int) -> memoryview:
    """Allocate private memory, in huge pages if it is large and the system has them.

    With pages of 4 KiB the faults took a quarter of a store's time while its cache was filled for the first time.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= ARENA_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def touched_memory(size_bytes: int) -> memoryview:
    """As `fresh_memory`, with all pages touched. The kernel writes the zeros, so other threads run Python meanwhile."""
    memory = fresh_memory(size_bytes)
    with open("/dev/zero", "rb", buffering=0) as zeros:
        position = 0
        while position < size_bytes:
            position += zeros.readinto(memory[position : position + _TOUCHED_BYTES])
    return memory


def prepare_in_thread(size_bytes: int, done: Callable[[memoryview], None]) -> None:
    """A `PrepareArena` with the threads of the running event loop."""

    def tell(work: asyncio.Future[memoryview]) -> None:
        if work.cancelled():
            return
        if (error := work.exception()) is not None:
            _log.warning("event=arena_not_prepared error=%r", error)
        done(work.result() if error is None else memoryview(b""))

    asyncio.get_running_loop().run_in_executor(None, touched_memory, size_bytes).add_done_callback(tell)


BLOCK_BYTES: Final = 1 << 20

ENTRY_CHARGE_BYTES: Final = 256
"""Charged for each reservation in addition to its bytes: the memory of its Python objects in the index."""


class BlockPool:
    """The blocks of one process. `budget_bytes` is rounded down to whole blocks.

    `on_pressure` is called when more than half of it becomes untiered, and each time that a reservation finds no room.
    """

    def __init__(
        self, budget_bytes: int, block_bytes: int = BLOCK_BYTES, on_pressure: Callable[[], None] | None = None
    ) -> None:
        self._blocks_max = budget_bytes // block_bytes
        if self._blocks_max < 2:
            raise InvalidRequestError(f"{budget_bytes} bytes of cache are less than two blocks of {block_bytes} bytes")
        self._block_bytes = block_bytes
        self._made = 0
        self._arena = memoryview(b"")  # the unused rest of the last arena
        self._next_arena = memoryview(b"")
        self._prepare: PrepareArena | None = None
        self._is_preparing = False
        self._free: list[Block] = []
        self._evictable: deque[Block] = deque()
        self._waiters: deque[tuple[int, Callable[[Reservation], None]]] = deque()
        self._current: Block | None = None
        self._nowhere = Block(memoryview(b""), pooled=False)  # the block of promised reservations, without memory
        self._promised_bytes = 0
        self._used = 0
        self._limit = 0  # the end of the usable part of the current block
        self.untiered_bytes = 0
        self.evicted_blocks = 0
        self._on_pressure = on_pressure

    @property
    def capacity_bytes(self) -> int:
        return self._blocks_max * self._block_bytes

    @property
    def used_bytes(self) -> int:
        """The size of the blocks that hold data."""
        return (self._made - len(self._free)) * self._block_bytes

    @property
    def waiting(self) -> int:
        """The number of receivers that wait for room."""
        return len(self._waiters)

    @property
    def reservation_bytes_max(self) -> int:
        """The largest reservation that is certain to succeed once enough data is tiered."""
        return self.capacity_bytes // 2

    def reserve(self, length: int) -> Reservation | None:
        """Reserve room for `length` bytes; None if data that is not tiered fills the budget.

        Raises:
            InvalidRequestError: `length` exceeds `reservation_bytes_max`.
        """
        if length > self.reservation_bytes_max:
            raise InvalidRequestError(
                f"{length} bytes at once exceed half of the cache, which has {self.capacity_bytes} bytes",
                details={"bytes": length, "bytes_max": self.reservation_bytes_max},
            )
        if self._waiters or not self._make_room(length, overdraft=False):
            if self._on_pressure is not None:
                self._on_pressure()
            return None
        return self._take(length)

    def prepare_arenas(self, prepare: PrepareArena) -> None:
        """Have each arena prepared before it is needed. One that is not ready then is allocated as without this."""
        self._prepare = prepare
        self._prepare_next()

    def promise(self, length: int, position: int) -> Reservation:
        """Reserve room for bytes that are still in the log, at `position` of their entry. Only recovery calls this.

        The bytes count as not tiered, and their room is kept free. Until `load` is called the reservation has no bytes,
        and its `start` is `position`.
        """
        nowhere = self._nowhere
        self._promised_bytes += length + ENTRY_CHARGE_BYTES
        nowhere.references += 1
        nowhere.untiered += 1
        self.untiered_bytes += length
        return Reservation(length, nowhere, position)

    def load(self, reservation: Reservation, content: memoryview) -> None:
        """Fill a promised reservation, with memory beyond the budget if need be: acknowledged data must be kept."""
        self._nowhere.references -= 1
        self._nowhere.untiered -= 1
        self._promised_bytes -= reservation.length + ENTRY_CHARGE_BYTES
        self._make_room(reservation.length, overdraft=True)
        self._place(reservation)
        for part in reservation.parts:
            part[:] = content[: len(part)]
            content = content[len(part) :]

    def _take(self, length: int) -> Reservation:
        reservation = Reservation(length, self._nowhere, 0)
        self._place(reservation)
        was_pressed = self._is_half_untiered
        self.untiered_bytes += length
        if self._is_half_untiered and not was_pressed and self._on_pressure is not None:
            self._on_pressure()
        return reservation

    def _place(self, reservation: Reservation) -> None:
        length, block, start, limit = reservation.length, self._current, self._used, self._limit - ENTRY_CHARGE_BYTES
        if block is not None and 0 < length <= limit - start:  # a fast path for the common case
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

    def mark_tiered(self, reservations: Sequence[Reservation]) -> None:
        """Allow the eviction of bytes that tier 2 has, or that are not needed any more."""
        for reservation in reservations:
            if not reservation.tiered:
                reservation.tiered = True
                reservation.writer_id = None
                self.untiered_bytes -= reservation.length
                self._count_tiered(reservation.block)
                for block, _, _ in reservation.more:
                    self._count_tiered(block)
        self._serve_waiters()

    def release(self, reservation: Reservation) -> None:
        """Free the room of a reservation that the index no longer has. Calling it twice does no harm."""
        if not reservation.live:
            return
        reservation.live = False
        reservation.owner = None
        if reservation.block is self._nowhere:
            self._promised_bytes -= reservation.length + ENTRY_CHARGE_BYTES
        self.mark_tiered((reservation,))
        self.unpin(reservation.blocks)

    def compose(self, pieces: Sequence[tuple[Reservation, int, int]]) -> Reservation:
        """Make one reservation of pieces, given as (source, start in it, length), and release the sources."""
        extents = [extent for source, start, length in pieces for extent in _slice_extents(source, start, length)]
        (block, start, _), *more = extents or pieces[0][0].extents[:1]
        composed = Reservation(sum(length for _, _, length in pieces), block, start, tuple(more))
        for block in composed.blocks:
            _occupy(block, composed)
        self.untiered_bytes += composed.length
        for source, _, _ in pieces:
            self.release(source)
        return composed

    def pin(self, blocks: list[Block]) -> None:
        """Keep the bytes of these blocks unchanged until `unpin`, because a connection is sending them."""
        for block in blocks:
            block.references += 1

    def unpin(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.references -= 1
            self._reuse_if_idle(block)
        self._serve_waiters()

    def wait(self, length: int, receive: Callable[[Reservation], None]) -> None:
        """Pass a reservation of `length` bytes to `receive` when there is room. Waiters are served in order.

        `receive` must not call the pool, which is in the middle of a change at that time.
        """
        self._waiters.append((length, receive))

    @property
    def under_pressure(self) -> bool:
        """Whether the store should flush soon: half of the budget is not tiered, or a receiver waits for room."""
        return bool(self._waiters) or self._is_half_untiered

    @property
    def _is_half_untiered(self) -> bool:
        return 2 * self.untiered_bytes > self.capacity_bytes

    def _room(self) -> int:
        unused = len(self._free) + max(self._blocks_max - self._made, 0)
        free_bytes = unused * self._block_bytes + (self._limit - self._used if self._current else 0)
        return free_bytes - self._promised_bytes

    def _make_room(self, length: int, *, overdraft: bool) -> bool:
        if self._current and not self._promised_bytes and self._limit - self._used >= length + ENTRY_CHARGE_BYTES:
            return True  # the current block has enough room
        while self._room() < length + ENTRY_CHARGE_BYTES:
            if not self._evict_one():
                if not overdraft:
                    return False
                self._free.append(Block(fresh_memory(self._block_bytes), pooled=False))
        return True

    def _evict_one(self) -> bool:
        """Evict the block that has been evictable for the longest time; False if there is none.

        Its memory is free at once, unless a connection is still sending it.
        """
        while self._evictable:
            block = self._evictable.popleft()
            if block.dropped or block.untiered or not block.filled:
                continue  # it was queued twice, or was reused since it was queued
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

    def _count_tiered(self, block: Block) -> None:
        block.untiered -= 1
        if not block.untiered:
            self._note_evictable(block)

    def _note_evictable(self, block: Block) -> None:
        if block.filled and not block.untiered:
            self._evictable.append(block)

    def _reuse_if_idle(self, block: Block) -> None:
        if block.references or not block.filled:
            return
        block.reset()
        if block.pooled:
            self._free.append(block)

    def _charge(self) -> None:
        """Reduce the usable part of the block by the charge for the index.

        The end of the block pays for it, so that appends stay adjacent.
        """
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
            size_bytes = self._arena_bytes()
            arena, self._next_arena = self._next_arena, memoryview(b"")
            self._arena = arena[:size_bytes] or fresh_memory(size_bytes)
            self._prepare_next()
        view, self._arena = self._arena[: self._block_bytes], self._arena[self._block_bytes :]
        self._made += 1
        return Block(view, pooled=True)

    def _arena_bytes(self) -> int:
        """The size of the arena after the present one."""
        wanted = max(1, ARENA_BYTES // self._block_bytes)
        return min(wanted, max(1, self._blocks_left)) * self._block_bytes

    @property
    def _blocks_left(self) -> int:
        """How many blocks of the budget are not in an arena yet."""
        return self._blocks_max - self._made - len(self._arena) // self._block_bytes

    def _prepare_next(self) -> None:
        is_needed = not self._is_preparing and not self._next_arena and self._blocks_left > 0
        if self._prepare is not None and is_needed:
            self._is_preparing = True
            self._prepare(self._arena_bytes(), self._prepared)

    def _prepared(self, arena: memoryview) -> None:
        self._is_preparing = False
        self._next_arena = arena

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


def _occupy(block: Block, reservation: Reservation) -> None:
    block.references += 1
    block.untiered += 1
    block.residents.append(reservation)


def _slice_extents(source: Reservation, start: int, length: int) -> Iterator[Extent]:
    for block, position, extent_bytes in source.extents:
        taken = min(length, extent_bytes - start)
        if taken > 0:
            yield block, position + start, taken
            length -= taken
        start = max(0, start - extent_bytes)
