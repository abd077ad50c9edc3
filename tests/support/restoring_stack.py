"""A local stack with versions in its bucket, whose stores and functions stop for a restore.

`python restoring_stack.py DIRECTORY STORES S3_CONTAINERS` runs it. The order `stop` kills all stores and ends the work
of the functions; `start` starts stores with empty disks and functions without memory.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ordered_stack import OrderedStack, ordered_stack, say, serve_orders, stack_options

from headrace.local.data_directory import World
from headrace.local.resources import aws_client
from headrace.local.stack import LocalStack

FIRST_LIFE_ONLY = ("HEADRACE_GARBAGE_EVERY_S", "HEADRACE_GARBAGE_GRACE_S", "HEADRACE_FLUSH_AGE_S")
"""Settings of the test for the stores before the restore."""


class RestoringStack:
    """The running stack."""

    def __init__(self, stack: OrderedStack) -> None:
        self._stack = stack

    @property
    def state(self) -> dict[str, Any]:
        """The content of the state file now."""
        return self._stack.state

    @property
    def url(self) -> str:
        return self._stack.url

    def stop_work(self) -> None:
        """Kill all stores, and end the work of the functions."""
        self._stack.order("stop")

    def start_work(self) -> None:
        """Start stores with empty disks, and the functions."""
        self._stack.order("start")


@contextmanager
def restoring_stack(
    directory: Path, *, segment_stores: int, s3_containers: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[RestoringStack]:
    """Run a stack with its data in `directory`, and stop it. `environment` is for the stores before the restore."""
    with ordered_stack(__file__, directory, segment_stores, s3_containers, environment=environment) as stack:
        yield RestoringStack(stack)


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
    _, directory, stores, s3_containers = sys.argv
    stack = _Stack(stack_options(directory, stores, restart=False, s3_containers=int(s3_containers)), say)

    def carry_out(order: Sequence[str]) -> None:
        if list(order) == ["stop"]:
            stack.stop_work()
        else:
            stack.start_work()

    serve_orders(stack, carry_out)


if __name__ == "__main__":
    main()
