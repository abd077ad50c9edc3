"""Keeps the C library from holding on to memory for each thread.

glibc gives every thread an arena of its own and returns little of what is freed there. A store has a dozen threads that
move objects of 32 MiB: after some minutes of saturated load their arenas alone took 130 MB, here. Since one thread runs
Python at a time, they get along with few.
"""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS_MAX: Final = 2
_M_ARENA_MAX: Final = -8  # of <malloc.h>


def share_arenas() -> bool:
    """To be called before there are threads; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))
