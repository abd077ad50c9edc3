"""A local stack in a process of its own, with versions in its bucket, whose stores and functions stop for a restore.

`python restoring_stack.py DIRECTORY STORES S3_CONTAINERS` runs it. Each line on its standard input is `stop`, which
kills all stores and ends the work of the functions, or `start`, which starts stores with empty disks and functions
without memory. It prints `ready` when that is done. The end of its standard input stops it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.local.data_directory import World
from headrace.local.resources import aws_client
from headrace.local.stack import LocalStack, StackOptions

ROOT = Path(__file__).resolve().parents[2]
READY = "ready"
FIRST_LIFE_ONLY = ("HEADRACE_GARBAGE_EVERY_S", "HEADRACE_GARBAGE_GRACE_S", "HEADRACE_FLUSH_AGE_S")
"""Settings of the test for the stores before the restore."""


class RestoringStack:
    """The running stack."""

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

    def stop_work(self) -> None:
        """Kill all stores, and end the work of the functions."""
        self._order("stop")

    def start_work(self) -> None:
        """Start stores with empty disks, and the functions."""
        self._order("start")

    def _order(self, line: str) -> None:
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
def restoring_stack(
    directory: Path, *, segment_stores: int, s3_containers: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[RestoringStack]:
    """Run a stack with its data in `directory`, and stop it. `environment` is for the stores before the restore."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(directory), str(segment_stores), str(s3_containers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HEADRACE_BUCKET_COUNT": "2", **(environment or {})},
        start_new_session=True,
    )
    with process:
        yield RestoringStack(process, directory)
    assert process.returncode == 0


class _Stack(LocalStack):
    """A stack whose work stops and starts while the emulator of AWS goes on."""

    def _start_stores(self, world: World) -> None:
        aws_client("s3", self.resources.endpoint).put_bucket_versioning(
            Bucket=self.resources.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
        super()._start_stores(world)

    def stop_work(self) -> None:
        self._stop_background_work()
        self.stores.stop(0.0)

    def start_work(self) -> None:
        from functions import wiring

        for variable in FIRST_LIFE_ONLY:
            os.environ.pop(variable, None)
        for index in range(self.world.segment_stores):
            shutil.rmtree(self.world.directory / f"store-{index}")
        wiring.forget_services()
        super()._start_stores(self.world)
        self._start_background_work()
        self._check_health()
        self._publish_state()


def main() -> None:
    options = StackOptions(
        data_dir=Path(sys.argv[1]),
        http_port=0,
        grpc_port=None,
        segment_stores=int(sys.argv[2]),
        restart=False,
        state_file=None,
        s3_containers=int(sys.argv[3]),
    )
    stack = _Stack(options, lambda line: print(line, flush=True))
    stack.start()
    try:
        print(READY, flush=True)
        for line in sys.stdin:
            if line.strip() == "stop":
                stack.stop_work()
            else:
                stack.start_work()
            print(READY, flush=True)
    finally:
        stack.stop()


if __name__ == "__main__":
    main()
