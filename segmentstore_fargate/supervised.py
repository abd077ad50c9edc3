"""`python -m segmentstore_fargate.supervised`: keeps the processes of a segment store running in their task.

ECS deletes the volume with the journals when the task ends, and a task ends with its main process. If that were the
store, a crash, or a start while the metadata table does not answer, would lose acknowledged events. (ECS can restart a
process in its task, but not one that ends in its first minute.) Therefore this parent restarts each process after any
exit, independently of the others, until it gets a signal. The health check judges stores that run but do not serve.

There is an exception. A task that began with an empty volume, and in which no process has ever accepted a connection,
has no data to lose. If its processes keep exiting, or none accepts connections in time, the task ends. ECS then notices
a bad image after a minute and rolls back. The health check would take ten minutes for each of three tasks.

With three copies of each log there is another exception. If the journals of a store fail three times in ten minutes,
its volume is bad. The store leaves the cluster and the task ends, so that ECS starts one with a new volume. It does so
only while other stores have everything (leave.py): else, and with one copy, the processes are restarted forever. The
same holds for a process that ends ten times in ten minutes for any other reason. The health check does not judge it,
because ECS would delete a volume that may still be needed.

On ECS this parent also gives the store its name (task_identity.py).

There are HEADRACE_PROCESSES processes, one for each core, which share only the volume.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import Final

from headrace.adapters.log_lines import begin_log, log_format
from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import StoreConfig, process_environments, read_config
from segmentstore_fargate.layout import has_logs, was_served
from segmentstore_fargate.restart_policy import (
    JOURNAL_FAILED,
    RESTART_PAUSE_S,
    ExitsInARow,
    JournalFailures,
    RestartLoop,
    restart_pause_s,
)
from segmentstore_fargate.task_identity import with_store_id

_log = logging.getLogger(__name__)

EARLY_DEATHS_MAX: Final = 16
"""Exits of processes that never served, before the task ends. With the pauses this allows for a minute of a passing
failure, such as a metadata table that does not answer."""
FIRST_SERVICE_S: Final = 600.0
"""The time for a process to accept connections. Up to half of it may be spent waiting for the former process's lease,
and for other stores to flush their data to S3."""
NEVER_SERVED: Final = 3
"""Exit code of a task that never served."""
VOLUME_FAILED: Final = 5
"""Exit code of a task whose journals failed again and again."""
DOES_NOT_STAY_UP: Final = 6
"""Exit code of a task with a process that ended again and again for other reasons."""
STORE_COMMAND: Final = (sys.executable, "-m", "segmentstore_fargate")


class Supervisor:
    """Runs one command in each of several environments, and restarts it when it exits.

    SIGTERM and SIGINT are passed on to all processes, which are not restarted then. `may_end` says whether no data is
    lost if all of them end. `leave` is called with the index of a process that does not stay up, or whose volume has
    failed. It marks the process as one that does not come back, or returns False if the volume is still needed. The
    process is restarted on the volume then, and without `leave`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        may_end: Callable[[], bool] = lambda: False,
        leave: Callable[[int], bool] | None = None,
        *,
        pause_s: float = RESTART_PAUSE_S,
        first_service_s: float = FIRST_SERVICE_S,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._may_end = may_end
        self._leave = leave
        self._pause_s = pause_s
        self._first_service_s = first_service_s
        self._deaths = 0
        self._end_code: int | None = None
        self._journal_failures = JournalFailures()
        self._failures_lock = threading.Lock()
        self._stopping = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: SimpleQueue[int] = SimpleQueue()

    def run(self) -> int:
        """Run until all processes have ended. Returns 0 if all ended with 0, else the exit code of one that did not.

        Returns NEVER_SERVED if none of them ever served and no data is lost. Returns VOLUME_FAILED or DOES_NOT_STAY_UP
        if the store left the cluster for this reason.
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
        if self._end_code is not None:
            return self._end_code
        return next((code for code in codes if code), 0)

    def _keep(self, process: int) -> None:
        """Keep one process running; in a thread of its own."""
        exits, loop = ExitsInARow(), RestartLoop()
        while True:
            started_s = time.monotonic()
            child = self._children[process] = subprocess.Popen(self._command, env=dict(self._environments[process]))
            if self._stopping.is_set():  # the signal came before there was a child to pass it on to
                child.terminate()
            code = child.wait()
            if code == 0 or self._stopping.is_set():
                break
            pause_s = restart_pause_s(exits.note(time.monotonic() - started_s), self._pause_s)
            _log.error("event=store_died process=%d exit_code=%d restart_in_s=%.1f", process, code, pause_s)
            self._deaths += 1
            is_in_loop = loop.note(time.monotonic())
            if is_in_loop:
                _log.critical("event=store_keeps_ending process=%d exit_code=%d", process, code)
            if code == JOURNAL_FAILED and self._volume_has_failed() and self._leaves(process):
                self._end(VOLUME_FAILED)
                break
            if is_in_loop and self._leaves(process):
                self._end(DOES_NOT_STAY_UP)
                break
            if self._deaths >= EARLY_DEATHS_MAX:
                self._end_if_allowed()
            if self._stopping.wait(pause_s):
                break
        self._ended.put(code)

    def _volume_has_failed(self) -> bool:
        """Note a failure of a journal. Returns whether those of this store have failed too often."""
        with self._failures_lock:
            has_failed = self._leave is not None and self._journal_failures.note(time.monotonic())
        if has_failed:
            _log.critical("event=volume_failed")
        return has_failed

    def _leaves(self, process: int) -> bool:
        """Whether the volume is not needed any more, so that the store has left the cluster."""
        try:
            return self._leave is not None and self._leave(process)
        except Exception:  # noqa: BLE001 - such as missing credentials: this thread restarts the process
            _log.exception("event=leaving_failed process=%d", process)
            return False

    def _end_if_allowed(self) -> None:
        if self._stopping.is_set() or not self._may_end():
            return
        _log.critical("event=never_served deaths=%d", self._deaths)
        self._end(NEVER_SERVED)

    def _end(self, code: int) -> None:
        """Stop all processes, as after SIGTERM."""
        self._end_code = code
        self._stopping.set()
        for child in list(self._children.values()):
            child.terminate()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        for child in list(self._children.values()):
            child.send_signal(number)


def main() -> int:
    """Supervise the store; a process that a signal ended counts as failed."""
    try:
        begin_log("INFO", log_format(os.environ))
        environments = process_environments(with_store_id(os.environ))
        configs = [read_config(each) for each in environments]
    except InvalidRequestError as error:
        print(f"segment store: {error.message}", file=sys.stderr)
        return 2
    data_dir = configs[0].data_dir
    was_empty = not has_logs(data_dir)

    def leave(process: int) -> bool:
        return _leave_cluster(configs[process])

    code = Supervisor(
        STORE_COMMAND,
        environments,
        lambda: was_empty and not was_served(data_dir),
        leave if configs[0].copies > 1 else None,
    ).run()
    return code if code >= 0 else 1


def _leave_cluster(config: StoreConfig) -> bool:
    """Mark the lease of a process. The adapter is imported here, because most supervisors never need it."""
    from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
    from headrace.adapters.system_clock import SystemClock
    from segmentstore_fargate.leave import leave_cluster

    metadata_store = DynamoMetadataStore(config.metadata_table)
    return leave_cluster(metadata_store, config.store_id, config.container_count, SystemClock().now_ms())


if __name__ == "__main__":
    sys.exit(main())
