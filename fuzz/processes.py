"""The processes below a process, as `ps` tells them, and the ends of some of them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOCAL: Final = 1
_INODE: Final = 9
"""Columns of /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process and its command line."""

    pid: int
    command: str


def below(*ancestors: int) -> list[Process]:
    """All descendants of these processes, parents first."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], check=True, capture_output=True, text=True).stdout
    children: dict[int, list[Process]] = {}
    for line in listed.splitlines():
        pid, parent, *command = line.split(None, 2)
        children.setdefault(int(parent), []).append(Process(int(pid), "".join(command)))
    found: list[Process] = []
    waiting = list(ancestors)
    while waiting:
        offspring = children.get(waiting.pop(0), [])
        found += offspring
        waiting += [each.pid for each in offspring]
    return found


def kill_nine(pid: int) -> None:
    """SIGKILL; no effect on a process that has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    """SIGKILL for all processes of a group that are left."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def owner_of_port(port: int, candidates: list[Process]) -> int | None:
    """Which of these processes has a TCP connection from this port of 127.0.0.1, as /proc of Linux tells it."""
    inode = _inode_of_port(port)
    for process in candidates if inode is not None else ():
        with suppress(OSError):
            if any(os.readlink(each) == f"socket:[{inode}]" for each in Path(f"/proc/{process.pid}/fd").iterdir()):
                return process.pid
    return None


def _inode_of_port(port: int) -> str | None:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = f"0100007F:{port:04X}"
    return next((line[_INODE] for line in lines if line[_LOCAL] == own and line[_INODE] != "0"), None)
