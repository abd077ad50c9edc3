"""The processes of a rehearsal. Each has a variable that names the scratch folder, by which all of them end with it.

The emulator starts functions, the CDK starts Node, tasks start stores: a list of children would not have them all. The
processes of a rehearsal that was killed itself are ended by the next one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rehearsal.paths import LOGS, ROOT, SCRATCH

MARK: Final = "REHEARSAL_SCRATCH"
GRACE_S: Final = 10.0
POLL_S: Final = 0.1


class ProcessFailedError(RuntimeError):
    """A program of the rehearsal ended with another exit code than 0."""


def marked(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process of this rehearsal."""
    return {**variables, MARK: str(SCRATCH)}


def start(
    name: str, command: Sequence[str], variables: Mapping[str, str], directory: Path = ROOT
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which Ctrl-C of a terminal does not reach. Its output is in a log."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            list(command),
            cwd=directory,
            env=marked(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run(name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a program to its end. Raises ProcessFailedError, with the end of its log."""
    process = start(name, command, variables)
    if code := process.wait():
        raise ProcessFailedError(f"{name} ended with exit code {code}:\n{log_end(name)}")


def log_end(name: str, lines: int = 40) -> str:
    """The last lines of the log of a program."""
    log = LOGS / f"{name}.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def stop(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """SIGTERM, and SIGKILL if the process does not end in time."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def left() -> list[int]:
    """The running processes of this rehearsal or of an earlier one in the same folder, except this one."""
    mark = f"{MARK}={SCRATCH}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended, or belongs to another user
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill_all() -> int:
    """SIGKILL for all processes that are left; returns how many there were."""
    killed: set[int] = set()
    while remaining := left():
        killed |= set(remaining)
        for pid in remaining:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        _reap()
    return len(killed)


def _reap() -> None:
    """Forget children that have ended: a zombie has no environment, but a process of `subprocess` may wait for it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
