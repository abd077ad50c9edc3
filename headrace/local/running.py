"""Runs the local stack in its own process, as a user does; for the demo, the benchmarks and the tests."""

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
_BUCKETS = {"HEADRACE_BUCKET_COUNT": "2"}
"""A quarter of a deployment's number of buckets. Periodic work per bucket is most of what an idle stack does."""


@contextmanager
def running_stack(
    directory: Path,
    *,
    segment_stores: int,
    grpc: bool = False,
    console: bool = False,
    s3_containers: int | None = None,
    tokens: bool = False,
    secure: bool = False,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Run the stack on free ports with its data below `directory`; yield the content of its state file, then stop it.

    It serves Pravega's own clients only with `grpc`, and the web console only with `console`. With `tokens` its stores
    demand delegation tokens, and with `secure` TLS, too. `environment` is added to the environment of this process;
    `say` gets each line that the stack prints.

    Raises:
        LocalStackError: the stack did not become ready, failed, or left a process behind.
    """
    state_file, log_file = directory / "local-stack.json", directory / "local-stack.log"
    # The watchdog ends the stack if this process is killed before it can.
    command = [sys.executable, "-m", "headrace.local.parent_watchdog", "headrace.local"]
    command += ["--http-port", "0", "--segment-stores", str(segment_stores)]
    if s3_containers is not None:
        command += ["--s3-containers", str(s3_containers)]
    command += ["--grpc-port", "0" if grpc else "off", "--console-port", "0" if console else "off"]
    command += [f"--{option}" for option, wanted in (("tokens", tokens), ("secure", secure)) if wanted]
    command += ["--data-dir", str(directory / "data"), "--state-file", str(state_file)]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**_BUCKETS, **os.environ, **(environment or {})},
        )
        try:
            _await_ready(process, log_file, say)
            yield json.loads(state_file.read_text())
        finally:
            _stop(process)
    if process.returncode != 0:
        raise LocalStackError(f"the local stack ended with code {process.returncode}; see {log_file}")
    if _group_exists(process.pid):
        raise LocalStackError("the local stack left processes behind")


def _await_ready(process: subprocess.Popen[str], log_file: Path, say: Callable[[str], None]) -> None:
    """Return when the stack prints `ready`. A thread continues to read its output, so that the stack never blocks."""
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
        said_something.set()  # the stack has ended

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
    finally:
        if process.stdin is not None:
            process.stdin.close()


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
