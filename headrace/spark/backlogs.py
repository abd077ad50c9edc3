"""Bytes left unread after a batch. If the controller did not report them, a background walk counts them.

The controller reports them if it loads the active segments for the batch anyway. For a batch that ends epochs before
them, the walk goes through all epochs between. It is made seldom, because no batch may wait for a line of the log. What
is read after its start is subtracted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from headrace.spark.stream_access import Batch, Positions, StreamAccess

WALKS_EVERY_S: Final = 60.0
"""From the start of a walk to that of the next one for the same stream."""

WALKS_AT_ONCE_MAX: Final = 4
"""Each takes a thread. A walk for which the controller or a store does not answer may take hours, see `patience_s`."""

Call = Callable[[], None]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Walk:
    """`found_bytes` were behind the batch at which it began; None if that failed. `read_bytes` were read since.

    They say nothing of the batches that follow if it `is_void`.
    """

    read_bytes: int = 0
    found_bytes: int | None = None
    is_done: bool = False
    is_void: bool = False

    def make(self, access: StreamAccess, start: Positions, end: Positions | None) -> None:
        try:
            self.found_bytes = access.distance_bytes(start, end)
        except Exception as error:  # noqa: BLE001 - the thread serves later walks, and one of them may succeed
            _log.debug("event=spark_backlog_unknown error=%r", error)
        finally:
            self.is_done = True


@dataclass(slots=True)
class _Backlog:
    """What is known of one stream: `left_bytes` behind `end`, the end of the newest batch, and a walk that runs."""

    end: Positions | None = None
    left_bytes: int | None = None
    walk: _Walk | None = None
    walked_s: float = -math.inf

    def forget(self) -> None:
        """A walk that runs stays the only one of the stream, so that one that hangs keeps no second thread."""
        self.left_bytes = None
        if self.walk is not None:
            self.walk.is_void = True

    def advance(self, batch: Batch) -> None:
        """Note a batch, which may have been planned before."""
        if batch.end != self.end:
            if batch.start != self.end:
                self.forget()  # bytes were skipped, or it is another stream of this name
            read_bytes = sum(part.length_bytes for part in batch.ranges)
            if self.left_bytes is not None:
                self.left_bytes -= read_bytes
            if self.walk is not None:
                self.walk.read_bytes += read_bytes
            self.end = batch.end
        if self.walk is not None and self.walk.is_done:
            walked_bytes = None if self.walk.is_void else self.walk.found_bytes
            self.left_bytes, self.walk = None if walked_bytes is None else walked_bytes - self.walk.read_bytes, None
        if self.left_bytes is not None and self.left_bytes <= 0:
            self.left_bytes = None  # more was written since than is known


class Backlogs:
    """Those of the streams of one query. Belongs to one thread of the driver; `submit` makes calls in another one."""

    def __init__(
        self, *, monotonic_s: Callable[[], float] = time.monotonic, submit: Callable[[Call], None] | None = None
    ) -> None:
        self._monotonic_s = monotonic_s
        self._background = _Background()
        self._submit = submit or self._background.submit
        self._backlogs: dict[str, _Backlog] = {}

    def keep(self, streams: Iterable[str]) -> None:
        """Forget all other streams."""
        self._backlogs = {name: self._backlogs[name] for name in streams if name in self._backlogs}

    def behind(self, stream: str, access: StreamAccess, batch: Batch, end: Positions | None) -> int | None:
        """The bytes from the end of the batch to `end`, by default the tail; None: not known yet.

        What was written after the last walk is left out.
        """
        backlog = self._backlogs.setdefault(stream, _Backlog())
        if batch.left_bytes is not None:
            backlog.forget()
            return batch.left_bytes
        backlog.advance(batch)
        now_s = self._monotonic_s()
        if backlog.walk is None and now_s - backlog.walked_s >= WALKS_EVERY_S:
            backlog.walk, backlog.walked_s = _Walk(), now_s
            make, start = backlog.walk.make, batch.end
            self._submit(lambda: make(access, start, end))
        return backlog.left_bytes

    def close(self) -> None:
        """Lets the threads end. Close the client, too: then walks that run or wait fail."""
        self._background.close()


class _Background:
    """Makes calls in threads that end with the process: the driver does not wait for a controller that is away."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] | None = None
        self._threads = 0

    def submit(self, call: Call) -> None:
        if self._calls is None:
            self._calls = SimpleQueue()
        if self._threads < WALKS_AT_ONCE_MAX:
            self._threads += 1
            threading.Thread(target=_make, args=(self._calls,), name="headrace-backlogs", daemon=True).start()
        self._calls.put(call)

    def close(self) -> None:
        if self._calls is not None:
            for _ in range(self._threads):
                self._calls.put(None)
            self._calls, self._threads = None, 0


def _make(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call()
