"""Raises a KeyboardInterrupt at each place of a call where Python may raise one.

CPython looks for signals at the start of a Python function and after the call of a function in C (and when it jumps
back, which is always near one of these). A profile function runs at the same places.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, NoReturn


def is_interrupted(call: Callable[[], object], at: int, *modules: ModuleType) -> bool:
    """Runs a call, and interrupts it in code of these modules, at the place with this number, from 0.

    False if it has ended before.
    """

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    try:
        return is_signalled(call, at, interrupt, *modules)
    except KeyboardInterrupt:
        return True


def is_signalled(call: Callable[[], object], at: int, handler: Callable[[], object], *modules: ModuleType) -> bool:
    """As `is_interrupted`, with another handler of the signal."""
    left = at
    is_done = False
    files = {module.__file__ for module in modules}

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left, is_done
        if is_done or event not in ("call", "c_return") or _file(frame) not in files:
            return
        left -= 1
        if left < 0:
            is_done = True
            handler()

    before = sys.getprofile()
    with _nothing_collected():
        sys.setprofile(look)
        try:
            call()
        finally:
            sys.setprofile(before)
    return is_done


@contextmanager
def interrupted_after(delay_s: float) -> Iterator[None]:
    """Raises a KeyboardInterrupt in the block after this time, by a signal. The block must not end before."""
    has_come = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if not has_come:  # the timer may have ended once more before it was stopped
            has_come = True
            raise KeyboardInterrupt

    with _nothing_collected():
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            # Repeated, because CPython may overlook a signal while threads change, until the next one comes.
            signal.setitimer(signal.ITIMER_REAL, delay_s, 0.2)
            yield
        finally:
            has_come = True
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # an error of the block leaves it running
            signal.signal(signal.SIGALRM, before)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collects no garbage in the block. An interrupt in a `__del__` would be ignored, and missing in the call."""
    collects = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _file(frame: FrameType) -> str:
    """The file of the code. That of a named tuple has none, and counts as part of its caller."""
    file = frame.f_code.co_filename
    return file if file != "<string>" or frame.f_back is None else frame.f_back.f_code.co_filename
