"""One child process that ends with its parent: started, awaited until it says that it is ready, stopped.

Each child is in a session of its own, so that Ctrl-C in a terminal reaches only the parent, which then stops the
children in order. What a child writes goes to its log file; of its standard output, lines that start with "ready" are
also kept for the parent.
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
    """A running `python -m module`; `name` is what messages call it."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        """Starts the process. Its log file is appended to."""
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
        """The line with which the process says that it is ready.

        Raises:
            LocalStackError: it ended, or said nothing in time.
        """
        self._said_something.wait(timeout_s)
        if self._ready_line is None:
            ended = not self.is_running or self._said_something.is_set()
            what = f"ended with code {self.wait()}" if ended else f"was not ready within {timeout_s:.0f} s"
            raise LocalStackError(f"{self.name} {what}; its log {self._log_file} ends: {self._log_tail()}")
        return self._ready_line

    def wait(self) -> int:
        """Blocks until the process has ended; its exit code, negative for a signal."""
        return self._process.wait()

    def terminate(self) -> None:
        """Asks it to stop, once, and returns at once; nothing happens if it has ended."""
        if not self._asked_to_stop:  # a second signal would mean that nobody wants to wait for it
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self, timeout_s: float) -> bool:
        """Asks it to stop, waits, and kills it if it takes longer. Returns whether it ended in good order."""
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
