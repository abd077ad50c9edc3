"""A writer and a reader that run through updates: `python -m rehearsal.traffic NAME`, until SIGTERM.

The writer writes one number after the other, and waits for each. The reader follows. At the end the program waits until
the reader has all that was acknowledged, and writes its result as JSON to `traffic-NAME.json` in the scratch folder.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from headrace.client import ScalingPolicy
from headrace.model.errors import HeadraceError
from rehearsal.callers import caller
from rehearsal.checks import reading_problems
from rehearsal.paths import SCRATCH

KEYS: Final = 7
SEGMENTS: Final = 3
PAUSE_S: Final = 0.1
POLL_S: Final = 0.5
END_PATIENCE_S: Final = 240
ACKNOWLEDGED_PATIENCE_S: Final = 900.0


def result_file(name: str) -> Path:
    """Where the result of the traffic of this name is."""
    return SCRATCH / f"traffic-{name}.json"


def started_file(name: str) -> Path:
    """It exists from the first event on."""
    return SCRATCH / f"traffic-{name}.started"


class Traffic:
    """A stream, its writer and its reader."""

    def __init__(self, name: str) -> None:
        self.name, self.scope = name, f"through-{name}"
        self.ended = threading.Event()
        self.written = 0
        self.longest_s = 0.0
        self.read: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.ended.set())
        with caller("manager") as headrace:
            headrace.admin.create_scope(self.scope)
            headrace.admin.create_stream(self.scope, "numbers", scaling=ScalingPolicy.fixed(SEGMENTS))
            reader = threading.Thread(target=self._follow, args=(headrace,))
            reader.start()
            try:
                self._write(headrace)
            except HeadraceError as error:
                self.failures.append(f"writer: {error!r}"[:500])
            self.ended.set()
            reader.join()
        problems = self.failures + reading_problems(self.written, self.read, KEYS)
        result = {"written": self.written, "read": len(self.read), "longest_s": self.longest_s, "problems": problems}
        result_file(self.name).write_text(json.dumps(result))

    def _write(self, headrace: Any) -> None:
        with headrace.writer(self.scope, "numbers") as writer:
            while not self.ended.is_set():
                started_s = time.monotonic()
                writer.write(b"%d" % self.written, routing_key=str(self.written % KEYS))
                writer.flush(ACKNOWLEDGED_PATIENCE_S)
                self.longest_s = max(self.longest_s, time.monotonic() - started_s)
                self.written += 1
                if self.written == 1:
                    started_file(self.name).touch()
                self.ended.wait(PAUSE_S)

    def _follow(self, headrace: Any) -> None:
        deadline = None
        try:
            with headrace.reader(self.scope, "numbers", start="earliest") as reader:
                while deadline is None or (len(self.read) < self.written and time.monotonic() < deadline):
                    if deadline is None and self.ended.is_set():
                        deadline = time.monotonic() + END_PATIENCE_S
                    batch = reader.read_batch(timeout_s=POLL_S)
                    self.read += [int(event) for event in batch.events] if batch else []
        except HeadraceError as error:
            self.failures.append(f"reader: {error!r}"[:500])


if __name__ == "__main__":
    Traffic(sys.argv[1]).run()
