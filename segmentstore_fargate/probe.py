"""`python -m segmentstore_fargate.probe`: the health check of a store's task, told by the environment of its processes.

Exit code 0 if the store is well, else 1, with what is wrong on stderr. The check has a latch, a file on the volume for
each process. A process closes it when it serves, under a lease, every container that the map gives it, and has the
copies that are wanted on it (settled.py). Before that the check fails, so that a deployment replaces the next store
only when this one has taken its place.

From then on, also after a restart on the same volume, only the state of the processes and their journals counts. A task
that is replaced loses its volume. A store that waits for DynamoDB, S3 or another store is therefore well. So is a store
whose processes end and are restarted: the supervisor ends the task if no log needs the volume (supervised.py).
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import StoreConfig, process_environments, read_config
from segmentstore_fargate.layout import was_settled
from segmentstore_fargate.task_identity import STORE_ID_VARIABLE

TIMEOUT_S: Final = 5.0
_HTTP_OK: Final = 200


def problems(configs: Sequence[StoreConfig]) -> list[str]:
    """Describe what is wrong with a store, given the settings of its processes."""
    known = [each.health_port for each in configs if each.health_port]
    settled = {each.health_port for each in configs if each.health_port and was_settled(each.data_dir, each.process)}
    failures = dead_processes(known, settled) + unsettled_processes(configs)
    if len(known) < len(configs):
        failures.append("HEADRACE_HEALTH_PORT names no port to check")
    return failures


def unsettled_processes(configs: Iterable[StoreConfig]) -> list[str]:
    """Which processes have never served all that was theirs on this volume."""
    return [
        f"process {each.process} has not served all containers that are its own yet"
        for each in configs
        if not was_settled(each.data_dir, each.process)
    ]


def dead_processes(ports: Sequence[int], may_restart: Collection[int] = ()) -> list[str]:
    """What is wrong with the processes whose pages are on these ports of this machine.

    At a port of `may_restart` no process has to listen. One that listens there has to answer.
    """
    failures = []
    for port in ports:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            if answer.status != _HTTP_OK:
                failures.append(f"port {port}: {answer.read().decode(errors='replace')}")
        except (OSError, http.client.HTTPException) as error:
            if not (isinstance(error, ConnectionRefusedError) and port in may_restart):
                failures.append(f"port {port}: {error!r}")
        finally:
            connection.close()
    return failures


def main() -> int:
    try:
        # The supervisor asks ECS for the name of the store. The check needs none, and must not depend on the answer.
        environment = {STORE_ID_VARIABLE: "checked", **os.environ}
        configs = [read_config(each) for each in process_environments(environment)]
    except InvalidRequestError as error:
        print(error.message, file=sys.stderr)
        return 1
    failures = problems(configs)
    for problem in failures:
        print(problem, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
