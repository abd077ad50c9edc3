"""The memory of the pool's blocks: touched by another thread before it is needed, and never more than the budget."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.segmentstore.cache import block_pool
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation

BLOCK_BYTES = 1 << 10
ARENA_BLOCKS = 4
CHARGED = BLOCK_BYTES - 256
"""A reservation that fills a block, with the charge for the index."""

RESIDENT = """
from pathlib import Path
from headrace.segmentstore.cache.block_pool import touched_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
memory = touched_memory(64 << 20)
print(resident() - before)
assert not any(memory[::4096])
"""


class Preparing:
    """Arenas are ready when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.ready: list[memoryview] = []
        self._waiting: list[tuple[int, Callable[[memoryview], None]]] = []

    def __call__(self, size_bytes: int, done: Callable[[memoryview], None]) -> None:
        self.asked.append(size_bytes)
        self._waiting.append((size_bytes, done))

    def finish(self, *, fails: bool = False) -> None:
        (size_bytes, done), *self._waiting = self._waiting
        self.ready.append(memoryview(bytearray(0 if fails else size_bytes)))
        done(self.ready[-1])


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch) -> Preparing:
    monkeypatch.setattr("headrace.segmentstore.cache.block_pool.ARENA_BYTES", ARENA_BLOCKS * BLOCK_BYTES)
    return Preparing()


def pool_of(blocks: int, preparing: Preparing) -> BlockPool:
    pool = BlockPool(blocks * BLOCK_BYTES, BLOCK_BYTES)
    pool.prepare_arenas(preparing)
    return pool


def fill(pool: BlockPool, blocks: int) -> list[Reservation]:
    reservations = [pool.reserve(CHARGED) for _ in range(blocks)]
    assert None not in reservations
    return [reservation for reservation in reservations if reservation is not None]


def is_in(reservation: Reservation, arena: memoryview) -> bool:
    return reservation.block.view.obj is arena.obj


def test_blocks_are_taken_from_the_prepared_arena(preparing: Preparing) -> None:
    pool = pool_of(12, preparing)
    preparing.finish()
    held = fill(pool, 4)
    preparing.finish()
    held += fill(pool, 5)
    assert [is_in(reservation, preparing.ready[0]) for reservation in held] == [True] * 4 + [False] * 5
    assert [is_in(reservation, preparing.ready[1]) for reservation in held] == [False] * 4 + [True] * 4 + [False]
    assert len(preparing.asked) == 3, "the next one is prepared when the last one is begun"


def test_arena_that_is_not_ready_is_not_waited_for(preparing: Preparing) -> None:
    pool = pool_of(12, preparing)
    held = fill(pool, 4)
    assert len(preparing.asked) == 1
    preparing.finish()
    (late,) = fill(pool, 1)
    assert is_in(late, preparing.ready[0])
    assert not any(is_in(reservation, preparing.ready[0]) for reservation in held)


@pytest.mark.parametrize("is_late", [False, True])
def test_prepared_arenas_add_nothing_to_the_budget(preparing: Preparing, *, is_late: bool) -> None:
    pool = pool_of(6, preparing)
    if not is_late:
        preparing.finish()
    fill(pool, 4)
    preparing.finish()
    fill(pool, 2)
    assert pool.reserve(CHARGED) is None
    assert preparing.asked == ([4 * BLOCK_BYTES] if is_late else [4 * BLOCK_BYTES, 2 * BLOCK_BYTES])


def test_without_memory_for_the_next_arena_it_goes_on(preparing: Preparing) -> None:
    pool = pool_of(12, preparing)
    preparing.finish(fails=True)
    fill(pool, 4)
    assert len(preparing.asked) == 2, "it tries again with the next one"


def test_pressure_is_reported_once_each_time_it_begins() -> None:
    calls: list[int] = []
    pool = BlockPool(8 * BLOCK_BYTES, BLOCK_BYTES, lambda: calls.append(pool.untiered_bytes))
    held = fill(pool, 5)
    assert calls == []
    held += fill(pool, 2)
    assert calls == [6 * CHARGED], "more than half of it, and not again"
    pool.mark_tiered(held[:3])
    assert pool.untiered_bytes == 4 * CHARGED
    fill(pool, 2)
    assert calls == [6 * CHARGED] * 2


def test_touched_memory_is_resident_and_empty() -> None:
    ended = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    assert 60 << 20 < int(ended.stdout) < 80 << 20


@pytest.mark.anyio
async def test_thread_prepares_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found: asyncio.Queue[memoryview] = asyncio.Queue()
    block_pool.prepare_in_thread(3 << 20, found.put_nowait)
    assert len(await found.get()) == 3 << 20

    def no_memory(_size_bytes: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(block_pool, "touched_memory", no_memory)
    block_pool.prepare_in_thread(3 << 20, found.put_nowait)
    assert not len(await found.get())
