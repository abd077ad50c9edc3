"""The processes of the local stack: how a child process runs, the bridge, and the segment stores."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace import topology
from headrace.adapters.tcp.listener import CONNECTIONS_MAX
from headrace.cli.standard_streams import print_message
from headrace.local.certificates import LOCAL_NAME
from headrace.local.failures import EXIT_USAGE, LocalStackError
from headrace.model.backoff import doubled_pause
from headrace.model.container_logs import COPIES
from headrace.ports.clock import Clock

# A child process that ends with its parent: it is started, awaited until it reports that it is ready, and stopped.
#
# Each child has its own session, so that Ctrl-C in a terminal reaches only the parent, which then stops the children in
# order. The output of a child goes to its log file. The parent also keeps the first line of standard output that starts
# with "ready".

READY_WORD = "ready"
_LOG_TAIL_BYTES = 2000
_FAILURE_SEARCH_BYTES = 100_000
_CRITICAL_EVENT = re.compile(r"level=CRITICAL .*?(event=.*)")
_KILL_WAIT_S = 5.0


class ChildProcess:
    """A running `python -m module`; messages refer to it by `name`."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        """Start the process. Its output is appended to the log file."""
        self.name = name
        self._log_file = log_file
        self._ready_line: str | None = None
        self._said_something = threading.Event()
        self._asked_to_stop = False
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.local.parent_watchdog", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=dict(environment),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read_output, name=f"{name}-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, timeout_s: float) -> str:
        """Wait for the line with which the process reports that it is ready, and return it.

        Raises:
            LocalStackError: the process ended, or was not ready in time.
        """
        self._said_something.wait(timeout_s)
        if self._ready_line is None:
            ended = not self.is_running or self._said_something.is_set()
            what = f"ended with code {self.wait()}" if ended else f"was not ready within {timeout_s:.0f} s"
            raise LocalStackError(f"{self.name} {what}; its log {self._log_file} ends: {self._log_tail()}")
        return self._ready_line

    def wait(self) -> int:
        """Block until the process has ended; return its exit code, negative for a signal."""
        return self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM unless it was sent before, and return at once; no effect if the process has ended."""
        if not self._asked_to_stop:  # a second signal would make the process skip its graceful shutdown
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self, timeout_s: float) -> bool:
        """Stop the process, and kill it after `timeout_s`. Return whether it ended by a graceful shutdown."""
        self.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILL_WAIT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(_KILL_WAIT_S)
        return self._process.returncode == 0

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._log_file.open("a") as log, self._process.stdout as output:
            for line in output:
                log.write(line)
                log.flush()
                if self._ready_line is None and line.startswith(READY_WORD):
                    self._ready_line = line.strip()
                    self._said_something.set()
        self._said_something.set()

    def failure(self) -> str:
        """The first critical line of this process in its log, from `event=` on; empty if it wrote none.

        A log that cannot be read has none: its loss must not end the thread that starts the store again.
        """
        try:
            with self._log_file.open("rb") as log:
                log.seek(max(self._log_start, self._log_file.stat().st_size - _FAILURE_SEARCH_BYTES))
                match = _CRITICAL_EVENT.search(log.read().decode(errors="replace"))
        except OSError:
            return ""
        return "" if match is None else match[1]

    def _log_tail(self) -> str:
        tail = self._log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return tail.splitlines()[-1] if tail else "(empty)"


# The bridge for Pravega's own clients as a process of the stack. If it ends by itself, the stack fails.

LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 60.0
BRIDGE_STOP_DEADLINE_S = 5
_STOP_SLACK_S = 2.0
_READY_LINE = re.compile(r"ready grpc host=(\S+) port=(\d+)")


def check_port(port: int) -> None:
    """Check that the port is free before the other parts start, because the bridge itself starts last.

    Raises:
        LocalStackError: another process uses the port; exit code 2.
    """
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise LocalStackError(
            f"cannot serve Pravega's clients on {LOOPBACK}:{port}: {os.strerror(error.errno or 0)}; choose another "
            "port with --grpc-port, or --grpc-port off",
            exit_code=EXIT_USAGE,
        ) from error


