"""Each request that changes or grants something has exactly one audit line, however it ends."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from functions_in_memory import Answer, AuditLines, Call, FunctionWorld, handler_of
from lambda_context import FunctionContext

from functions import operations, wiring
from headrace.adapters import audit_log
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.audit_lines import AuditLine, Outcome
from headrace.model.documents import Document
from headrace.model.errors import AlreadyExistsError, ConflictError, NotFoundError, UnauthorizedError, UnavailableError
from headrace.topology import ROUTES, Route, function

NAMES = {
    "scope": "s",
    "stream": "t",
    "group": "g",
    "table": "k",
    "subscriber": "s/g",
    "writer": "w",
    "container": "1",
    "segment": "0",
    "epoch": "0",
    "transaction": "0123456789abcdef0123456789abcdef",
    "letter": f"{0:013d}-{'0' * 32}",
}
ARN = "arn:aws:sts::111122223333:assumed-role/billing/i-1"
AUDITED = [route for route in ROUTES if route.action]
SILENT = [route for route in ROUTES if not route.action]
ENDS = {
    "done": (None, 204, ""),
    "forbidden": (UnauthorizedError("no"), 403, "unauthorized"),
    "missing": (NotFoundError("no"), 404, "not_found"),
    "conflict": (ConflictError("no"), 409, "conflict"),
    "exists": (AlreadyExistsError("no"), 409, "already_exists"),
    "away": (UnavailableError("no"), 503, "unavailable"),
    "defect": (RuntimeError("password=hunter2"), 500, "internal"),
}


def _event(route: Route, **changes: Any) -> dict[str, Any]:
    values = {name: NAMES[name] for name in re.findall(r"{([^}]*)}", route.path)}
    path = route.path
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value.replace("/", "%2F"))
    context = {
        "http": {"method": route.method, "path": path, "sourceIp": "198.51.100.7"},
        "authorizer": {"iam": {"userArn": ARN, "accessKey": "AKIAEXAMPLE"}},
        "requestId": "gateway-1",
        "stage": "$default",
    }
    return {
        "version": "2.0",
        "routeKey": route.key,
        "pathParameters": values,
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"authorization": "AWS4-HMAC-SHA256 Signature=5ec2e7", "x-amz-security-token": "5ec2e7"},
        "requestContext": context,
        "isBase64Encoded": False,
        **changes,
    }


def _end(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """Makes every handler end so."""

    def call(*_: Any) -> Document | None:
        if error is not None:
            raise error
        return None

    monkeypatch.setattr(operations.Operation, "call", call)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", AUDITED, ids=lambda route: route.key)
def test_a18_each_end_of_a_change_has_one_line(
    audit_lines: AuditLines, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, route: Route, end: str
):
    error, status, code = ENDS[end]
    _end(monkeypatch, error)
    answer = handler_of(function(route.function))(_event(route), context)
    assert answer["statusCode"] == status
    (line,) = audit_lines()
    assert (line["audit"], line["action"], line["principal"], line["sourceIp"]) == (
        1,
        route.action,
        ARN,
        "198.51.100.7",
    )
    assert (line["status"], line.get("code", "")) == (status, code)
    assert line["outcome"] == ("done" if status < 400 else "refused" if status < 500 else "failed")
    assert (line["call"], line["requestId"], line["correlationId"]) == (route.key, "gateway-1", "gateway-1")
    assert line.get("resource", "") == "/".join(NAMES[name] for name in re.findall(r"{([^}]*)}", route.path))
    assert not re.search("5ec2e7|AKIA|hunter2", json.dumps(line))


@pytest.mark.parametrize("route", SILENT, ids=lambda route: route.key)
def test_a_question_has_a_line_only_if_it_is_refused(
    audit_lines: AuditLines, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, route: Route
):
    handle = handler_of(function(route.function))
    for end in set(ENDS) - {"forbidden"}:
        _end(monkeypatch, ENDS[end][0])
        handle(_event(route), context)
        assert audit_lines() == [], end
    _end(monkeypatch, ENDS["forbidden"][0])
    handle(_event(route), context)
    (line,) = audit_lines()
    assert (line["action"], line["status"], line["call"]) == ("read", 403, route.key)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.key)
def test_a_refused_path_has_a_line_with_its_text(audit_lines: AuditLines, context: FunctionContext, route: Route):
    event = _event(route)
    handler_of(function(route.function))(event | {"rawPath": f"{event['rawPath']}/%2e"}, context)
    (line,) = audit_lines()
    assert (line["status"], line["code"]) == (400, "path_not_canonical")
    assert line["details"] == {"path": f"{event['rawPath']}/%2e"}


@pytest.mark.parametrize("body", ['{"a": 1', "[" * 100_000, '"' + "x" * 600_000 + '"', '{"a": 1, "a": 2}'])
def test_a_body_that_is_refused_is_not_in_the_line(audit_lines: AuditLines, context: FunctionContext, body: str):
    (route,) = [route for route in ROUTES if route.action == "stream.create"]
    handler_of(function(route.function))(_event(route, body=body), context)
    (line,) = audit_lines()
    assert (line["action"], line["resource"], line["outcome"]) == ("stream.create", "s", "refused")
    assert "details" not in line


def test_what_was_asked_in_vain_is_not_in_the_line(call: Call, audit_lines: AuditLines):
    """A field that the API does not know may be anything, even a password."""
    answer = call("POST", "/v1/scopes", {"scopeName": "s", "password": "hunter2"})
    assert answer.status == 400
    (line,) = audit_lines()
    assert (line["action"], line["resource"], line["status"]) == ("scope.create", "s", 400)
    assert "hunter2" not in json.dumps(line)


SIGNATURE = {"X-Amz-Security-Token": "hunter2", "X-Amz-Signature": "hunter2"}
"""A caller may also sign with the query."""


@pytest.mark.parametrize("route", AUDITED, ids=lambda route: route.key)
def test_what_a_handler_ignores_is_not_in_the_line(
    audit_lines: AuditLines, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, route: Route
):
    _end(monkeypatch, None)
    event = _event(route, queryStringParameters=SIGNATURE)
    handler_of(function(route.function))(event, context)
    (line,) = audit_lines()
    assert line["outcome"] == "done"
    assert "hunter2" not in json.dumps(line)


def test_a_body_that_no_handler_reads_is_not_in_the_line(call: Call, audit_lines: AuditLines, active_stream: str):
    audit_lines()
    assert call("POST", f"{active_stream}/delegation-token", {"password": "hunter2"}).status == 200
    assert call("DELETE", "/v1/scopes/s", {"password": "hunter2"}, recursive="true").status == 202
    given, deleted = audit_lines()
    assert "details" not in given
    assert deleted["details"] == {"query": {"recursive": "true"}}


def test_no_depth_of_a_body_suppresses_the_line(call: Call, audit_lines: AuditLines, active_stream: str):
    """There are depths that the parser can read and the line cannot show."""
    audit_lines()
    statuses = set()
    for depth in range(900, 1_000):
        answer = call("POST", f"{active_stream}/delegation-token", "[" * depth + "]" * depth)
        assert [line["status"] for line in audit_lines()] == [answer.status], depth
        statuses.add(answer.status)
    assert statuses == {200, 400}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("deploy-7", "deploy-7"),
        ("a" * 64, "a" * 64),
        ("a" * 65, "gateway-1"),
        ("", "gateway-1"),
        ("two words", "gateway-1"),
        ("a,b", "gateway-1"),
        ('"}\n{"audit":1', "gateway-1"),
    ],
)
def test_a_caller_may_choose_the_correlation_id(
    audit_lines: AuditLines, context: FunctionContext, given: str, shown: str
):
    (route,) = [route for route in ROUTES if route.action == "scope.delete"]
    handler_of(function("scopes"))(_event(route, headers={"x-headrace-correlation-id": given}), context)
    (line,) = audit_lines()
    assert (line["correlationId"], line["requestId"]) == (shown, "gateway-1")


@pytest.mark.parametrize("subscriber", ["s/g", "s%2Fg"])
def test_a_resource_is_the_same_in_both_forms(audit_lines: AuditLines, context: FunctionContext, subscriber: str):
    """Whether the gateway decodes the parameters of a path or not."""
    (route,) = [route for route in ROUTES if route.action == "subscriber.unregister"]
    event = _event(route)
    parameters = event["pathParameters"] | {"subscriber": subscriber}
    handler_of(function(route.function))(event | {"pathParameters": parameters}, context)
    (line,) = audit_lines()
    assert (line["resource"], line["status"]) == ("s/t/s/g", 404)


def test_long_details_are_not_repeated(call: Call, audit_lines: AuditLines, active_stream: str):
    audit_lines()
    cut = {str(number): 0 for number in range(500)}
    call("POST", f"{active_stream}/commit-sets", {"writer": "w", "epoch": 1, "transactions": {}})
    assert call("POST", f"{active_stream}/truncate", {"cut": cut}).status == 400
    tags = [f"{'x' * 100}-{number}" for number in range(20)]
    made = call(
        "POST",
        "/v1/scopes/s/streams",
        {"streamName": "u", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}, "streamTags": tags},
    )
    assert made.status == 201
    line = audit_lines()[-1]
    assert list(line["details"]) == ["characters"]
    assert line["details"]["characters"] > 2_000


def test_a_line_that_is_not_written_is_told_in_the_log(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The request has been done, so that it is answered as done."""
    monkeypatch.setenv(audit_log.FILE, str(tmp_path / "missing" / "audit.log"))
    wiring.forget_services()
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    assert "audit line lost: scope.create of s by local" in caplog.text


