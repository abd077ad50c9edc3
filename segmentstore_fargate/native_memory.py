"""Configures the C library so that it returns unused memory to the system.

glibc gives every thread an arena and returns little of the memory that is freed there. A store has a dozen threads that
move objects of 32 MiB. After some minutes of saturated load their arenas took 130 MB. Few arenas suffice, since only
one thread runs Python at a time.

glibc maps large pieces one by one and returns them at once, but only until the first of them is freed. Then it raises
its threshold and takes such pieces from the arenas, where a small piece behind them prevents their return. A threshold
that is set explicitly does not change.
"""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS_MAX: Final = 2
MAPPED_BYTES_MIN: Final = 1 << 20
"""Maps S3 bodies, but not blocks of appends. Blocks are in buffers that are reused, since a new page costs time."""

FREE_TOP_BYTES_MAX: Final = 4 << 20
_M_TRIM_THRESHOLD: Final = -1  # these of <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def give_back_memory() -> bool:
    """Apply the settings; call it before threads start. Returns False if the C library does not have them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_ARENA_MAX, ARENAS_MAX),
        (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, FREE_TOP_BYTES_MAX),
    )
    return all(mallopt(name, value) for name, value in settings)
