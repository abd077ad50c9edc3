"""Time, injected, and the deadline of what the current thread does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from headrace.model.errors import OutOfTimeError


class Clock(Protocol):
    """Wall clock for what is stored and shown, monotonic clock for intervals."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


# The time that the work of the current thread may take: a deadline that nested limits only ever bring closer.
#
# A function takes it from the time that Lambda leaves it, and everything below asks here. An adapter begins no request
# after the deadline and waits no longer for one than the deadline allows. A workflow asks between two pieces of work,
# and continues in its next message. It is kept in a context variable, as cancel scopes are, so that no call between the
# function and the adapter has to carry it. A new thread must be started in a copy of the context.

PIECE_S = 5.0
"""Time that must be left to begin another piece of a workflow: ordinary pieces take far less."""


class WorkLeftError(OutOfTimeError):
    """A workflow stopped between two pieces of its work, of which at least one was done: go on in another call."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock."""

    clock: Clock
    at_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - self.clock.monotonic_s())


_current: ContextVar[Deadline | None] = ContextVar("headrace_deadline", default=None)


@contextmanager
def time_limit(clock: Clock, seconds: float) -> Iterator[None]:
    """What is done inside ends within `seconds`, or earlier if an outer limit says so."""
    outer = _current.get()
    own = Deadline(clock, clock.monotonic_s() + seconds)
    token = _current.set(own if outer is None or own.left_s < outer.left_s else outer)
    try:
        yield
    finally:
        _current.reset(token)


def time_left_s(at_most: float = math.inf) -> float:
    """Seconds until the deadline, at most `at_most`; without a deadline `at_most`."""
    deadline = _current.get()
    return at_most if deadline is None else min(at_most, deadline.left_s)


def require_time(what: str, seconds: float = 0.0) -> None:
    """Raises OutOfTimeError unless more than `seconds` are left for `what`."""
    left_s = time_left_s()
    if left_s <= seconds:
        raise OutOfTimeError(
            f"{what}: {left_s:.1f} s are left and {seconds:g} s are needed; repeat", details={"needed_s": seconds}
        )


def is_time_short() -> bool:
    """Whether a workflow must not begin another piece of its work."""
    return time_left_s() <= PIECE_S


def require_time_for_piece(what: str) -> None:
    """Asked by a workflow after a piece of its work; raises WorkLeftError when the next one must wait."""
    if is_time_short():
        raise WorkLeftError(f"{what}: {time_left_s():.1f} s are left, too few for the next piece")
