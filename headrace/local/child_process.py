"""A child process that ends with its parent: it is started, awaited until it reports that it is ready, and stopped.

Each child has its own session, so that Ctrl-C in a terminal reaches only the parent, which then stops the children in
order. The output of a child goes to its log file. The parent also keeps the first line of standard output that starts
with "ready".
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.local.failures import LocalStackError

READY_WORD = "ready"
_LOG_TAIL_BYTES = 2000
_KILL_WAIT_S = 5.0


class ChildProcess:
    """A running `python -m module`; messages refer to it by `name`."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        """Start the process. Its output is appended to the log file."""
        self.name = name
        self._log_file = log_file
        self._ready_line: str | None = None
        self._said_something = threading.Event()
        self._asked_to_stop = False
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.local.parent_watchdog", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=dict(environment),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read_output, name=f"{name}-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, timeout_s: float) -> str:
        """Wait for the line with which the process reports that it is ready, and return it.

        Raises:
            LocalStackError: the process ended, or was not ready in time.
        """
        self._said_something.wait(timeout_s)
        if self._ready_line is None:
            ended = not self.is_running or self._said_something.is_set()
            what = f"ended with code {self.wait()}" if ended else f"was not ready within {timeout_s:.0f} s"
            raise LocalStackError(f"{self.name} {what}; its log {self._log_file} ends: {self._log_tail()}")
        return self._ready_line

    def wait(self) -> int:
        """Block until the process has ended; return its exit code, negative for a signal."""
        return self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM unless it was sent before, and return at once; no effect if the process has ended."""
        if not self._asked_to_stop:  # a second signal would make the process skip its graceful shutdown
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self, timeout_s: float) -> bool:
        """Stop the process, and kill it after `timeout_s`. Return whether it ended by a graceful shutdown."""
        self.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILL_WAIT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(_KILL_WAIT_S)
        return self._process.returncode == 0

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._log_file.open("a") as log, self._process.stdout as output:
            for line in output:
                log.write(line)
                log.flush()
                if self._ready_line is None and line.startswith(READY_WORD):
                    self._ready_line = line.strip()
                    self._said_something.set()
        self._said_something.set()

    def _log_tail(self) -> str:
        tail = self._log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return tail.splitlines()[-1] if tail else "(empty)"
