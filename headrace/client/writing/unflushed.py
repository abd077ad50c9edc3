"""The ends of processes: writers that were not closed are flushed and reported, or are left to the parent after a fork.

At the exit of the interpreter the events of open writers are flushed, for `EXIT_FLUSH_S` at most, and a log line tells
how many there were. Writers of an event loop that has ended cannot be flushed: their events are reported as lost.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from headrace.client.ownership import keep_in_children

EXIT_FLUSH_S = 10.0
"""How long the exit of the interpreter waits for acknowledgements, of all writers together."""

_log = logging.getLogger("headrace.client")


class Unflushed(Protocol):
    """What was written to one stream, as the exit sees it."""

    stream_name: str
    """Empty if the events are of no stream; then nothing is reported."""
    acknowledged_events: int
    failed_events: int
    is_reported: bool
    """Whether its lost events are told already: at the exit, which comes before it is collected."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_served(self) -> bool:
        """Whether the event loop that sends the events still runs."""
        ...

    def unacknowledged_events(self) -> int: ...

    def wait_until_empty(self, timeout_s: float | None = None) -> bool: ...

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork: the parent sends the events."""
        ...


class Watched:
    """A writer in the list of this process. Both are collected together: each refers to the other.

    Compiled classes have no weak references, so the list has these instead of the writers.
    """

    def __init__(self, writer: Unflushed) -> None:
        self.writer = writer

    def __del__(self) -> None:
        _collected(self.writer)


class _Writers:
    """The writers of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.all: WeakSet[Watched] = WeakSet()
        self.is_registered = False

    def snapshot(self) -> list[Unflushed]:
        with self.lock:
            return [watched.writer for watched in self.all]


_writers = _Writers()


def watch(writer: Unflushed) -> Watched:
    """Remembers what is flushed when the process ends without closing it. The writer must keep what is returned."""
    watched = Watched(writer)
    with _writers.lock:
        _writers.all.add(watched)
        if not _writers.is_registered:
            _writers.is_registered = True
            _register(flush_at_exit)
    keep_in_children(watched)
    return watched


def flush_at_exit() -> None:
    """Flushes all open writers, for `EXIT_FLUSH_S` at most, and reports those that had events left."""
    deadline_s = time.monotonic() + EXIT_FLUSH_S
    for each in _writers.snapshot():
        if each.stream_name and not each.is_closed:
            deadline_s = _flush(each, deadline_s)


def _collected(writer: Unflushed) -> None:
    """Reports a writer that is collected with events that were not acknowledged. Nothing sends them any more."""
    lost = writer.unacknowledged_events() + writer.failed_events
    if lost and writer.stream_name and not writer.is_closed and not writer.is_reported:
        _warn(writer, lost)
        _report_lost(writer, lost)


def _flush(writer: Unflushed, deadline_s: float) -> float:
    """Flushes a writer. Returns the deadline of the next one: an interrupt ends all waits."""
    waiting, acknowledged = writer.unacknowledged_events(), writer.acknowledged_events
    lost = waiting + writer.failed_events
    if lost:
        _warn(writer, lost)
    if waiting and writer.is_served:
        _log.warning(
            "event=writer_not_closed stream=%r events=%d seconds_max=%d", writer.stream_name, waiting, EXIT_FLUSH_S
        )
        try:
            writer.wait_until_empty(max(0.0, deadline_s - time.monotonic()))
        except KeyboardInterrupt:
            deadline_s = 0.0
        lost -= writer.acknowledged_events - acknowledged
    if lost > 0:
        _report_lost(writer, lost)
    return deadline_s


def _warn(writer: Unflushed, events: int) -> None:
    warnings.warn(
        f"the writer of {writer.stream_name} was not closed: {events} events are not acknowledged; use it with "
        "`with`, or call `close`",
        ResourceWarning,
        source=writer,
        stacklevel=3,
    )


def _report_lost(writer: Unflushed, lost: int) -> None:
    writer.is_reported = True
    _log.error("event=events_not_acknowledged stream=%r events=%d", writer.stream_name, lost)


def _register(end: Callable[[], None]) -> None:
    """Has `end` called when the process ends. A child of `multiprocessing` ends without the functions of `atexit`."""
    atexit.register(end)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


def _after_fork_in_child() -> None:
    """Leaves the writers to the parent. They refuse calls, instead of waiting for a thread that is not here."""
    global _writers
    before, _writers = _writers, _Writers()
    if before.is_registered:
        atexit.unregister(flush_at_exit)
    for watched in list(before.all):
        watched.writer.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
