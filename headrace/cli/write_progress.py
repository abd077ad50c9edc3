"""The progress of `headrace event write`, on one line of standard error while that is a terminal."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, TextIO

from headrace.cli.quantities import duration_text, rate_text, size_text

REFRESH_S = 0.2
WINDOW_S = 5.0
"""The rate is that of the last seconds, so that it follows changes."""

_CLEAR_LINE = "\r\x1b[2K"


class Written(NamedTuple):
    """Counts at one moment. `events` were read from the input, `acknowledged` of them are durable."""

    events: int
    acknowledged: int
    bytes_read: int


class Rate:
    """Bytes per second over the last `WINDOW_S`. Times are in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, total_bytes: int) -> float:
        """Adds a sample; returns the rate, 0.0 while there is only one."""
        self._samples.append((at_s, total_bytes))
        while len(self._samples) > 2 and at_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        return (total_bytes - first_bytes) / (at_s - first_s) if at_s > first_s else 0.0


def progress_line(written: Written, bytes_per_s: float, total_bytes: int | None) -> str:
    """For example `1,200 events written, 1,100 acknowledged, 1.2 MB, 300.0 kB/s, 5 s left`."""
    parts = [
        f"{written.events:,} events written",
        f"{written.acknowledged:,} acknowledged",
        size_text(written.bytes_read),
        rate_text(bytes_per_s),
    ]
    if total_bytes is not None:
        left = max(0, total_bytes - written.bytes_read)
        if left and bytes_per_s > 0:
            parts.append(f"{duration_text(left / bytes_per_s)} left")
    return ", ".join(parts)


class WriteProgress:
    """Shows the progress in a thread of its own, also while the writer waits. Does nothing without a terminal."""

    def __init__(self, count: Callable[[], Written], total_bytes: int | None, stream: TextIO) -> None:
        self._count = count
        self._total_bytes = total_bytes
        self._stream = stream
        self._rate = Rate()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-progress", daemon=True)

    def __enter__(self) -> WriteProgress:
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._show(_CLEAR_LINE)

    def _run(self) -> None:
        while not self._ended.wait(REFRESH_S):
            written = self._count()
            line = progress_line(written, self._rate.add(time.monotonic(), written.bytes_read), self._total_bytes)
            self._show(f"{_CLEAR_LINE}{line}")

    def _show(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone; the events still count
            self._stream.write(text)
            self._stream.flush()
