"""`python -m segmentstore_fargate.supervised`: keeps a segment store running for as long as its task lives.

The volume with the journal is deleted with its task, and a task ends with its process: a store that died, or could not
start because the metadata table did not answer, would lose acknowledged events. (ECS can restart a process in its task,
but not one that dies in its first minute.) So this parent starts the store again, whatever it died of, until it is told
to stop. Nothing else is its business: a store that lives but does not serve is judged by the health check.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

_log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 5.0
STORE_COMMAND: Final = (sys.executable, "-m", "segmentstore_fargate")


class Supervisor:
    """Runs one command again and again; SIGTERM and SIGINT are passed on to it, and then its end is the end."""

    def __init__(self, command: Sequence[str], pause_s: float = RESTART_PAUSE_S) -> None:
        self._command = list(command)
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """The exit code of the last process: of the one that was told to stop, or that ended with 0 by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        while True:
            self._child = subprocess.Popen(self._command)
            if self._stopping.is_set():  # the signal came before there was a child to pass it on to
                self._child.terminate()
            code = self._child.wait()
            if code == 0 or self._stopping.is_set():
                return code
            _log.error("event=store_died exit_code=%d restart_in_s=%.1f", code, self._pause_s)
            if self._stopping.wait(self._pause_s):
                return code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.send_signal(number)


def main() -> int:
    """Supervise the store; a process that a signal ended counts as failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s")
    code = Supervisor(STORE_COMMAND).run()
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
