"""A local stack whose stores change what they demand while its clients go on.

`python changing_stack.py DIRECTORY STORES BRIDGE` runs it. An order is the next mode of TLS and whether tokens are
demanded (`permissive True`); it is done when all stores do so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ordered_stack import OrderedStack, ordered_stack, say, serve_orders, stack_options

from headrace.local.stack import LocalStack
from headrace.model.tls_modes import TlsMode


class ChangingStack:
    """The running stack; it is plain at first."""

    def __init__(self, stack: OrderedStack) -> None:
        self._stack = stack

    @property
    def state(self) -> dict[str, Any]:
        """The content of the state file now."""
        return self._stack.state

    @property
    def url(self) -> str:
        return self._stack.url

    def change(self, tls: TlsMode, *, tokens: bool = True) -> None:
        """Return when each store has been replaced by one that demands this."""
        self._stack.order(f"{tls.value} {tokens}")


@contextmanager
def changing_stack(directory: Path, *, segment_stores: int, bridge: bool = False) -> Iterator[ChangingStack]:
    """Run a plain stack with its data in `directory`, and stop it. With `bridge` it also serves Pravega's clients."""
    with ordered_stack(__file__, directory, segment_stores, bridge) as stack:
        yield ChangingStack(stack)


def main() -> None:
    _, directory, stores, bridge = sys.argv
    options = stack_options(directory, stores, restart=True, grpc_port=0 if bridge == str(True) else None)
    stack = LocalStack(options, say)

    def carry_out(order: Sequence[str]) -> None:
        tls, tokens = order
        stack.change_security(TlsMode(tls), tokens=tokens == str(True))

    serve_orders(stack, carry_out)


if __name__ == "__main__":
    main()
