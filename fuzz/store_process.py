"""A real segment store process on a directory of its own, with an AWS emulator that outlives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace import topology
from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.resources import Resources, aws_environment, create_resources
from headrace.local.stack_processes import ChildProcess

_READY_S: Final = 60.0
_STOP_S: Final = 60.0


class StoreProcess:
    """Started, killed and started again on the same directory."""

    def __init__(
        self, environment: Mapping[str, str], directory: Path, module: str = topology.SEGMENT_STORES.module
    ) -> None:
        self._environment = environment
        self._module = module
        self._log_file = directory / "store.log"
        self._child: ChildProcess | None = None
        self.host, self.port = "127.0.0.1", 0

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def was_started(self) -> bool:
        return self._child is not None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    @property
    def _running(self) -> ChildProcess:
        if self._child is None:
            raise AssertionError("the store was not started")
        return self._child

    def start(self) -> None:
        """Returns when it serves; raises LocalStackError."""
        self.launch()
        ready = self._running.await_ready(_READY_S)
        self.port = int(ready.partition("port=")[2].split()[0])
        self.host = ready.partition("host=")[2].split()[0]

    def launch(self) -> None:
        """Start without waiting."""
        self._child = ChildProcess("segment store", self._module, (), self._environment, self._log_file)

    def kill(self) -> None:
        """kill -9, at once."""
        os.kill(self._running.pid, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it does nothing until `resume`, and its connections stay."""
        os.kill(self._running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._running.pid, signal.SIGCONT)

    def abort(self) -> None:
        """End it, with the stacks of its threads in its log."""
        os.kill(self._running.pid, signal.SIGCONT)
        os.kill(self._running.pid, signal.SIGABRT)

    def reap(self) -> None:
        """After a kill."""
        self._running.stop(0)

    def stop(self) -> bool:
        """In good order; whether it ended so."""
        return self._running.stop(_STOP_S)


@contextmanager
def aws_emulator(directory: Path) -> Iterator[tuple[Resources, dict[str, str]]]:
    """An emulator with all resources, and the environment of processes that use it."""
    environment = dict(os.environ) | aws_environment("")
    emulator = ChildProcess("AWS emulator", "headrace.local.aws_emulator", (), environment, directory / "aws.log")
    try:
        resources = create_resources(emulator.await_ready(_READY_S).removeprefix(READY_PREFIX))
        yield resources, environment | resources.environment()
    finally:
        emulator.stop(_STOP_S)


@contextmanager
def store_process(directory: Path, settings: Mapping[str, object]) -> Iterator[StoreProcess]:
    """A store that was not started yet. `settings` are environment variables without their prefix."""
    with aws_emulator(directory) as (_, environment):
        environment |= {
            "HEADRACE_STORE_ID": "store-0",
            "HEADRACE_DATA_DIR": str(directory / "data"),
            "HEADRACE_CONTAINER_COUNT": "3",
            "HEADRACE_LOG_LEVEL": "WARNING",
            **{f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        store = StoreProcess(environment, directory)
        try:
            yield store
        finally:
            if store.was_started:
                store.reap()
