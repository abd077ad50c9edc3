"""The adapters behind the functions in memory, and requests to the functions that serve a route."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from functions import wiring
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.topology import ROUTES, Function, function

ROUTE_FUNCTIONS = {(route.method, route.path): function(route.function) for route in ROUTES}


@dataclass
class FunctionWorld:
    """The adapters behind the functions."""

    store: MemoryMetadataStore
    queue: MemoryRequestQueue
    segment_stores: MemorySegmentStores
    commits: MemoryRequestQueue
    aborts: MemoryRequestQueue

    def work(self) -> None:
        """Process all queued requests."""
        while messages := self.queue.receive():
            for message in messages:
                wiring.request_processor().process(message.body)
                self.queue.acknowledge(message.receipt)
        for queue, process in (
            (self.commits, wiring.commit_processor().process),
            (self.aborts, wiring.abort_processor().process),
        ):
            while messages := queue.receive():
                for message in messages:
                    process(message.body)
                    queue.acknowledge(message.receipt)

    def contents(self) -> str:
        """Everything that is stored or queued, as text to compare before and after."""
        queues = [queue._messages for queue in (self.queue, self.commits, self.aborts)]
        return repr((self.store._partitions, queues, self.segment_stores._segments))


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


class Call(Protocol):
    """Asks the function that serves the route."""

    def __call__(self, method: str, path: str, body: Any = None, *, headers: Any = None, **query: str) -> Answer: ...


AuditLines = Callable[[], list[dict[str, Any]]]
"""Returns the audit lines since the last call."""


class StreamBody(Protocol):
    """The body that creates a stream with a fixed number of segments."""

    def __call__(self, name: str = "t", segments: int = 2, **more: Any) -> dict[str, Any]: ...


def serving_function(method: str, path: str) -> Function:
    """Longest literal match, as API Gateway has it."""
    parts = path.split("/")
    found = [
        (pattern.count("{"), declared)
        for (route_method, pattern), declared in ROUTE_FUNCTIONS.items()
        if route_method == method
        and len(pattern.split("/")) == len(parts)
        and all(part == given or part.startswith("{") for part, given in zip(pattern.split("/"), parts, strict=True))
    ]
    return min(found, key=lambda match: match[0])[1]


def handler_of(declared: Function) -> Callable[[Any, Any], Any]:
    module, _, name = declared.handler.rpartition(".")
    handler: Callable[[Any, Any], Any] = getattr(importlib.import_module(module), name)
    return handler
