"""However many threads a store has, what they free does not lie in an arena for each."""

from __future__ import annotations

import subprocess
import sys

from segmentstore_fargate.native_memory import ARENAS_MAX

THREADS = 8
PROGRAM = f"""
import ctypes, sys, threading
from segmentstore_fargate.native_memory import share_arenas
if sys.argv[1] == "shared":
    assert share_arenas()
together = threading.Barrier({THREADS})
def hold():
    held = [bytes(1000) for _ in range(1000)]
    together.wait()
threads = [threading.Thread(target=hold) for _ in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""


def test_threads_share_arenas() -> None:
    assert _arenas("own") > ARENAS_MAX
    assert _arenas("shared") <= ARENAS_MAX


def _arenas(how: str) -> int:
    found = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return found.stderr.count("Arena ")
