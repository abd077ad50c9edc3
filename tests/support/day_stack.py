"""A local stack of three stores for game days: its AWS can fail, and its stores log and demand tokens as on AWS.

`python day_stack.py DIRECTORY STORES SERVICE...` runs it; each store reports its metrics as one of the services. The
order `unreachable dynamodb` lets a service fail, `throttled s3` throttles one, and `well` ends both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aws_faults import AwsFaults
from ordered_stack import OrderedStack, ordered_stack, say, serve_orders, stack_options

from headrace.local.stack import LocalStack, StackOptions
from headrace.model.container_logs import COPIES


@contextmanager
def day_stack(directory: Path, services: Sequence[str]) -> Iterator[OrderedStack]:
    """Run the stack with its data in `directory`, and stop it."""
    with ordered_stack(__file__, directory, COPIES, *services, environment={"HEADRACE_LOG_FORMAT": "json"}) as stack:
        yield stack


class _Stack(LocalStack):
    """Stores and functions reach the emulator through a proxy."""

    def __init__(self, options: StackOptions, services: Sequence[str]) -> None:
        super().__init__(options, say)
        self._services = services
        self.aws: AwsFaults | None = None

    def _environment(self) -> dict[str, str]:
        if self.aws is None:
            self.aws = AwsFaults(self.resources.endpoint)
            self.aws.start()
            self._parts.callback(self.aws.stop)
        return super()._environment() | {"AWS_ENDPOINT_URL": self.aws.url}

    def _store_environment(self, index: int) -> dict[str, str]:
        return super()._store_environment(index) | {"HEADRACE_METRICS_SERVICE": self._services[index]}

    def carry_out(self, order: Sequence[str]) -> None:
        """Let AWS fail, or work."""
        assert self.aws is not None
        self.aws.unreachable = frozenset(order[1:]) if order[0] == "unreachable" else frozenset()
        self.aws.throttled = frozenset(order[1:]) if order[0] == "throttled" else frozenset()


def main() -> None:
    _, directory, stores, *services = sys.argv
    stack = _Stack(stack_options(directory, stores, restart=True, tokens=True), services)
    serve_orders(stack, stack.carry_out)


if __name__ == "__main__":
    main()
