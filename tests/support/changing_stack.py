"""A local stack in a process of its own, whose stores change what they demand while its clients go on.

`python changing_stack.py DIRECTORY STORES BRIDGE` runs it. Each line on its standard input is the next mode of TLS and
whether tokens are demanded (`permissive True`), and it prints `ready` when all stores do so. The end of its standard
input stops it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headrace.local.stack import LocalStack, StackOptions
from headrace.model.tls_modes import TlsMode

ROOT = Path(__file__).resolve().parents[2]
READY = "ready"


class ChangingStack:
    """The running stack; it is plain at first."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process, self._directory = process, directory
        self._await_ready()

    @property
    def state(self) -> dict[str, Any]:
        """The content of the state file now."""
        document: dict[str, Any] = json.loads((self._directory / "local-stack.json").read_text())
        return document

    @property
    def url(self) -> str:
        return str(self.state["endpoints"]["http"])

    def change(self, tls: TlsMode, *, tokens: bool = True) -> None:
        """Return when each store has been replaced by one that demands this."""
        self._input.write(f"{tls.value} {tokens}\n")
        self._input.flush()
        self._await_ready()

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return
        raise AssertionError(f"the stack has ended with code {self._process.wait()}: see its output in the test's log")


@contextmanager
def changing_stack(directory: Path, *, segment_stores: int, bridge: bool = False) -> Iterator[ChangingStack]:
    """Run a plain stack with its data in `directory`, and stop it. With `bridge` it also serves Pravega's clients."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HEADRACE_BUCKET_COUNT": "2"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(directory), str(segment_stores), str(bridge)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    with process:
        yield ChangingStack(process, directory)
    assert process.returncode == 0


def main() -> None:
    options = StackOptions(
        data_dir=Path(sys.argv[1]),
        http_port=0,
        grpc_port=0 if sys.argv[3] == str(True) else None,
        segment_stores=int(sys.argv[2]),
        restart=True,
        state_file=None,
    )
    stack = LocalStack(options, lambda line: print(line, flush=True))
    stack.start()
    try:
        print(READY, flush=True)
        for line in sys.stdin:
            tls, tokens = line.split()
            stack.change_security(TlsMode(tls), tokens=tokens == str(True))
            print(READY, flush=True)
    finally:
        stack.stop()


if __name__ == "__main__":
    main()
