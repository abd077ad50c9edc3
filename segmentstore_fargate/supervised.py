"""`python -m segmentstore_fargate.supervised`: keeps the processes of a segment store running in their task.

ECS deletes the volume with the journals when the task ends, and a task ends with its main process. If that were the
store, a crash, or a start while the metadata table does not answer, would lose acknowledged events. (ECS can restart a
process in its task, but not one that ends in its first minute.) Therefore this parent restarts each process after any
exit, independently of the others, until it gets a signal. The health check judges stores that run but do not serve.

There is one exception. A task that began with an empty volume, and in which no process has ever accepted a connection,
has no data to lose. If its processes keep exiting, or none accepts connections in time, the task ends. ECS then notices
a bad image after a minute and rolls back. The health check would take ten minutes for each of three tasks.

There are HEADRACE_PROCESSES processes, one for each core, which share only the volume.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import Final

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import process_environments, read_config
from segmentstore_fargate.layout import has_logs, was_served

_log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 5.0
EARLY_DEATHS_MAX: Final = 12
"""Exits of processes that never served, before the task ends. With the pauses this allows for a minute of a passing
failure, such as a metadata table that does not answer."""
FIRST_SERVICE_S: Final = 600.0
"""The time for a process to accept connections. Up to half of it may be spent waiting for the former process's lease,
and for other stores to flush their data to S3."""
NEVER_SERVED: Final = 3
"""Exit code of a task that never served."""
STORE_COMMAND: Final = (sys.executable, "-m", "segmentstore_fargate")


class Supervisor:
    """Runs one command in each of several environments, and restarts it when it exits.

    SIGTERM and SIGINT are passed on to all processes, which are not restarted then. `may_end` says whether no data is
    lost if all of them end.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        may_end: Callable[[], bool] = lambda: False,
        *,
        pause_s: float = RESTART_PAUSE_S,
        first_service_s: float = FIRST_SERVICE_S,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._may_end = may_end
        self._pause_s = pause_s
        self._first_service_s = first_service_s
        self._deaths = 0
        self._ended_unserved = False
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: SimpleQueue[int] = SimpleQueue()

    def run(self) -> int:
        """Run until all processes have ended. Returns 0 if all ended with 0, else the exit code of one that did not.

        Returns NEVER_SERVED if none of them ever served and no data is lost.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        for process in range(len(self._environments)):
            threading.Thread(target=self._keep, args=(process,), daemon=True).start()
        first_service = threading.Timer(self._first_service_s, self._end_if_allowed)
        first_service.daemon = True
        first_service.start()
        codes = [self._ended.get() for _ in self._environments]
        first_service.cancel()
        if self._ended_unserved:
            return NEVER_SERVED
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
            self._deaths += 1
            if self._deaths >= EARLY_DEATHS_MAX:
                self._end_if_allowed()
            if self._stopping.wait(self._pause_s):
                break
        self._ended.put(code)

    def _end_if_allowed(self) -> None:
        if self._stopping.is_set() or not self._may_end():
            return
        _log.critical("event=never_served deaths=%d", self._deaths)
        self._ended_unserved = True
        self._stopping.set()
        for child in list(self._children.values()):
            child.terminate()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        for child in list(self._children.values()):
            child.send_signal(number)


def main() -> int:
    """Supervise the store; a process that a signal ended counts as failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s")
    try:
        environments = process_environments(os.environ)
        data_dir = read_config(environments[0]).data_dir
    except InvalidRequestError as error:
        print(f"segment store: {error.message}", file=sys.stderr)
        return 2
    was_empty = not has_logs(data_dir)
    code = Supervisor(STORE_COMMAND, environments, lambda: was_empty and not was_served(data_dir)).run()
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
