"""Runs a module as `python -m` does, and ends when its parent process ends.

Usage: `python -m headrace.local.parent_watchdog MODULE ARGUMENTS`.

The parent keeps the other end of this process's standard input open. When the parent ends, even by kill -9, the system
closes that end. This process then sends itself SIGTERM, and exits if it has not stopped in time.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

STOP_GRACE_S = 3.0
"""Short, because without the parent there is no AWS emulator to write to, and more time could save no data."""

EXIT_CODE_TORN = 143
_READ_BYTES = 4096


def _follow_parent() -> None:
    while os.read(sys.stdin.fileno(), _READ_BYTES):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_GRACE_S)
    os._exit(EXIT_CODE_TORN)


def main() -> None:
    """Run the module; the process exits with the module's exit code."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m headrace.local.parent_watchdog MODULE [ARGUMENTS]")
    module, arguments = sys.argv[1], sys.argv[2:]
    threading.Thread(target=_follow_parent, name="parent-watchdog", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
