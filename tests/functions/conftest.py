"""Functions over memory adapters: the whole way from event to result without a network."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from functions import wiring
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.topology import ROUTES, Function, function

ROUTE_FUNCTIONS = {(route.method, route.path): function(route.function) for route in ROUTES}


@dataclass
class World:
    """What lies behind the functions."""

    store: MemoryMetadataStore
    queue: MemoryRequestQueue
    segment_stores: MemorySegmentStores
    commits: MemoryRequestQueue
    aborts: MemoryRequestQueue

    def work(self) -> None:
        """Does all queued stream requests."""
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


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Services over fresh memory adapters."""
    made = World(
        MemoryMetadataStore(TornReads(0)),
        MemoryRequestQueue(),
        MemorySegmentStores(),
        MemoryRequestQueue(),
        MemoryRequestQueue(),
    )
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setattr(wiring, "metadata_store", lambda: made.store)
    monkeypatch.setattr(wiring, "request_queue", lambda: made.queue)
    monkeypatch.setattr(wiring, "table_queue", lambda: made.queue)
    monkeypatch.setattr(wiring, "commit_queue", lambda: made.commits)
    monkeypatch.setattr(wiring, "abort_queue", lambda: made.aborts)
    monkeypatch.setattr(wiring, "segment_stores", lambda: made.segment_stores)
    wiring.forget_services()
    yield made
    wiring.forget_services()


@pytest.fixture(scope="session")
def context() -> Any:
    """What Powertools reads from Lambda's context."""
    return SimpleNamespace(
        function_name="f",
        memory_limit_in_mb=512,
        invoked_function_arn="arn:aws:lambda:f",
        aws_request_id="r-1",
        get_remaining_time_in_millis=lambda: 29_000,
    )


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


Call = Callable[..., Answer]


@pytest.fixture
def call(world: World, context: Any) -> Call:
    """`call(method, path, body, **query)` asks the function that serves the route."""

    def ask(method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **query: str) -> Answer:
        event: dict[str, Any] = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": "",
            "headers": headers or {},
            "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
            "isBase64Encoded": False,
        }
        if body is not None:
            event["body"] = body if isinstance(body, str) else json.dumps(body)
        if query:
            event["queryStringParameters"] = query
        result = _handler(_serving(method, path))(event, context)
        return Answer(int(result["statusCode"]), json.loads(result["body"]) if result.get("body") else None)

    return ask


def _serving(method: str, path: str) -> Function:
    """Longest literal match, as API Gateway has it."""
    parts = path.split("/")
    found = [
        (pattern.count("{"), declared)
        for (route_method, pattern), declared in ROUTE_FUNCTIONS.items()
        if route_method == method
        and len(pattern.split("/")) == len(parts)
        and all(part == given or part.startswith("{") for part, given in zip(pattern.split("/"), parts, strict=True))
    ]
    return min(found, key=lambda one: one[0])[1]


def _handler(declared: Function) -> Callable[[Any, Any], Any]:
    module, _, name = declared.handler.rpartition(".")
    handler: Callable[[Any, Any], Any] = getattr(importlib.import_module(module), name)
    return handler


@pytest.fixture
def fixed_stream() -> Callable[..., dict[str, Any]]:
    """The body that creates a stream with a fixed number of segments."""

    def body(name: str = "t", segments: int = 2, **more: Any) -> dict[str, Any]:
        return {"streamName": name, "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": segments}, **more}

    return body


@pytest.fixture
def active_stream(world: World, call: Call, fixed_stream: Callable[..., dict[str, Any]]) -> str:
    """Path of the ACTIVE stream s/t of two segments."""
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    assert call("POST", "/v1/scopes/s/streams", fixed_stream()).status == 201
    world.work()
    return "/v1/scopes/s/streams/t"
