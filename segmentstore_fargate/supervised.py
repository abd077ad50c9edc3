"""`python -m segmentstore_fargate.supervised`: keeps the processes of a segment store running while its task lives.

The volume with the journals is deleted with its task, and a task ends with its process: a store that died, or could not
start because the metadata table did not answer, would lose acknowledged events. (ECS can restart a process in its task,
but not one that dies in its first minute.) So this parent starts each process again, whatever it died of and without
the others, until it is told to stop. A store that lives but does not serve is judged by the health check.

With one exception: a task that began with an empty volume, and in which no process has ever accepted a connection,
holds nothing that could be lost. If its processes keep dying, or none gets that far, the task ends. So ECS notices a
bad image after a minute and rolls back, where the health check would wait for ten with each of three tasks.

There is one process for each core, HEADRACE_PROCESSES of them, and they share nothing but the volume.
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
"""Of processes that never served, before their task is given up: with the pauses, a minute of trouble that may pass,
such as a metadata table that does not answer."""
FIRST_SERVICE_S: Final = 600.0
"""For a process to accept connections. Waiting for its former self and for others to bring their data to S3 takes up to
half of it."""
GIVEN_UP: Final = 3
"""Exit code of a task that never served."""
STORE_COMMAND: Final = (sys.executable, "-m", "segmentstore_fargate")


class Supervisor:
    """Runs one command in each of several environments again and again; SIGTERM and SIGINT are passed on to all, and
    then their end is the end. `may_give_up` says whether nothing is lost if all of them end."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        may_give_up: Callable[[], bool] = lambda: False,
        *,
        pause_s: float = RESTART_PAUSE_S,
        first_service_s: float = FIRST_SERVICE_S,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._may_give_up = may_give_up
        self._pause_s = pause_s
        self._first_service_s = first_service_s
        self._deaths = 0
        self._given_up = False
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: SimpleQueue[int] = SimpleQueue()

    def run(self) -> int:
        """0 if all processes ended with 0, told to or by themselves; else the exit code of one that did not.

        GIVEN_UP if none of them ever served and nothing is lost by ending them.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        for process in range(len(self._environments)):
            threading.Thread(target=self._keep, args=(process,), daemon=True).start()
        first_service = threading.Timer(self._first_service_s, self._give_up_if_allowed)
        first_service.daemon = True
        first_service.start()
        codes = [self._ended.get() for _ in self._environments]
        first_service.cancel()
        if self._given_up:
            return GIVEN_UP
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
                self._give_up_if_allowed()
            if self._stopping.wait(self._pause_s):
                break
        self._ended.put(code)

    def _give_up_if_allowed(self) -> None:
        if self._stopping.is_set() or not self._may_give_up():
            return
        _log.critical("event=never_served deaths=%d", self._deaths)
        self._given_up = True
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
