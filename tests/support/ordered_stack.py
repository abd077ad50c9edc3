"""A local stack in a process of its own that carries out orders of its test.

The process is a program of tests that calls `serve_orders`. Each line on its standard input is an order, and it prints
`ready` when the order is done. The end of its standard input stops it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.local.stack import LocalStack, StackOptions

ROOT = Path(__file__).resolve().parents[2]
READY = "ready"


class OrderedStack:
    """The running stack, whose data are in `directory`."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process, self.directory = process, directory
        self._await_ready()

    @property
    def state(self) -> dict[str, Any]:
        """The content of the state file now."""
        found: dict[str, Any] = json.loads((self.directory / "local-stack.json").read_text())
        return found

    @property
    def url(self) -> str:
        return str(self.state["endpoints"]["http"])

    def order(self, line: str) -> None:
        """Return when the order is carried out."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._await_ready()

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return
        raise AssertionError(f"the stack has ended with code {self._process.wait()}: see its output in the test's log")


@contextmanager
def ordered_stack(
    program: str, directory: Path, *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[OrderedStack]:
    """Run a program with the directory and these arguments, and stop it."""
    process = subprocess.Popen(
        [sys.executable, program, str(directory), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HEADRACE_BUCKET_COUNT": "2", **(environment or {})},
        start_new_session=True,
    )
    with process:
        yield OrderedStack(process, directory)
    assert process.returncode == 0


def serve_orders(stack: LocalStack, carry_out: Callable[[Sequence[str]], None]) -> None:
    """Run the stack, and call `carry_out` with the words of each order, until there are no more."""
    stack.start()
    try:
        print(READY, flush=True)
        for line in sys.stdin:
            carry_out(line.split())
            print(READY, flush=True)
    finally:
        stack.stop()


def stack_options(directory: str, stores: str, *, restart: bool, **more: Any) -> StackOptions:
    """On free ports, with a number of stores that are restarted when they end, or are not."""
    options = {"grpc_port": None, "state_file": None, **more}
    return StackOptions(data_dir=Path(directory), http_port=0, segment_stores=int(stores), restart=restart, **options)


def say(line: str) -> None:
    """Print what the stack says."""
    print(line, flush=True)
