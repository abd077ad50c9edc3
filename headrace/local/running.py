"""The local stack as a process of its own, started and stopped the way a user would: for demo, benchmarks and tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.local.failures import LocalStackError

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60
_LOG_CHARACTERS_SHOWN = 2000


@contextmanager
def running_stack(
    directory: Path,
    *,
    segment_stores: int,
    grpc: bool = False,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Runs the stack on free ports with its data below `directory`; yields what its state file says, then stops it.

    It serves Pravega's own clients only with `grpc`.

    `environment` is added to this process's own, `say` gets each line that the stack prints.

    Raises:
        LocalStackError: it did not become ready, did not end well, or left a process behind.
    """
    state_file, log_file = directory / "local-stack.json", directory / "local-stack.log"
    command = [sys.executable, "-m", "headrace.local", "--http-port", "0", "--segment-stores", str(segment_stores)]
    command += ["--grpc-port", "0" if grpc else "off"]
    command += ["--data-dir", str(directory / "data"), "--state-file", str(state_file)]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env=os.environ | (environment or {}),
        )
        try:
            _await_ready(process, log_file, say)
            yield json.loads(state_file.read_text())
        finally:
            _stop(process)
    if process.returncode != 0:
        raise LocalStackError(f"the local stack ended with code {process.returncode}; see {log_file}")
    if _group_lives(process.pid):
        raise LocalStackError("the local stack left processes behind")


def _await_ready(process: subprocess.Popen[str], log_file: Path, say: Callable[[str], None]) -> None:
    """Returns when the stack prints `ready`; goes on reading its output afterwards so that it never blocks on it."""
    said_something = threading.Event()
    ready = False

    def read() -> None:
        nonlocal ready
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                say(line.rstrip())
                if line.strip() == "ready":
                    ready = True
                    said_something.set()
        said_something.set()  # it has ended

    threading.Thread(target=read, daemon=True, name="stack-output").start()
    said_something.wait(START_TIMEOUT_S)
    if not ready:
        raise LocalStackError(f"the local stack did not become ready:\n{log_file.read_text()[-_LOG_CHARACTERS_SHOWN:]}")


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
