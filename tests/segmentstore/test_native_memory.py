"""What a store frees goes back to the system: small pieces of many threads, and large ones."""

from __future__ import annotations

import subprocess
import sys

from segmentstore_fargate.native_memory import ARENAS_MAX

THREADS = 8
MANY_THREADS = f"""
import ctypes, sys, threading
from segmentstore_fargate.native_memory import give_back_memory
if sys.argv[1] == "bounded":
    assert give_back_memory()
together = threading.Barrier({THREADS})
def hold():
    held = [bytes(1000) for _ in range(1000)]
    together.wait()
threads = [threading.Thread(target=hold) for _ in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""

PIECES = 16
PIECE_BYTES = 2 << 20
LARGE_PIECES = f"""
import sys
from pathlib import Path
from segmentstore_fargate.native_memory import give_back_memory
if sys.argv[1] == "bounded":
    assert give_back_memory()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
first = b"x" * (16 << 20)
del first
held = [(b"x" * {PIECE_BYTES}, b"x" * 50_000) for _ in range({PIECES})]
held = [small for large, small in held]
print(resident() - before)
"""


def test_threads_share_arenas():
    assert _arenas("usual") > ARENAS_MAX
    assert _arenas("bounded") <= ARENAS_MAX


def test_large_pieces_do_not_stay_behind_small_ones():
    assert int(_run(LARGE_PIECES, "usual").stdout) > PIECES * PIECE_BYTES // 2
    assert int(_run(LARGE_PIECES, "bounded").stdout) < 2 * PIECE_BYTES


def _arenas(how: str) -> int:
    return _run(MANY_THREADS, how).stderr.count("Arena ")


def _run(program: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=True)
