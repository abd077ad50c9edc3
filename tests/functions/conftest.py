"""Functions over memory adapters: the whole way from event to result without a network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from functions_in_memory import Answer, AuditLines, Call, FunctionWorld, StreamBody, handler_of, serving_function
from lambda_context import FunctionContext

from functions import wiring
from headrace.adapters import audit_log
from headrace.adapters.gateway_events import match_route
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.topology import ROUTES


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionWorld]:
    """Services over fresh memory adapters."""
    made = FunctionWorld(
        MemoryMetadataStore(TornReads(0)),
        MemoryRequestQueue(),
        MemorySegmentStores(),
        MemoryRequestQueue(),
        MemoryRequestQueue(),
    )
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setenv(audit_log.FILE, os.devnull)
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
def context() -> FunctionContext:
    """What Powertools reads from Lambda's context."""
    return FunctionContext()


@pytest.fixture
def call(world: FunctionWorld, context: FunctionContext) -> Call:
    """`call(method, path, body, **query)` asks the function that serves the route."""

    def ask(method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **query: str) -> Answer:
        match = match_route(ROUTES, method, path)
        assert match is not None, "API Gateway answers 404 itself"
        event: dict[str, Any] = {
            "version": "2.0",
            "routeKey": match.route.key,
            "pathParameters": dict(match.path_parameters),
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
        result = handler_of(serving_function(method, path))(event, context)
        body = json.loads(result["body"]) if result.get("body") else None
        return Answer(int(result["statusCode"]), body, result.get("headers") or {})

    return ask


@pytest.fixture
def audit_lines(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AuditLines:
    """`audit_lines()` returns the lines that were written since the last time, and removes them."""
    file = tmp_path / "audit.log"
    monkeypatch.setenv(audit_log.FILE, str(file))
    wiring.forget_services()

    def read() -> list[dict[str, Any]]:
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return read


@pytest.fixture
def fixed_stream() -> StreamBody:
    """The body that creates a stream with a fixed number of segments."""

    def body(name: str = "t", segments: int = 2, **more: Any) -> dict[str, Any]:
        return {"streamName": name, "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": segments}, **more}

    return body


@pytest.fixture
def active_stream(world: FunctionWorld, call: Call, fixed_stream: StreamBody) -> str:
    """Path of the ACTIVE stream s/t of two segments."""
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    assert call("POST", "/v1/scopes/s/streams", fixed_stream()).status == 201
    world.work()
    return "/v1/scopes/s/streams/t"
