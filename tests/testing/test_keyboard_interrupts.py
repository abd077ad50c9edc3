"""The interrupts of tests reach the calls that they are meant for, once, and leave the process as it was."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from itertools import count
from typing import Any

import pytest
from keyboard_interrupts import interrupted_after, is_interrupted


class Garbage:
    """A cycle whose end runs code of this module."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        called()


def called() -> None:
    pass


def test_garbage_takes_no_interrupt_of_a_call() -> None:
    has_ended = False

    def call() -> None:
        nonlocal has_ended
        Garbage()
        _lists: list[list[int]] = [[] for _ in range(200)]  # enough that the collector looks
        called()
        has_ended = True

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for at in count():
            has_ended = False
            was_interrupted = is_interrupted(call, at, sys.modules[__name__])
            assert was_interrupted != has_ended, f"at place {at}"
            if has_ended:
                break
    finally:
        gc.set_threshold(*before)
    assert at > 1


def left_as_before() -> bool:
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    return gc.isenabled() and handler is signal.SIG_DFL and timer == (0.0, 0.0)


def test_late_signal_does_not_interrupt_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer may end once more before it is stopped, and CPython may see that signal only later."""
    set_handler = signal.signal

    def set_late(number: int, handler: Any) -> Any:
        if handler is signal.SIG_DFL:
            signal.raise_signal(signal.SIGALRM)
        return set_handler(number, handler)

    def wait() -> None:
        with interrupted_after(0.001):
            threading.Event().wait()

    monkeypatch.setattr(signal, "signal", set_late)
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert left_as_before()


def test_error_of_the_block_stops_the_timer() -> None:
    """Else the signal would end the process, since it has no handler any more."""
    with pytest.raises(ValueError, match="of the block"), interrupted_after(60.0):
        raise ValueError("of the block")
    assert left_as_before()
