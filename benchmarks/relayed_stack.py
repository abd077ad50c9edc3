"""The local stack with three segment stores that a benchmark kills, pauses and cuts off from each other.

The stack of `headrace up` restarts its stores and lets them talk to each other directly. Here they are those of the
fault search (`fuzz/replicated_stores.py`): each is a zone, the links between them lead through relays, and a store that
has ended stays away until it is started again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz.network_cuts import NetworkCuts, network_cuts
from fuzz.replicated_stores import StoreGroup
from headrace.local.data_directory import World
from headrace.local.stack import LocalStack, StackOptions
from headrace.local.stack_processes import SegmentStoreProcesses, StoreStatus, replica_settings
from headrace.model.container_logs import COPIES

ZONES: Final = ("a", "b", "c")


class _Statuses(SegmentStoreProcesses):
    """What the stack asks of its stores. Nothing here starts or stops one."""

    def __init__(self, group: StoreGroup) -> None:
        super().__init__([])
        self._group = group

    @property
    def statuses(self) -> list[StoreStatus]:
        return [
            StoreStatus(each.store_id, each.directory, each.process.host, each.process.port, (), each.process.pid)
            for each in self._group.stores
        ]


class RelayedStack(LocalStack):
    """`settings` are added to the environment of the stores. `group` has the stores once the stack is started."""

    def __init__(self, directory: Path, cuts: NetworkCuts, settings: Mapping[str, str]) -> None:
        options = StackOptions(None, 0, None, COPIES, restart=False, state_file=directory / "local-stack.json")
        super().__init__(options, lambda _line: None)
        self._directory = directory
        self.cuts = cuts
        self._store_settings = settings

    @property
    def url(self) -> str:
        """Of the HTTP API."""
        return self.gateway.url

    def _start_stores(self, world: World) -> None:
        environment = dict(os.environ) | replica_settings(COPIES) | dict(self._store_settings)
        self.group = StoreGroup(self._directory, self.resources, environment, self.cuts)
        self.cuts.name_of = self.group.store_of
        self._parts.callback(self._stop_stores)
        self.group.start(*(self.group.add(zone) for zone in ZONES))
        self.stores = _Statuses(self.group)

    def _stop_stores(self) -> None:
        self.cuts.heal()
        for store in self.group.made:
            if store.process.was_started:
                store.process.reap()


@contextmanager
def relayed_stack(parent: Path, settings: Mapping[str, str]) -> Iterator[RelayedStack]:
    """Run the stack with its data in a directory below `parent`. Raises LocalStackError as `LocalStack.start` does."""
    with tempfile.TemporaryDirectory(dir=parent) as directory, network_cuts() as cuts:
        stack = RelayedStack(Path(directory), cuts, settings)
        stack.start()
        try:
            yield stack
        finally:
            stack.stop()
