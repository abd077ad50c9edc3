"""The functions of one release as a process: the HTTP API, the pollers of queues and the schedules.

`python release_functions.py RESOURCES PORT` runs with the code that PYTHONPATH names. It prints `loaded`, waits for
the line `serve`, and prints `done URL` when it serves. SIGTERM ends it after the work that runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import signal
import sys
import threading
from typing import Any

from headrace import topology
from headrace.adapters.system_clock import SystemClock
from headrace.local.http_gateway import HttpGateway
from headrace.local.lambda_host import LambdaHost
from headrace.local.resources import Resources, aws_client

_STOP_S = 60.0
_POLL_S = 1
"""Short, so that few polls of a process that has ended receive messages."""


def modules_of_sources() -> tuple[Any, Any]:
    """What has `QueuePoller` and what has `ScheduleTimer`: release 0.2.0 has a module for each."""
    if importlib.util.find_spec("headrace.local.event_sources"):
        sources = importlib.import_module("headrace.local.event_sources")
        return sources, sources
    return importlib.import_module("headrace.local.queue_pollers"), importlib.import_module("headrace.local.schedules")


def stop_at_end_of_input(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def main() -> None:
    resources, clock = Resources(**json.loads(sys.argv[1])), SystemClock()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    functions = LambdaHost(clock)
    print("loaded", flush=True)
    sys.stdin.readline()
    gateway = HttpGateway(clock, int(sys.argv[2]))
    sqs = aws_client("sqs", resources.endpoint)
    queues, schedules = modules_of_sources()
    queues.LONG_POLL_S = _POLL_S
    declared = [queue for each in topology.QUEUES for queue in (each, each.dead_letters)]
    workers = [
        *[queues.QueuePoller(queue, resources.queue_urls[queue.name], sqs, functions.invoke) for queue in declared],
        *[schedules.ScheduleTimer(schedule, functions.invoke, clock) for schedule in topology.SCHEDULES],
    ]
    for worker in workers:
        worker.start()
    gateway.serve(functions)
    print(f"done {gateway.url}", flush=True)
    threading.Thread(target=stop_at_end_of_input, args=(stopping,), daemon=True).start()
    stopping.wait()
    gateway.stop()
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        worker.join(_STOP_S)


if __name__ == "__main__":
    main()
