"""Transactions through the handlers: a whole life over HTTP, its messages, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions.processors import aborts, commits
from functions.processors.tick_work import TICK_WORK
from headrace import topology

UNKNOWN = "0" * 32


@pytest.fixture
def transactions(active_stream: str) -> str:
    return f"{active_stream}/transactions"


@pytest.fixture
def begun(call: Call, transactions: str) -> str:
    """Path of an open transaction."""
    made = call("POST", transactions, {"lease": 20_000})
    assert made.status == 201
    return f"{transactions}/{made.body['transaction']}"


def test_a_life(call: Call, world: FunctionWorld, active_stream: str, transactions: str):
    made = call("POST", transactions, {"lease": 20_000}).body
    path = f"{transactions}/{made['transaction']}"
    assert made["state"] == "OPEN"
    assert made["segments"][0] == {
        "segmentId": 0,
        "name": "s/t/0.#epoch.0",
        "transactionSegment": f"s/t/0.#epoch.0#transaction.{made['transaction']}",
        "low": 0.0,
        "high": 0.5,
    }
    assert call("GET", path).body == made
    assert call("PUT", f"{path}/lease", {"lease": 30_000}).body["leaseEnd"] > made["leaseEnd"]
    world.segment_stores.append(made["segments"][1]["transactionSegment"], b"event", 0)
    committing = call("PUT", f"{path}/state", {"state": "COMMITTING", "writer": "w", "time": -5})
    assert (committing.status, committing.body["state"]) == (202, "COMMITTING")
    assert call("GET", transactions).body["transactions"][0]["state"] == "COMMITTING"
    world.work()
    assert world.segment_stores.read("s/t/1.#epoch.0", 0, 100) == b"event"
    assert call("GET", path).body["state"] == "COMMITTED"
    assert call("GET", transactions).body == {"transactions": [], "continuationToken": None}
    completed = call("GET", transactions, which="completed").body
    assert completed == {"completed": [{"transaction": made["transaction"], "state": "COMMITTED"}]}
    assert call("PUT", f"{path}/state", {"state": "COMMITTING"}).body["state"] == "COMMITTED"
    refused = call("PUT", f"{path}/state", {"state": "ABORTING"})
    assert (refused.status, refused.code) == (412, "transaction_committed")
    assert call("GET", active_stream).body["state"] == "ACTIVE"


def test_an_abort(call: Call, world: FunctionWorld, begun: str):
    assert call("PUT", f"{begun}/state", {"state": "ABORTING"}).body["state"] == "ABORTING"
    world.work()
    assert call("GET", begun).body["state"] == "ABORTED"
    assert call("PUT", f"{begun}/lease", {"lease": 20_000}).code == "transaction_aborted"
    assert world.segment_stores.names() == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]


def test_open_ones_by_page(call: Call, transactions: str):
    made = sorted(call("POST", transactions, {"lease": 10_000}).body["transaction"] for _ in range(3))
    first = call("GET", transactions, limit="2").body
    assert [transaction["transaction"] for transaction in first["transactions"]] == made[:2]
    rest = call("GET", transactions, continuationToken=first["continuationToken"]).body
    assert [transaction["transaction"] for transaction in rest["transactions"]] == made[2:]
    assert call("GET", transactions, continuationToken="t").code == "invalid_transaction_id"


def test_a_commit_set(call: Call, world: FunctionWorld, active_stream: str, transactions: str):
    members = [call("POST", transactions, {"lease": 10_000}).body["transaction"] for _ in range(3)]
    asked = {"writer": "spark:7", "epoch": 3, "transactions": {"t": members}, "note": "at 7"}
    assert call("GET", f"{active_stream}/commit-sets/spark:7").body == {
        "writer": "spark:7",
        "epoch": None,
        "time": None,
        "note": None,
    }
    made = call("POST", f"{active_stream}/commit-sets", asked)
    assert made.status == 202
    assert made.body == {"writer": "spark:7", "epoch": 3, "time": made.body["time"], "new": True}
    world.work()
    assert call("POST", f"{active_stream}/commit-sets", asked).body == made.body | {"new": False}
    told = call("GET", f"{active_stream}/commit-sets/spark:7").body
    assert told == {"writer": "spark:7", "epoch": 3, "time": made.body["time"], "note": "at 7"}
    assert {call("GET", f"{transactions}/{member}").body["state"] for member in members} == {"COMMITTED"}
    assert call("GET", f"{active_stream}/commit-sets/spark%3A7").code == "path_not_canonical"


def test_leases_are_renewed_together_each_for_itself(call: Call, active_stream: str, transactions: str):
    made = [call("POST", transactions, {"lease": 10_000}).body["transaction"] for _ in range(3)]
    call("PUT", f"{transactions}/{made[1]}/state", {"state": "ABORTING"})
    path = f"{active_stream}/transaction-leases"
    asked = [*made, made[0], "0" * 32]
    renewed = call("POST", path, {"lease": 60_000, "transactions": asked})
    assert renewed.status == 200
    outcomes = renewed.body["leases"]
    assert [outcome["transaction"] for outcome in outcomes] == [*made, "0" * 32]
    assert [outcome["status"] for outcome in outcomes] == [200, 412, 200, 404]
    alone = [call("PUT", f"{transactions}/{transaction}/lease", {"lease": 60_000}) for transaction in (*made, "0" * 32)]
    assert [outcome["error"] for outcome in outcomes] == [response.body.get("error") for response in alone]
    for outcome, later in zip(outcomes, alone, strict=True):
        end_ms = later.body.get("leaseEnd")
        assert outcome["leaseEnd"] is None if end_ms is None else end_ms - 30_000 < outcome["leaseEnd"] <= end_ms
    refused = {
        "lease_too_small": {"lease": 1, "transactions": made},
        "invalid_transaction_id": {"lease": 10_000, "transactions": ["x"]},
        "invalid_request": {"lease": 10_000, "transactions": made * 34},
    }
    assert {code: call("POST", path, body).code for code, body in refused.items()} == {code: code for code in refused}
    assert call("POST", path, {"lease": 10_000, "transactions": []}).status == 400


def test_labels(call: Call, active_stream: str, transactions: str):
    made = [
        call("POST", transactions, {"lease": 10_000, "label": label}).body["transaction"]
        for label in ("q/1", "q/2", "r/1")
    ]
    listed = call("GET", transactions, labelPrefix="q/").body["transactions"]
    assert sorted(transaction["transaction"] for transaction in listed) == sorted(made[:2])
    assert {transaction["label"] for transaction in listed} == {"q/1", "q/2"}
    aborted = call("POST", f"{active_stream}/transaction-aborts", {"labelPrefix": "q/"})
    assert (aborted.status, aborted.body) == (202, {"aborted": 2, "continuationToken": None})
    left = call("GET", transactions).body["transactions"]
    assert [transaction["transaction"] for transaction in left if transaction["state"] == "OPEN"] == made[2:]
    refused = call("POST", f"{active_stream}/transaction-aborts", {"labelPrefix": "a b"})
    assert (refused.status, refused.code) == (400, "invalid_label")


def test_segments_on_demand(call: Call, world: FunctionWorld, transactions: str):
    made = call("POST", transactions, {"lease": 10_000, "segments": "on-demand"}).body
    assert made["onDemand"]
    assert len(world.segment_stores.names()) == 2, "only those of the stream"
    segments = f"{transactions}/{made['transaction']}/segments"
    assert call("POST", segments, {"segments": [1]}).body["state"] == "OPEN"
    assert made["segments"][1]["transactionSegment"] in world.segment_stores.names()
    assert call("POST", segments, {"segments": [9]}).code == "not_of_transaction"
    assert call("POST", segments, {"segments": []}).status == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "", {}, 400),
        ("POST", "", {"lease": 9_999}, 400),
        ("POST", "", {"lease": 1 << 70}, 400),
        ("POST", "", {"lease": "10000"}, 400),
        ("GET", "/abc", None, 400),
        ("GET", f"/{UNKNOWN}", None, 404),
        ("PUT", f"/{UNKNOWN}/lease", {"lease": 10_000}, 404),
        ("PUT", f"/{UNKNOWN}/lease", {"lease": 0}, 400),
        ("PUT", f"/{UNKNOWN}/state", {"state": "COMMITTING"}, 404),
        ("PUT", f"/{UNKNOWN}/state", {"state": "COMMITTED"}, 400),
        ("PUT", f"/{UNKNOWN}/state", {"state": "COMMITTING", "writer": "w"}, 400),
        ("PUT", f"/{UNKNOWN}/state", {"state": "COMMITTING", "writer": "a/b", "time": 1}, 400),
        ("PUT", f"/{UNKNOWN}/state", {"state": "ABORTING", "writer": "w", "time": 1}, 400),
    ],
)
def test_bad_input_changes_nothing(
    call: Call, world: FunctionWorld, transactions: str, method: str, path: str, body: Any, status: int
):
    before = world.contents()
    assert call(method, f"{transactions}{path}", body).status == status
    assert world.contents() == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"writer": "w", "epoch": 0, "transactions": {"t": []}}, 400),
        ({"writer": "w", "epoch": 0, "transactions": {"t": [UNKNOWN] * 2}}, 400),
        ({"writer": "w", "epoch": 0, "transactions": {"t": ["x"]}}, 400),
        ({"writer": "w", "epoch": 0, "transactions": {"a/b": [UNKNOWN]}}, 400),
        ({"writer": "", "epoch": 0, "transactions": {"t": [UNKNOWN]}}, 400),
        ({"writer": "a b", "epoch": 0, "transactions": {"t": [UNKNOWN]}}, 400),
        ({"writer": "w", "epoch": -1, "transactions": {"t": [UNKNOWN]}}, 400),
        ({"writer": "w", "epoch": 1 << 63, "transactions": {"t": [UNKNOWN]}}, 400),
        ({"writer": "w", "epoch": 0, "transactions": {"t": [UNKNOWN]}, "abortLabels": "a b"}, 400),
        ({"writer": "w", "epoch": 0, "transactions": {"t": [UNKNOWN]}}, 404),
    ],
)
def test_bad_commit_sets_change_nothing(call: Call, world: FunctionWorld, active_stream: str, body: Any, status: int):
    before = world.contents()
    assert call("POST", f"{active_stream}/commit-sets", body).status == status
    assert world.contents() == before


def _event(queue: topology.Queue, body: Any, group: str) -> dict[str, Any]:
    record = {
        "messageId": "m",
        "receiptHandle": "r",
        "body": json.dumps(body),
        "attributes": {"MessageGroupId": group, "ApproximateReceiveCount": "1"},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue.name}",
    }
    return {"Records": [record]}


@pytest.mark.parametrize("state", ["COMMITTING", "ABORTING"])
def test_the_processors_do_what_is_queued(
    call: Call, world: FunctionWorld, context: FunctionContext, begun: str, state: str
):
    call("PUT", f"{begun}/state", {"state": state})
    queue, module, declared, group = {
        "COMMITTING": (world.commits, commits, topology.COMMITS_QUEUE, "s/t"),
        "ABORTING": (world.aborts, aborts, topology.ABORTS_QUEUE, begun.rpartition("/")[2]),
    }[state]
    (message,) = queue.receive()
    assert message.group == group, "commits are one after the other for each stream, aborts for each transaction"
    assert module.handler(_event(declared, message.body, group), context) == {"batchItemFailures": []}
    assert call("GET", begun).body["state"] == {"COMMITTING": "COMMITTED", "ABORTING": "ABORTED"}[state]


def test_the_tick_is_wired(world: FunctionWorld, begun: str):
    assert [TICK_WORK["transactions"](bucket) for bucket in range(topology.BUCKET_COUNT)] == [False] * 8
