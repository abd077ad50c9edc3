"""The check of the target streams before a write: at most once a minute, since a query asks for it with each batch."""

from __future__ import annotations

import threading
from typing import Final

from headrace.adapters.system_clock import SystemClock
from headrace.ports.clock import Clock
from headrace.spark.sink_access import SinkAccess
from headrace.spark.sink_commits import prepare_streams
from headrace.spark.write_options import WriteOptions

CHECKED_FOR_S: Final = 60.0


class PreparedStreams:
    """Remembers when the streams of which options were checked. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._checked_s: dict[WriteOptions, float] = {}

    def prepare(self, access: SinkAccess, options: WriteOptions) -> None:
        """See `prepare_streams`."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            recent = {one: at_s for one, at_s in self._checked_s.items() if now_s - at_s < CHECKED_FOR_S}
            self._checked_s = recent
            if options in recent:
                return
        prepare_streams(access, options)
        with self._lock:
            self._checked_s[options] = now_s
