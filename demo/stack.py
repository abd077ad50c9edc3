"""Starts and stops the local stack of the demo as a process of its own, the way a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60


class StackError(RuntimeError):
    """The local stack did not start, or did not stop as it should."""


@contextmanager
def local_stack(data_dir: Path, state_file: Path, log_file: Path) -> Iterator[dict[str, Any]]:
    """Runs `headrace up` on free ports, yields its state file's content, and stops it whatever happens."""
    command = [sys.executable, "-m", "local_stack", "--data-dir", str(data_dir), "--http-port", "0"]
    command += ["--segment-stores", "2", "--state-file", str(state_file)]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, env=os.environ.copy()
        )
        try:
            _await_ready(process, log_file)
            yield json.loads(state_file.read_text())
        finally:
            _stop(process)
    if process.returncode != 0:
        raise StackError(f"the local stack ended with code {process.returncode}; see {log_file}")
    if _group_lives(process.pid):
        raise StackError("the local stack left processes behind")


def _await_ready(process: subprocess.Popen[str], log_file: Path) -> None:
    """Returns when the stack prints `ready`; goes on reading its output afterwards so that it never blocks on it."""
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                print(f"  {line.rstrip()}", flush=True)
                if line.strip() == "ready":
                    ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True, name="stack-output").start()
    if not ready.wait(START_TIMEOUT_S) or process.poll() is not None:
        raise StackError(f"the local stack did not become ready:\n{log_file.read_text()[-2000:]}")


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