def test_without_a_file_a_line_is_one_line_of_the_log(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.delenv(audit_log.FILE, raising=False)
    wiring.forget_services()
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith('{"audit":1')]
    assert [json.loads(line)["action"] for line in lines] == ["scope.create"]


def _changes(call: Call, world: FunctionWorld) -> list[tuple[str, str, Answer]]:
    """Calls of the actions of streams, groups and tables that succeed: action, resource and answer."""
    stream, groups = "/v1/scopes/s/streams/t", "/v1/scopes/s/reader-groups"
    done: list[tuple[str, str, Answer]] = []

    def do(action: str, resource: str, *request: Any, **query: str) -> Answer:
        done.append((action, resource, call(*request, **query)))
        world.work()
        return done[-1][2]

    fixed = {"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}}
    do("scope.create", "s", "POST", "/v1/scopes", {"scopeName": "s"})
    do("stream.create", "s/t", "POST", "/v1/scopes/s/streams", {"streamName": "t", **fixed})
    do("stream.update", "s/t", "PUT", stream, {**fixed, "streamTags": ["a"]})
    world.segment_stores.extend("s/t/0.#epoch.0", 10)
    do("stream.truncate", "s/t", "POST", f"{stream}/truncate", {"cut": {"0": 4}})
    for method, verb in (("GET", "read"), ("POST", "write"), ("PUT", "manage")):
        do(f"stream.{verb}-token", "s/t", method, f"{stream}/delegation-token")
    do("stream.read-links", "s/t/0", "GET", f"{stream}/segments/0/chunks")
    span = {"segmentId": 0, "start": 4, "end": 10}
    do("stream.read-links", "s/t", "POST", f"{stream}/range-plans", {"ranges": [span]})
    begun = do("transaction.create", "s/t", "POST", f"{stream}/transactions", {"lease": 10_000}).body["transaction"]
    path = f"{stream}/transactions/{begun}"
    do("transaction.renew", f"s/t/{begun}", "PUT", f"{path}/lease", {"lease": 10_000})
    several = {"lease": 10_000, "transactions": [begun]}
    do("transaction.renew-several", "s/t", "POST", f"{stream}/transaction-leases", several)
    do("transaction.set-state", f"s/t/{begun}", "PUT", f"{path}/state", {"state": "COMMITTING"})
    do("transaction.abort-labelled", "s/t", "POST", f"{stream}/transaction-aborts", {"labelPrefix": "q"})
    do("writer.note-position", "s/t/w", "PUT", f"{stream}/writers/w/position", {"time": 5, "position": {"0": 10}})
    do("writer.remove", "s/t/w", "DELETE", f"{stream}/writers/w")
    do("subscriber.register", "s/t/s/h", "PUT", f"{stream}/subscribers/s%2Fh", {"generation": 1})
    moved = {"generation": 1, "streamCut": {"0": 10}}
    do("subscriber.publish", "s/t/s/h", "PUT", f"{stream}/subscribers/s%2Fh/position", moved)
    do("subscriber.unregister", "s/t/s/h", "DELETE", f"{stream}/subscribers/s%2Fh")
    group = {"readerGroupName": "g", "streams": [{"streamName": "t"}]}
    made = do("reader-group.create", "s/g", "POST", groups, group)
    identity = call("GET", f"{groups}/g").body["readerGroupId"]
    assert made.status == 201
    change = {"readerGroupId": identity, "generation": 0, "streams": [{"streamName": "t"}]}
    do("reader-group.update", "s/g", "PUT", f"{groups}/g", change)
    again = {"readerGroupId": identity, "generation": 1}
    do("reader-group.reset", "s/g", "POST", f"{groups}/g/reset", again)
    do("reader-group.write-token", "s/g", "POST", f"{groups}/g/delegation-token")
    do("reader-group.delete", "s/g", "DELETE", f"{groups}/g", readerGroupId=identity)
    halves = [{"low": 0.0, "high": 0.5}, {"low": 0.5, "high": 1.0}]
    do("stream.scale", "s/t", "POST", f"{stream}/scale", {"sealedSegments": [0], "newRanges": halves})
    do("stream.set-state", "s/t", "PUT", f"{stream}/state", {"streamState": "SEALED"})
    do("stream.delete", "s/t", "DELETE", stream)
    table = {"tableName": "k", "partitionCount": 1, "primaryKeyLength": 4}
    do("table.create", "s/k", "POST", "/v1/scopes/s/key-value-tables", table)
    do("table.write-token", "s/k", "POST", "/v1/scopes/s/key-value-tables/k/delegation-token")
    do("table.delete", "s/k", "DELETE", "/v1/scopes/s/key-value-tables/k")
    do("scope.delete", "s", "DELETE", "/v1/scopes/s")
    return done


def test_the_lines_tell_a_whole_life(
    call: Call, world: FunctionWorld, audit_lines: AuditLines, monkeypatch: pytest.MonkeyPatch
):
    """The actions that succeed, in order, with the resources that they were about."""
    links = MemoryChunkLinks(MemoryChunkStorage(), 60, ManualClock())
    monkeypatch.setattr(wiring, "chunk_links", lambda: links)
    done = _changes(call, world)
    assert [(action, answer) for action, _, answer in done if answer.status >= 300] == []
    lines = audit_lines()
    assert [(line["action"], line["resource"]) for line in lines] == [
        (action, resource) for action, resource, _ in done
    ]
    assert {line["outcome"] for line in lines} == {"done"}
    assert {line["principal"] for line in lines} == {"local"}
    sealed = next(line for line in lines if line["action"] == "stream.set-state")
    assert sealed["details"] == {"body": {"streamState": "SEALED"}}
    truncated = next(line for line in lines if line["action"] == "stream.truncate")
    assert truncated["details"] == {"body": {"cut": {"0": 4}}}


def test_what_is_created_is_named_as_the_api_has_it():
    """The field of the body exists: a misspelt one would leave the name out of the line."""
    fields = {route.created for route in ROUTES if route.created}
    document = json.loads((Path(__file__).parents[2] / "docs" / "api" / "openapi.json").read_text())
    properties = {
        name for schema in document["components"]["schemas"].values() for name in schema.get("properties", ())
    }
    assert fields <= properties
    assert {route.key for route in ROUTES if route.created} == {
        route.key for route in ROUTES if route.action.endswith(".create") and not route.action.startswith("transaction")
    }


def test_lines_of_many_writers_stay_whole(tmp_path: Path):
    """Functions, threads and the bridge append to one file."""
    log = audit_log.AuditLog(tmp_path / "audit.log")
    line = _line("x" * 1_500)
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            for _ in range(200):
                log.write(line)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert len(lines) == 800
    assert len(set(lines)) == 1
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_torn_costs_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk was full, and is not any more. Another process writes the next line."""
    file, write = tmp_path / "audit.log", os.write
    audit_log.AuditLog(file).write(_line("ann"))
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(OSError, match="the disk is full"):
            audit_log.AuditLog(file).write(_line("bob"))
    audit_log.AuditLog(file).write(_line("carol"))
    assert [json.loads(line)["principal"] for line in file.read_text().splitlines()] == ["ann", "carol"]


def _line(principal: str) -> AuditLine:
    return AuditLine(
        time_ms=5,
        action="x",
        resource="x",
        principal=principal,
        source="x",
        outcome=Outcome.DONE,
        status=200,
        code="x",
        call="x",
        component="x",
        request_id="r",
        correlation_id="r",
    )
