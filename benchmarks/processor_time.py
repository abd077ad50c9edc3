"""Processor time of processes, user and system together, as Linux tells it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT_FIELD = 1
_USER_FIELD = 11
"""Of those behind the name of the process in /proc/PID/stat (proc(5))."""


def processor_s(pid: int) -> float:
    """Of one process with all its threads since its start, in steps of 10 ms."""
    return sum(_fields(pid)[_USER_FIELD : _USER_FIELD + 2]) / _TICKS_PER_S


def processor_s_of_tree(pid: int) -> float:
    """Of a process and all its descendants since their start, also of those that have ended and were waited for."""
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # It has ended meanwhile.
                fields = _fields(int(entry.name))
                children.setdefault(fields[_PARENT_FIELD], []).append(int(entry.name))
                times[int(entry.name)] = sum(fields[_USER_FIELD : _USER_FIELD + 4])
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        total += times.get(process, 0)
        waiting += children.get(process, ())
    return total / _TICKS_PER_S


def _fields(pid: int) -> list[int]:
    """The fields after the name; the state is 0 here. The times of children are of those that were waited for."""
    _state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, rest)]
