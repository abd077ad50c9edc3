"""A local stack of three stores for game days: its AWS can fail. Stores log and demand TLS and tokens as on AWS.

`python day_stack.py DIRECTORY STORES CERTIFICATES_S SERVICE...` runs it; each store reports its metrics as one of the
services, and its first certificate ends after so many seconds. `_ORDERS` are its orders.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from aws_faults import AwsFaults
from ordered_stack import OrderedStack, ordered_stack, say, serve_orders, stack_options

from headrace.local.resources import aws_client
from headrace.local.stack import LocalStack, StackOptions
from headrace.model.certificate_authorities import LEAF_LIFE_S
from headrace.model.container_logs import COPIES
from headrace.model.tls_modes import TlsMode
from headrace.topology import REQUESTS_QUEUE


@contextmanager
def day_stack(directory: Path, services: Sequence[str], certificates_s: int = LEAF_LIFE_S) -> Iterator[OrderedStack]:
    """Run the stack with its data in `directory`, and stop it."""
    arguments = (COPIES, certificates_s, *services)
    with ordered_stack(__file__, directory, *arguments, environment={"HEADRACE_LOG_FORMAT": "json"}) as stack:
        yield stack


class _Stack(LocalStack):
    """Stores and functions reach the emulator through a proxy."""

    def __init__(self, options: StackOptions, certificates_s: int, services: Sequence[str]) -> None:
        super().__init__(options, say)
        self._certificates_s = certificates_s
        self._services = services
        self._may_replace = threading.Event()
        self._may_replace.set()
        self.aws: AwsFaults | None = None

    def _environment(self) -> dict[str, str]:
        if self.aws is None:
            self.aws = AwsFaults(self.resources.endpoint)
            self.aws.start()
            self._parts.callback(self.aws.stop)
        return super()._environment() | {"AWS_ENDPOINT_URL": self.aws.url}

    def _store_environment(self, index: int) -> dict[str, str]:
        return super()._store_environment(index) | {"HEADRACE_METRICS_SERVICE": self._services[index]}

    def _prepare_tls(self) -> None:
        super()._prepare_tls()
        self.issue_certificates(str(self._certificates_s))

    def issue_certificates(self, life_s: str) -> None:
        """Stores whose certificates end within a day load them in a minute."""
        assert self._certificates is not None
        self._certificates.issue(int(life_s))

    def fail(self, service: str) -> None:
        """The service of AWS does not answer."""
        assert self.aws is not None
        self.aws.unreachable = frozenset({service})

    def throttle(self, service: str) -> None:
        assert self.aws is not None
        self.aws.throttled = frozenset({service})

    def recover(self) -> None:
        """All services of AWS work."""
        assert self.aws is not None
        self.aws.unreachable = self.aws.throttled = frozenset()

    def allow_one_attempt(self) -> None:
        """A request that fails once becomes a dead letter. On AWS that takes ten attempts, and an hour."""
        url = self.resources.queue_urls[REQUESTS_QUEUE.name]
        sqs = aws_client("sqs", self.resources.endpoint)
        policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]["RedrivePolicy"]
        redrive = json.dumps(json.loads(policy) | {"maxReceiveCount": 1})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "1", "RedrivePolicy": redrive})

    def leave_dead(self) -> None:
        """A store that ends is not replaced until `replace_dead`. On AWS that takes a minute."""
        self._may_replace.clear()

    def replace_dead(self) -> None:
        """Stores that have ended are started again, and so are those that end from now on."""
        self._may_replace.set()

    def _publish_state(self, *, first: bool = False) -> None:
        """The thread that starts a store again publishes its end before that."""
        super()._publish_state(first=first)
        self._may_replace.wait()

    def stop(self) -> None:
        self.replace_dead()
        super().stop()

    def stop_stores(self) -> None:
        self._stop_stores()

    def start_stores(self) -> None:
        """Other processes with the same data."""
        self._start_stores(self.world)

    def carry_out(self, order: Sequence[str]) -> None:
        """Carry out one of the orders, with its argument."""
        _ORDERS[order[0]](self, *order[1:])


_ORDERS: Mapping[str, Callable[..., None]] = {
    "unreachable": _Stack.fail,
    "throttled": _Stack.throttle,
    "well": _Stack.recover,
    "certificates": _Stack.issue_certificates,
    "one-attempt": _Stack.allow_one_attempt,
    "leave-dead": _Stack.leave_dead,
    "replace-dead": _Stack.replace_dead,
    "stop-stores": _Stack.stop_stores,
    "start-stores": _Stack.start_stores,
}


def main() -> None:
    _, directory, stores, certificates_s, *services = sys.argv
    options = stack_options(directory, stores, restart=True, tokens=True, tls=TlsMode.REQUIRED)
    stack = _Stack(options, int(certificates_s), services)
    serve_orders(stack, stack.carry_out)


if __name__ == "__main__":
    main()
