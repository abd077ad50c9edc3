"""The whole local stack in processes of its own: the same segment store, controller and AWS double as `make up`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.settings import Settings

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0


class StackError(RuntimeError):
    """The local stack did not come up."""


@dataclass(frozen=True, slots=True)
class RunningStack:
    """The controller's URL, and the AWS_* variables that lead to the AWS double."""

    url: str
    environment: dict[str, str]


@contextmanager
def local_stack(directory: Path, settings: Settings) -> Iterator[RunningStack]:
    """Starts one segment store and everything around it below `directory`; stops it all in the end."""
    state_file, log_file = directory / "local-stack.json", directory / "local-stack.log"
    command = [sys.executable, "-m", "local_stack", "--http-port", "0", "--segment-stores", "1"]
    command += ["--data-dir", str(directory / "data"), "--state-file", str(state_file)]
    environment = os.environ | {
        "HEADRACE_CACHE_BYTES": str(settings.cache_bytes),
        "HEADRACE_FLUSH_AGE_S": str(settings.flush_age_s),
    }
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )
        try:
            _await_ready(process, log_file)
            state = json.loads(state_file.read_text())
            yield RunningStack(state["endpoints"]["http"], state["environment"])
        finally:
            _stop(process)


def _await_ready(process: subprocess.Popen[str], log_file: Path) -> None:
    """Returns when the stack says `ready`, and goes on reading what it says, so that it never waits for a reader."""
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                ready.set()

    threading.Thread(target=read, name="stack-output", daemon=True).start()
    for _ in range(int(START_TIMEOUT_S * 10)):
        if ready.wait(0.1):
            return
        if process.poll() is not None:
            break
    raise StackError(f"the local stack did not become ready:\n{log_file.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
