"""A whole Headrace whose segment store and controller can be killed: each is a process of its own, and comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fuzz.controller_gate import ControllerGate
from fuzz.processes import kill_nine
from fuzz.store_process import StoreProcess, aws_emulator
from headrace import topology
from headrace.local.failures import LocalStackError
from headrace.local.resources import Resources, aws_client
from headrace.local.stack import FUNCTION_ENVIRONMENT
from headrace.local.stack_processes import ChildProcess

_READY_S: Final = 120.0
REDELIVERY_S: Final = 10
"""When a message whose process was killed comes again. In a deployment that takes minutes."""
_RECEIVES_MAX: Final = 1000
"""No number of kills makes a dead letter."""


class SinkStack:
    """The processes. Requests of a query go through `gate`, where they are watched; others through `own_gate`."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.store_kills, self.controller_kills = 0, 0
        self._directory = directory
        self._fault_file = directory / "controller-fault"
        self._environment = environment
        own = {
            "HEADRACE_STORE_ID": "store-0",
            "HEADRACE_DATA_DIR": str(directory / "data"),
            "HEADRACE_LOG_LEVEL": "WARNING",
        }
        self._store = StoreProcess(environment | own, directory)
        self._store.start()
        self._stopping = False
        self._lock = threading.Lock()
        self._controller = self._launch()
        url = self._controller.await_ready(_READY_S).split()[1]
        self.gate, self.own_gate = ControllerGate(url), ControllerGate(url)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def kill_store(self) -> None:
        """kill -9, and a start on the same journal. Returns when the store serves again."""
        with self._lock:
            self._store.kill()
            self._store.reap()
            self._store.start()
            self.store_kills += 1

    def kill_controller(self) -> None:
        """kill -9 of API and queue processors, whatever they are doing. It is back some seconds later."""
        kill_nine(self._controller.pid)

    def kill_controller_at(self, point: str) -> bool:
        """It kills itself at a point of the next commit set; see `controller_process`. One at a time: else False."""
        if self._fault_file.exists():
            return False
        temporary = self._fault_file.with_suffix(".new")
        temporary.write_text(point)
        temporary.replace(self._fault_file)
        return True

    def spare_controller(self) -> bool:
        """Takes back what `kill_controller_at` has asked for; whether it had not happened."""
        is_left = self._fault_file.exists()
        self._fault_file.unlink(missing_ok=True)
        return is_left

    def close(self) -> None:
        self._stopping = True
        self._controller.stop(0)
        self._watcher.join()
        self.gate.close()
        self.own_gate.close()
        self._store.reap()

    def _launch(self, port: int = 0) -> ChildProcess:
        arguments = ("--port", str(port), "--fault-file", str(self._fault_file))
        log = self._directory / "controller.log"
        return ChildProcess("controller", "fuzz.controller_process", arguments, self._environment, log)

    def _watch(self) -> None:
        while True:
            self._controller.wait()
            if self._stopping:
                return
            self.controller_kills += 1
            self._controller.stop(0)
            self._controller = self._launch(urlsplit(self.gate.upstream).port or 0)
            with suppress(LocalStackError):  # it was killed again while it started
                self._controller.await_ready(_READY_S)


@contextmanager
def sink_stack(directory: Path) -> Iterator[SinkStack]:
    """Runs a stack below the directory. Raises LocalStackError if a part does not start."""
    with ExitStack() as parts:
        resources, environment = parts.enter_context(aws_emulator(directory))
        _redeliver_soon(resources, aws_client("sqs", resources.endpoint))
        stack = SinkStack(directory, environment | FUNCTION_ENVIRONMENT)
        parts.callback(stack.close)
        yield stack


def _redeliver_soon(resources: Resources, sqs: Any) -> None:
    for queue in topology.QUEUES:
        url = resources.queue_urls[queue.name]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
        redrive = json.loads(found["RedrivePolicy"]) | {"maxReceiveCount": _RECEIVES_MAX}
        changed = {"VisibilityTimeout": str(REDELIVERY_S), "RedrivePolicy": json.dumps(redrive)}
        sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
