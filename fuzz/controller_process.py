"""The controller as one process that can be killed: API, queues and schedules, as the local stack has them.

    python -m fuzz.controller_process --port PORT --fault-file FILE

The environment is that of the functions. It prints `ready`, and its URL. If FILE exists when a commit set is written,
the process kills itself (SIGKILL) at the point that the file names, and removes the file before.
"""

from __future__ import annotations

import os
import signal
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from fuzz.sink_files import COMMIT_POINTS
from headrace import topology
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.local.event_sources import QueuePoller, ScheduleTimer
from headrace.local.http_gateway import HttpGateway
from headrace.local.lambda_host import LambdaHost
from headrace.local.resources import aws_client
from headrace.metadata.commit_records import commit_writer_key
from headrace.ports.metadata_store import Write

_WRITER: Final = commit_writer_key("scope", "stream", "name").sort.removesuffix("name")
"""Begins the keys of the records of writers."""


class SuddenEnd:
    """Kills this process at a point of the next commit set that is written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._writes = 0

    def watch(self) -> None:
        """All writes of this process go through this."""
        write = DynamoMetadataStore.write

        def watched(store: DynamoMetadataStore, *writes: Write) -> None:
            if not any(write.key.sort.startswith(_WRITER) for write in writes) or (point := self._point()) is None:
                return write(store, *writes)
            with self._lock:
                before, after = COMMIT_POINTS[self._writes % 4 : self._writes % 4 + 2]
                self._writes += 2
            if before == point:
                self._end()
            write(store, *writes)
            if after == point:
                self._end()
            return None

        DynamoMetadataStore.write = watched  # type: ignore[assignment,method-assign]

    def _point(self) -> str | None:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return None

    def _end(self) -> None:
        self._file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fault-file", type=Path, required=True)
    arguments = parser.parse_args()
    SuddenEnd(arguments.fault_file).watch()
    clock = SystemClock()
    host = LambdaHost(clock)
    gateway = HttpGateway(clock, arguments.port)
    sqs = aws_client("sqs", os.environ["AWS_ENDPOINT_URL"])
    for declared in topology.QUEUES:
        for queue in (declared, declared.dead_letters):
            url = sqs.get_queue_url(QueueName=queue.name)["QueueUrl"]
            QueuePoller(queue, url, sqs, host.invoke).start()
    for schedule in topology.SCHEDULES:
        ScheduleTimer(schedule, host.invoke, clock).start()
    gateway.serve(host)
    print(f"ready {gateway.url}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