class GrpcBridgeProcess:
    """The bridge on loopback, with the environment of the functions; with `port` 0 the system chooses the port."""

    def __init__(self, port: int, environment: Mapping[str, str], log_file: Path, *, has_tls: bool = False) -> None:
        """`has_tls`: the environment has a certificate with the name `localhost`."""
        self._port = port
        self._scheme, self._host = ("tls", LOCAL_NAME) if has_tls else ("tcp", LOOPBACK)
        self._child = ChildProcess(
            "gRPC bridge",
            "headrace.bridge",
            (),
            dict(environment)
            | {
                "HEADRACE_GRPC_LISTEN_HOST": LOOPBACK,
                "HEADRACE_GRPC_LISTEN_PORT": str(port),
                "HEADRACE_ADVERTISED_HOST": self._host,
                "HEADRACE_STORE_NAME": LOCAL_NAME if has_tls else "",
                "HEADRACE_STOP_DEADLINE_S": str(BRIDGE_STOP_DEADLINE_S),
                "HEADRACE_NETWORK": "vpc",
            },
            log_file,
        )
        self._stopping = threading.Event()

    def start(self, on_failure: Callable[[str], None]) -> None:
        """Return when the bridge serves. From then on `on_failure` is called if it ends before `stop`.

        Raises:
            LocalStackError: the bridge does not start.
        """
        match = _READY_LINE.fullmatch(self._child.await_ready(READY_TIMEOUT_S))
        if match is None:
            raise LocalStackError("the gRPC bridge did not report its address")
        self._port = int(match[2])
        threading.Thread(target=self._watch, args=(on_failure,), name="watch-grpc", daemon=True).start()

    @property
    def url(self) -> str:
        """The address in the form that Pravega's clients accept."""
        return f"{self._scheme}://{self._host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        self._stopping.set()
        self._child.stop(BRIDGE_STOP_DEADLINE_S + _STOP_SLACK_S)

    def _watch(self, on_failure: Callable[[str], None]) -> None:
        code = self._child.wait()
        if not self._stopping.is_set():
            on_failure(f"the gRPC bridge ended with code {code}")


# Segment store processes: they are started together, watched, and restarted when they end unexpectedly.
#
# A store keeps its directory and, if possible, its port over a restart, so that clients find it at the same address. If
# a store does not stay up, the stack fails, even if other stores could serve all: endless restarts would hide a bug,
# and so would a stack that goes on without one of its stores.

STORE_STOP_DEADLINE_S = 20
"""The time in which a store can write its remaining data after SIGTERM."""

STOP_PATIENCE_S = STORE_STOP_DEADLINE_S + 5.0
"""After this time the store is killed."""

STARTS_MAX = 10
"""Starts in a row, after each of which the store served for less than STEADY_S."""
STEADY_S = 10.0
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0

ONE_COPY_NOTE = (
    "note: one copy of each event; if its disk is lost, so are events that S3 does not have (start with "
    f"--segment-stores {COPIES} to replicate)"
)

PER_ADDRESS_VARIABLE = "HEADRACE_CONNECTIONS_PER_ADDRESS_MAX"

_STORE_READY_LINE = re.compile(r"ready store=(\S+) host=(\S+) port=(\d+) containers=([\d,]*)")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store's entry in the state file; `pid` is None while the store is down."""

    store_id: str
    data_dir: Path
    host: str = ""
    port: int = 0
    containers: tuple[int, ...] = ()
    pid: int | None = None
    restarts: int = 0


def replica_settings(store_count: int) -> dict[str, str]:
    """The environment of stores that hold copies of each other's logs; empty if they are too few for that."""
    if store_count < COPIES:
        return {}
    return {
        "HEADRACE_COPIES": str(COPIES),
        "HEADRACE_REPLICA_SECRET": secrets.token_hex(32),
        "HEADRACE_CLUSTER_ID": secrets.token_hex(16),
    }


