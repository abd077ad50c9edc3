"""`python -m segmentstore_fargate.supervised`: keeps the processes of a segment store running while its task lives.

The volume with the journals is deleted with its task, and a task ends with its process: a store that died, or could not
start because the metadata table did not answer, would lose acknowledged events. (ECS can restart a process in its task,
but not one that dies in its first minute.) So this parent starts each process again, whatever it died of and without
the others, until it is told to stop. Nothing else is its business: a store that lives but does not serve is judged by
the health check.

There is one process for each core, HEADRACE_PROCESSES of them, and they share nothing but the volume.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import Final

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import process_environments

_log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 5.0
STORE_COMMAND: Final = (sys.executable, "-m", "segmentstore_fargate")


class Supervisor:
    """Runs one command in each of several environments again and again; SIGTERM and SIGINT are passed on to all, and
    then their end is the end."""

    def __init__(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], pause_s: float = RESTART_PAUSE_S
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: SimpleQueue[int] = SimpleQueue()

    def run(self) -> int:
        """0 if all processes ended with 0, told to or by themselves; else the exit code of one that did not."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        for process in range(len(self._environments)):
            threading.Thread(target=self._keep, args=(process,), daemon=True).start()
        codes = [self._ended.get() for _ in self._environments]
        return next((code for code in codes if code), 0)

    def _keep(self, process: int) -> None:
        """Keep one process running; in a thread of its own."""
        while True:
            child = self._children[process] = subprocess.Popen(self._command, env=dict(self._environments[process]))
            if self._stopping.is_set():  # the signal came before there was a child to pass it on to
                child.terminate()
            code = child.wait()
            if code == 0 or self._stopping.is_set():
                break
            _log.error("event=store_died process=%d exit_code=%d restart_in_s=%.1f", process, code, self._pause_s)
            if self._stopping.wait(self._pause_s):
                break
        self._ended.put(code)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        for child in list(self._children.values()):
            child.send_signal(number)


def main() -> int:
    """Supervise the store; a process that a signal ended counts as failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s")
    try:
        environments = process_environments(os.environ)
    except InvalidRequestError as error:
        print(f"segment store: {error.message}", file=sys.stderr)
        return 2
    code = Supervisor(STORE_COMMAND, environments).run()
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
