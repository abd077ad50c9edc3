"""Memory for the cache of a store that was written to before it is measured."""

from __future__ import annotations

from benchmarks.settings import MIB
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation


def touched_pool(capacity_bytes: int) -> BlockPool:
    """All its memory was used before. A virtual machine takes milliseconds for the first use of a huge page."""
    pool = BlockPool(capacity_bytes)
    held: list[Reservation] = []
    while (reservation := pool.reserve(MIB)) is not None:
        for part in reservation.parts:
            part[:] = bytes(len(part))
        held.append(reservation)
    for reservation in held:
        pool.release(reservation)
    return pool