class SegmentStoreProcess:
    """One store and the thread that watches it."""

    def __init__(
        self,
        index: int,
        count: int,
        data_dir: Path,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        restart: bool,
        on_change: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.status = StoreStatus(f"store-{index}", data_dir / f"store-{index}")
        self._log_file = data_dir / "logs" / f"store-{index}.log"
        self._index, self._count = index, count
        self._environment = self._complete(environment)
        self._clock = clock
        self._restart = restart
        self._on_change = on_change
        self._on_failure = on_failure
        self._child: ChildProcess | None = None
        self._make_watcher()

    def _make_watcher(self) -> None:
        self._short_starts = 0
        self._ready_at_s: float | None = None
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{self.status.store_id}", daemon=True)

    def _complete(self, environment: Mapping[str, str]) -> dict[str, str]:
        """All variables of the process but its port."""
        # All clients of the stack have one address: a bound of an address below that of all connections would only
        # leave connections that no client can use.
        return (
            {PER_ADDRESS_VARIABLE: str(CONNECTIONS_MAX)}
            | dict(environment)
            | {
                "HEADRACE_STORE_ID": self.status.store_id,
                "HEADRACE_STORE_INDEX": str(self._index),
                "HEADRACE_STORE_COUNT": str(self._count),
                "HEADRACE_DATA_DIR": str(self.status.data_dir),
                "HEADRACE_LISTEN_HOST": "127.0.0.1",
                "HEADRACE_ZONE": "local",
                "HEADRACE_STOP_DEADLINE_S": str(STORE_STOP_DEADLINE_S),
            }
        )

    def launch(self, port: int = 0) -> None:
        """Start the process without waiting until it is ready."""
        self.status.data_dir.mkdir(parents=True, exist_ok=True)
        environment = self._environment | {"HEADRACE_LISTEN_PORT": str(port)}
        self._child = ChildProcess(
            f"segment store {self.status.store_id}", topology.SEGMENT_STORES.module, (), environment, self._log_file
        )

    def await_ready(self) -> None:
        """Raises LocalStackError if the process ends or takes too long."""
        child = self._running_child()
        line = child.await_ready(READY_TIMEOUT_S)
        match = _STORE_READY_LINE.fullmatch(line)
        if match is None or match[1] != self.status.store_id:
            raise LocalStackError(f"{child.name} printed {line!r} instead of its ready line")
        containers = tuple(int(number) for number in match[4].split(",") if number)
        self._ready_at_s = self._clock.monotonic_s()
        self.status = replace(self.status, host=match[2], port=int(match[3]), containers=containers, pid=child.pid)

    def watch(self) -> None:
        """Start to watch the process: from now on it is restarted when it ends."""
        self._watcher.start()

    def ask_to_stop(self) -> None:
        """Send SIGTERM and return at once; the process is not restarted."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    def stop(self, patience_s: float = STOP_PATIENCE_S) -> bool:
        """Wait for the end, or kill the process. Return whether the store shut down gracefully."""
        self.ask_to_stop()
        if self._watcher.ident is not None:
            self._watcher.join(patience_s)
        return self._child is None or self._child.stop(patience_s)

    def replace(self, environment: Mapping[str, str]) -> None:
        """Stop the store, and start it with other variables and on another port, as a deployment does.

        Raises:
            LocalStackError: it does not stop gracefully, or does not come up again.
        """
        if not self.stop():
            raise LocalStackError(f"segment store {self.status.store_id} did not stop gracefully; see {self._log_file}")
        self._environment = self._complete(environment)
        self._make_watcher()
        self.launch()
        self.await_ready()
        self._on_change()
        self.watch()

    def _watch(self) -> None:
        while True:
            code = self._running_child().wait()
            if self._stopping.is_set():
                return
            self.status = replace(self.status, pid=None)
            self._on_change()
            print_message(f"headrace up: {self._end_text(code)}")
            if not self._restart:
                return
            if not self._start_again(code):
                return

    def _start_again(self, code: int) -> bool:
        """Restart the store. Return False if it does not stay up, or the stack is stopping."""
        port, attempt, problem = self.status.port, 0, self._cause(code)
        while True:
            if self._is_hopeless():
                self._on_failure(
                    f"segment store {self.status.store_id} {problem}. In {STARTS_MAX} starts it has never served for "
                    f"{STEADY_S:.0f} s, so it is not started again. Its log: {self._log_file}. Remove the cause, and "
                    "start `headrace up` again: with --data-dir to keep the logs, or with --no-restart to let other "
                    "stores go on"
                )
                return False
            if self._stopping.wait(doubled_pause(attempt + 1, BACKOFF_FIRST_S, BACKOFF_MAX_S)):
                return False
            try:
                self._running_child().stop(0)
                self.launch(port)
                self.await_ready()
            except (LocalStackError, OSError) as error:
                if self._stopping.is_set():
                    return False
                port, attempt, problem = 0, attempt + 1, f"does not come up again: {error}"
                continue
            self.status = replace(self.status, restarts=self.status.restarts + 1)
            self._on_change()
            address = f"{self.status.host}:{self.status.port}"
            print_message(f"headrace up: segment store {self.status.store_id} runs again at {address}; clients go on")
            return True

    def _end_text(self, code: int) -> str:
        """What a user is to know about the end of the process."""
        following = (
            "it is started again"
            if self._restart
            else "it stays down (--no-restart). Its containers are served again after `headrace up` is started again"
        )
        return f"segment store {self.status.store_id} {self._cause(code)}: {following}. Its log: {self._log_file}"

    def _cause(self, code: int) -> str:
        failure = self._running_child().failure()
        cause = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"{cause} ({failure})" if failure else cause

    def _is_hopeless(self) -> bool:
        """Note the end of a start. Return whether the store has not stayed up after STARTS_MAX starts in a row."""
        served_s = 0.0 if self._ready_at_s is None else self._clock.monotonic_s() - self._ready_at_s
        self._ready_at_s = None
        self._short_starts = 0 if served_s >= STEADY_S else self._short_starts + 1
        return self._short_starts >= STARTS_MAX

    def _running_child(self) -> ChildProcess:
        if self._child is None:
            raise LocalStackError(f"segment store {self.status.store_id} was not launched")
        return self._child


class SegmentStoreProcesses:
    """All segment stores of the stack."""

    def __init__(self, stores: list[SegmentStoreProcess]) -> None:
        self._stores = stores

    def start(self) -> None:
        """Start all stores together and return when all are ready; raise LocalStackError if one does not start."""
        for store in self._stores:
            store.launch()
        for store in self._stores:
            store.await_ready()
        for store in self._stores:
            store.watch()

    def replace(self, index: int, environment: Mapping[str, str]) -> None:
        """Start one store again with other variables, while the others serve. Raises LocalStackError if it fails."""
        self._stores[index].replace(environment)

    def stop(self, patience_s: float = STOP_PATIENCE_S) -> bool:
        """Stop all stores together. Return whether all shut down gracefully."""
        for store in self._stores:
            store.ask_to_stop()
        ended_well = [store.stop(patience_s) for store in self._stores]
        return all(ended_well)

    @property
    def statuses(self) -> list[StoreStatus]:
        return [store.status for store in self._stores]
