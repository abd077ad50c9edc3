"""The bridge for Pravega's own clients as a process of the stack. If it ends by itself, the stack fails."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.local.child_process import ChildProcess
from headrace.local.failures import EXIT_USAGE, LocalStackError

LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 60.0
STOP_DEADLINE_S = 5
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

    def __init__(self, port: int, environment: Mapping[str, str], log_file: Path) -> None:
        self._port = port
        self._child = ChildProcess(
            "gRPC bridge",
            "headrace.bridge",
            (),
            dict(environment)
            | {
                "HEADRACE_GRPC_LISTEN_HOST": LOOPBACK,
                "HEADRACE_GRPC_LISTEN_PORT": str(port),
                "HEADRACE_STOP_DEADLINE_S": str(STOP_DEADLINE_S),
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
        return f"tcp://{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        self._stopping.set()
        self._child.stop(STOP_DEADLINE_S + _STOP_SLACK_S)

    def _watch(self, on_failure: Callable[[str], None]) -> None:
        code = self._child.wait()
        if not self._stopping.is_set():
            on_failure(f"the gRPC bridge ended with code {code}")
