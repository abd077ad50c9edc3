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
_STATE: Final = 3
_INODE: Final = 9
"""Columns of /proc/net/tcp."""
_LISTENS: Final = "0A"


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
    own = f"0100007F:{port:04X}"
    inode = next((line[_INODE] for line in _sockets() if line[_LOCAL] == own and line[_INODE] != "0"), None)
    return None if inode is None else next((each.pid for each in candidates if inode in _inodes_of(each.pid)), None)


def listening_ports(pid: int) -> list[int]:
    """The TCP ports of IPv4 at which a process accepts connections, as /proc of Linux tells it."""
    own = _inodes_of(pid)
    found = [line for line in _sockets() if line[_STATE] == _LISTENS and line[_INODE] in own]
    return sorted(int(line[_LOCAL].partition(":")[2], 16) for line in found)


def _sockets() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _inodes_of(pid: int) -> set[str]:
    """The sockets that a process has open; none of one that has ended."""
    found = set()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    return found
