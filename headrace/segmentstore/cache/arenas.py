"""The memory of blocks is allocated in arenas, and another thread may touch the next arena before it is needed.

The first touch of a page is a fault, and one of a huge page has the kernel clear 2 MiB. On a virtual machine this takes
milliseconds, in which the event loop does nothing else. After each start a store fills its cache for the first time.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Final

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
