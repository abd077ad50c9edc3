"""The descriptors of standard input, output and errors, if the program was started without some of them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_FLAGS: Final = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
"""How /dev/null takes the place of each. Standard input cannot be read and standard output cannot be written,
so that no program takes a missing input for an empty one. Messages to standard error are lost."""


def occupy_closed_standard_descriptors() -> None:
    """Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed.

    Else the next socket or file would get such a number. uvloop ends the process when it closes it, and what the
    program prints would go there.
    """
    for descriptor, flags in enumerate(_FLAGS):
        if _is_open(descriptor):
            continue
        with suppress(OSError):  # no descriptor is free, or there is no /dev/null
            opened = os.open(os.devnull, flags)
            if opened < len(_FLAGS):
                os.set_inheritable(opened, True)
            else:  # another thread was faster
                os.close(opened)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
