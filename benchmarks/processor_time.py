"""Processor time of processes, user and system together, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER_FIELD = 11
"""Of those behind the name of the process in /proc/PID/stat (proc(5))."""


def processor_s(pid: int) -> float:
    """Of one process with all its threads since its start, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER_FIELD]) + int(fields[_USER_FIELD + 1])) / _TICKS_PER_S
