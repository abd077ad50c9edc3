"""Keeps the C library from holding on to memory that nobody uses.

glibc gives every thread an arena of its own and returns little of what is freed there. A store has a dozen threads that
move objects of 32 MiB: after some minutes of saturated load their arenas alone took 130 MB, here. Since one thread runs
Python at a time, they get along with few.

Large pieces are mapped one by one and given back at once, but only until the first of them is freed: from then on glibc
takes pieces of that size from the arenas, where a small one behind them keeps them. A threshold that is set stays.
"""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS_MAX: Final = 2
MAPPED_BYTES_MIN: Final = 1 << 20
"""Bodies of S3, not blocks of appends: those lie in buffers that are used again, since a fresh page costs time."""

FREE_TOP_BYTES_MAX: Final = 4 << 20
_M_TRIM_THRESHOLD: Final = -1  # these of <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def give_back_memory() -> bool:
    """To be called before there are threads; False where the C library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_ARENA_MAX, ARENAS_MAX),
        (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, FREE_TOP_BYTES_MAX),
    )
    return all(mallopt(name, value) for name, value in settings)
